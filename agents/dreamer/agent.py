"""Dreamer as an agent (`agents.protocol.Agent`).

For each environment step it learns from `replay_ratio` replayed steps. In the Nature version the
replay stores the model state with each step: a sequence starts from that of the step before it, and
an update replaces those of its steps by those that it computes. In the arXiv version the replay
stores none, and sequences start from the initial model state.
"""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from agents import pictures
from agents.dreamer import distributions, losses
from agents.dreamer.config import DreamerConfig
from agents.dreamer.losses import LossScales
from agents.dreamer.model import (
    ACTOR,
    CRITIC,
    WORLD_MODEL,
    Model,
    Params,
    Sequences,
    observe,
    observe_step,
)
from agents.dreamer.networks import State, initial_state
from agents.optimizers import laprop
from agents.protocol import (
    Batch,
    Examination,
    Mode,
    OpenLoop,
    ReplaySpec,
    Requirements,
    Update,
    UpdateSpec,
)
from disco_common import compilation

ACTION = "action"  # The only entry of memories' and extras' actions; checkpoints have the name.
_OBSERVATION = "observation"
SLOW_CRITIC_DECAY = 0.98  # Of the moving average of the critic's parameters (Table W.1).
_CONTEXT = 1  # Steps before a sequence; it starts from the model state of the last of them.


class DreamerState(NamedTuple):
    """The learning state.

    Attributes:
      params: of all networks.
      slow_critic: moving average of the critic's parameters.
      optimizer: the optimiser's state.
      scales: running statistics and adaptive weights of the losses.
      updates: number of updates so far, `[]`.
    """

    params: Params
    slow_critic: PyTree[Array]
    optimizer: optax.OptState
    scales: LossScales
    updates: Array


class DreamerMemory(NamedTuple):
    """The memory of an agent that acts in E environments.

    Attributes:
      state: the model state, `[E]`.
      action: the last action, `[E, ...]`, as `ACTION`.
    """

    state: State
    action: Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class ActionRange:
    """The environment's bounds of continuous actions, `[A]`. The agent's are -1 and 1."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def scale(self, action: Float[Array, "B A"]) -> Float[Array, "B A"]:
        """Return the agent's actions, scaled to the environment's bounds."""
        low, high = jnp.asarray(self.low, action.dtype), jnp.asarray(self.high, action.dtype)
        scaled = low + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (high - low)
        return jnp.clip(scaled, low, high)  # The sum is rounded.


@dataclasses.dataclass(frozen=True)
class DreamerAgent:
    """DreamerV3 for environments of given specs.

    Attributes:
      model: its networks and settings.
      action_range: of continuous actions; None for discrete actions.
    """

    model: Model
    action_range: ActionRange | None = None

    @property
    def requirements(self) -> Requirements:
        config = self.model.config
        update = UpdateSpec(
            batch_size=config.batch_size,
            num_replayed=config.batch_size,
            length=config.batch_length,
            context=_CONTEXT,
            updates_per_step=config.replay_ratio / (config.batch_size * config.batch_length),
            min_sequences=config.prefill,
            # A sequence starts from the model state of its context.
            extras_rows=(("h", _CONTEXT), ("z", _CONTEXT)) if config.stores_latents else (),
        )
        replay = ReplaySpec(
            capacity=config.replay_capacity,
            anywhere=True,
            online=config.stores_latents,
            in_checkpoints=True,
        )
        return Requirements(
            num_environments=config.num_environments,
            unroll_length=1,
            replay=replay,
            updates=(update,),
            acts_one_behind=False,
        )

    def init(self, key: PRNGKeyArray) -> DreamerState:
        params = self.model.init(key)
        return DreamerState(
            params=params,
            slow_critic=jax.tree.map(jnp.copy, params[CRITIC]),
            optimizer=make_optimizer(self.model.config).init(params),
            scales=losses.initial_scales(self.model),
            updates=jnp.zeros((), jnp.int32),
        )

    def acting_state(self, state: DreamerState) -> Params:
        return {name: state.params[name] for name in ("encoder", "rssm", ACTOR)}

    def initial_memory(self, batch_size: int) -> DreamerMemory:
        actions = self.model.actions
        action = jnp.zeros((batch_size, actions.size))
        if actions.is_discrete:
            action = jnp.zeros(batch_size, jnp.int32)
        return DreamerMemory(initial_state(self.model.config, batch_size), {ACTION: action})

    def act(
        self,
        acting_state: Params,
        memory: DreamerMemory,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[DreamerMemory, Array, dict[str, Any]]:
        del mode  # It samples from its policy in both modes.
        model, is_first = self.model, timestep.step_type == dm_env.StepType.FIRST
        tokens = model.encode(acting_state, named(timestep.observation))
        embedded = model.actions.embed(memory.action[ACTION])
        state_key, action_key = jax.random.split(key)
        state, _ = observe_step(
            model, acting_state, memory.state, embedded, tokens, is_first, state_key
        )
        policy = model.policy(acting_state, state.features)
        action = policy.sample(jax.random.split(action_key, 1)[0])
        extras: dict[str, Any] = {"action": {ACTION: action}}
        if model.config.stores_latents:
            extras |= self._stored(state)
        scaled = self.action_range.scale(action) if self.action_range else action
        return DreamerMemory(state, {ACTION: action}), scaled, extras

    def update(self, state: DreamerState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        del name
        replayed, start = self.to_sequences(batch)
        state, states, metrics = learn(self.model, state, replayed, start, key)
        return Update(
            state, metrics, self._stored(states) if self.model.config.stores_latents else None
        )

    def to_sequences(self, batch: Batch) -> tuple[Sequences, State]:
        """Return the sequences to learn from, `[T, B]`, and the model states before them, `[B]`.

        The first transition of `batch` is the context.
        """
        config = self.model.config
        arrived = _arrivals(batch, slice(1, -1), slice(-1))
        if config.stores_latents:
            h, z = batch.extras["h"][0], batch.extras["z"][0]
            return arrived, State(h, jax.nn.one_hot(z, config.classes))
        # Each sequence starts from the initial model state.
        is_first = arrived.is_first.at[0].set(True)
        return arrived._replace(is_first=is_first), initial_state(config, is_first.shape[1])

    def _stored(self, states: State) -> dict[str, Array]:
        """Return states as the replay stores them: h, and the class of each variable of z."""
        return {"h": states.h, "z": states.z.argmax(axis=-1).astype(jnp.uint8)}

    def examine(self, state: DreamerState, batch: Batch, key: PRNGKeyArray) -> Examination:
        """Compare predicted rewards and ends with those of new episodes, and draw a prediction.

        Steps that begin an episode are left out.
        """
        found = _all_arrivals(batch)
        counts = ~found.is_first
        reward, continues = jax.device_get(
            _predictions(self.model, state.params, state.scales, found, key)
        )
        metrics = pictures.prediction_errors(
            np.asarray(found.reward)[counts],
            reward[counts],
            np.asarray(found.is_terminal)[counts],
            1.0 - continues[counts],
        )
        drawn = pictures.prediction_picture(self, state, batch, key) if self._pictured else {}
        return Examination(metrics, drawn)

    def imagine(
        self, state: DreamerState, batch: Batch, key: PRNGKeyArray, interval: int
    ) -> OpenLoop:
        """Predict the first observation that is a picture (`agents.protocol.ImaginingAgent`).

        At each start, every `interval` steps, the model state is that of all earlier steps of the
        episode.
        """
        if interval < 2:
            raise ValueError(f"The interval is {interval}; expected 2 or more, to predict 1 step.")
        if not (pictured := self._pictured):
            raise ValueError(
                f"None of the observations {sorted(self.model.observations)} is a picture."
            )
        found = _all_arrivals(batch)
        predicted = _at_intervals(self.model, state.params, found, key, interval)[pictured[0]]
        observed = np.asarray(found.observation[pictured[0]])[:, 0]
        return OpenLoop(observed, jax.device_get(predicted), np.arange(len(observed)) % interval)

    @property
    def _pictured(self) -> list[str]:
        """The names of the observations that are pictures, in order."""
        return sorted(x for x, kind in self.model.observation_parts if pictures.is_picture(kind))


def make_optimizer(config: DreamerConfig) -> optax.GradientTransformation:
    """Return one optimiser for all networks, or the arXiv version's for each group (Table W.1)."""
    if not config.is_v1:
        return laprop(config.learning_rate, config.warmup)

    def clipped_adam(learning_rate: float, eps: float, max_gradient_norm: float):
        clip = optax.clip_by_global_norm(max_gradient_norm)
        return optax.chain(clip, optax.adam(learning_rate, eps=eps))

    groups: dict[Hashable, optax.GradientTransformation] = {
        "world": clipped_adam(config.learning_rate, 1e-8, 1000.0),
        ACTOR: clipped_adam(config.actor_critic_learning_rate, 1e-5, 100.0),
        CRITIC: clipped_adam(config.actor_critic_learning_rate, 1e-5, 100.0),
    }
    labels = {name: "world" for name in WORLD_MODEL} | {ACTOR: ACTOR, CRITIC: CRITIC}
    return optax.multi_transform(groups, labels)


def learn(
    model: Model, state: DreamerState, batch: Sequences, start: State, key: PRNGKeyArray
) -> tuple[DreamerState, State, dict[str, Array]]:
    """Make one update.

    `start` are the model states before the sequences, `[B]`.

    Returns:
      The learning state after the update, the model states of the sequences, and metrics.
    """
    (total, outcome), gradients = jax.value_and_grad(losses.loss, has_aux=True)(
        state.params, state.slow_critic, model, batch, start, state.scales, key
    )
    updates, optimizer = make_optimizer(model.config).update(
        gradients, state.optimizer, state.params
    )
    params: Any = optax.apply_updates(state.params, updates)
    decay = SLOW_CRITIC_DECAY
    slow = jax.tree.map(
        lambda slow, new: decay * slow + (1.0 - decay) * new, state.slow_critic, params[CRITIC]
    )
    metrics = {
        "loss": total,
        **{f"loss/{name}": jnp.mean(x) for name, x in outcome.losses.items()},
        **outcome.metrics,
        **{f"gradient_norm/{name}": optax.tree.norm(x) for name, x in gradients.items()},
    }
    state = DreamerState(params, slow, optimizer, outcome.scales, state.updates + 1)
    return state, outcome.observed.states, metrics


@compilation.jit_compiled_fast(static_argnums=0)
def _predictions(
    model: Model, params: Params, scales: LossScales, batch: Sequences, key: PRNGKeyArray
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Return the reward of each step, and the probability that the episode continues after it.

    They are predicted from the model state that includes the step's observation. Sequences begin
    with an episode's first step.
    """
    start = initial_state(model.config, batch.reward.shape[1])
    features = observe(model, params, start, batch, jax.random.split(key)[0]).states.features
    continues = jax.nn.sigmoid(model.continuation(params, features))
    if not model.config.is_v1:
        continues = jnp.minimum(1.0, continues / model.config.discount)
    reward = model.regression.mean(model.reward(params, features))
    is_scaled = model.config.ablation == "RewardNorm"
    return reward * losses.reward_divisor(scales) if is_scaled else reward, continues


@compilation.jit_compiled_fast(static_argnums=(0, 4))
def _at_intervals(
    model: Model, params: Params, batch: Sequences, key: PRNGKeyArray, interval: int
) -> dict[str, Array]:
    """Return predictions of observations, by name, `[T, ...]`, as `imagine` describes them."""
    posterior_key, prior_key = jax.random.split(key)
    observed = observe(model, params, initial_state(model.config, 1), batch, posterior_key).states
    starts: State = jax.tree.map(lambda x: x[::interval, 0], observed)
    actions = model.actions.embed(batch.action)[:, 0]
    length, number = len(actions), len(starts.h)
    actions = jnp.pad(actions, ((0, number * interval - length), (0, 0)))
    actions = jnp.swapaxes(actions.reshape(number, interval, -1), 0, 1)[1:]

    def step(state: State, row: tuple[Array, Array]) -> tuple[State, State]:
        action, t = row
        h = model.advance(params, state, action)
        log_p = model.prior(params, h)
        state = State(h, distributions.sample(jax.random.fold_in(prior_key, t), log_p))
        return state, state

    predicted = jax.lax.scan(step, starts, (actions, jnp.arange(len(actions))))[1]

    def in_order(first: Array, later: Array) -> Array:
        rows = jnp.swapaxes(jnp.concatenate([first[None], later]), 0, 1)
        return rows.reshape(number * interval, 1, *rows.shape[2:])[:length]

    states: State = jax.tree.map(in_order, starts, predicted)
    # Step by step, as a thousand decoded frames take much memory.
    decoded = jax.lax.map(lambda x: model.decode(params, x.h, x.flat_z), states)
    return {name: model.observations[name].decoded(x)[:, 0] for name, x in decoded.items()}


def _all_arrivals(batch: Batch) -> Sequences:
    """Return all rows of a batch whose first row begins an episode; NumPy."""
    before = jax.tree.map(np.zeros_like, jax.tree.map(lambda x: x[:1], batch))
    padded = jax.tree.map(lambda *x: np.concatenate(x), before, batch)
    padded.mask[0] = False
    return _arrivals(padded, slice(1, None), slice(None))


def _arrivals(batch: Batch, rows: slice, transitions: slice) -> Sequences:
    """Return rows, each with the transition that led to it."""
    last, discount = batch.last[transitions], batch.discount[transitions]
    return Sequences(
        observation={name: x[rows] for name, x in named(batch.observation).items()},
        action=batch.extras["action"][ACTION][transitions],
        reward=batch.reward[transitions],
        is_first=~batch.mask[transitions],
        is_last=last,
        is_terminal=last & (discount == 0),
    )


def named(observation: Any) -> dict[str, Any]:
    """Return an observation as a dictionary by name, also if it is a single array."""
    return dict(observation) if isinstance(observation, Mapping) else {_OBSERVATION: observation}

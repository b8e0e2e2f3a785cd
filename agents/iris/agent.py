"""IRIS as an agent (`agents.protocol.Agent`).

An epoch is an unroll of `epoch_steps` environment steps, followed by the updates of the
autoencoder, those of the Transformer, and those of the actor-critic.

The replay stores each frame's reconstruction beside it, because the policy acts on reconstructions:
the burn-in of imagination reads them. An update of the autoencoder replaces the reconstructions of
the frames that it learns from by its own.
"""

import dataclasses
from typing import Any

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt8

from agents import pictures
from agents.iris import actor_critic, learner
from agents.iris.learner import KINDS, RECONSTRUCTION, IrisState, as_bytes, as_fractions
from agents.iris.losses import world_model_losses
from agents.iris.model import (
    ACTOR_CRITIC,
    WORLD_MODEL,
    Model,
    Params,
    next_frame,
    with_room,
)
from agents.iris.world_model import Cache
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

# The authors' configuration files have these in all settings (`agents.iris.config`).
EPSILON = 0.01  # Probability of a uniformly random action in training.
EVALUATION_TEMPERATURE = 0.5  # Of the policy in `Mode.EVALUATION`.

CONTEXT = 2  # Observed frames before a prediction (figure 3).
_EXAMINED = 64  # Sequences of an examination, at most.


@dataclasses.dataclass(frozen=True)
class IrisAgent:
    """IRIS for environments of given specs.

    Attributes:
      model: its networks and settings.
      perceptual: parameters of the perceptual loss, those of the config's file; None without it.
    """

    model: Model
    perceptual: PyTree[Array] | None = dataclasses.field(default=None, compare=False)

    @property
    def requirements(self) -> Requirements:
        config = self.model.config
        # Batch size, transitions, earlier steps; epochs before the first update.
        kinds = (
            (config.tokenizer_batch, 1, 0, config.tokenizer_start),
            (config.world_model_batch, config.memory_steps, 0, config.world_model_start),
            (config.actor_critic_batch, 1, config.burn_in, config.actor_critic_start),
        )
        updates = tuple(
            UpdateSpec(
                name=kind,
                batch_size=size,
                num_replayed=size,
                length=length,
                context=context,
                updates_per_step=config.epoch_updates / config.epoch_steps,
                first_step=(start + 1) * config.epoch_steps,
                # The burn-in's.
                extras_rows=((RECONSTRUCTION, context),),
            )
            for kind, (size, length, context, start) in zip(KINDS, kinds, strict=True)
        )
        return Requirements(
            num_environments=config.num_environments,
            unroll_length=config.epoch_steps // config.num_environments,
            replay=ReplaySpec(config.replay_capacity, anywhere=True, in_checkpoints=True),
            updates=updates,
            acts_one_behind=False,
            ends_at_life_loss=True,
        )

    def init(self, key: PRNGKeyArray) -> IrisState:
        return learner.init(self.model, key, self.perceptual)

    def acting_state(self, state: IrisState) -> Params:
        return {name: x for name, x in state.params.items() if name != WORLD_MODEL}

    def initial_memory(self, batch_size: int) -> hk.LSTMState:
        return actor_critic.initial_state(self.model.config, batch_size)

    def act(
        self,
        acting_state: Params,
        memory: hk.LSTMState,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[hk.LSTMState, Array, dict[str, Array]]:
        config = self.model.config
        is_first = timestep.step_type == dm_env.StepType.FIRST
        memory = jax.tree.map(lambda x: jnp.where(is_first[:, None], 0.0, x), memory)
        frames = self.model.reconstruct(acting_state, as_fractions(timestep.observation))
        features = self.model.vision(acting_state, frames)
        output, memory = self.model.react(acting_state, features, memory)
        policy_key, random_key, choice_key = jax.random.split(key, 3)
        evaluates = mode is Mode.EVALUATION
        temperature = EVALUATION_TEMPERATURE if evaluates else config.temperature
        action = jax.random.categorical(policy_key, output.logits / temperature)
        if not evaluates:
            is_random = jax.random.bernoulli(choice_key, EPSILON, action.shape)
            uniform = jax.random.randint(random_key, action.shape, 0, self.model.num_actions)
            action = jnp.where(is_random, uniform, action)
        return memory, action.astype(jnp.int32), {RECONSTRUCTION: as_bytes(frames)}

    def update(self, state: IrisState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        if name == WORLD_MODEL:
            return Update(*learner.update_world_model(self.model, state, batch, key))
        if name == ACTOR_CRITIC:
            return Update(*learner.update_actor_critic(self.model, state, batch, key))
        frames = batch.observation[0]
        state, seen, metrics = learner.update_tokenizer(self.model, state, frames, key)
        return Update(state, metrics, {RECONSTRUCTION: seen[None]})

    def examine(self, state: IrisState, batch: Batch, key: PRNGKeyArray) -> Examination:
        """Compare predicted rewards, ends and tokens with those of new episodes, and draw one.

        Sequences are as long as the world model's memory; steps after an episode's end do not
        count.
        """
        length = min(self.model.config.memory_steps, len(batch.reward))

        def cut(x: Any) -> np.ndarray:  # [sequences, L, ...]
            x = np.asarray(x)[: len(batch.reward) // length * length]
            x = np.moveaxis(x.reshape(-1, length, *x.shape[1:]), 2, 0)
            return x.reshape(-1, *x.shape[2:])[:_EXAMINED]

        counts = np.cumprod(cut(batch.mask), axis=1) > 0
        end, reward = cut(batch.last & (batch.discount == 0)), cut(batch.reward)
        frames, actions = cut(batch.observation[:-1]), cut(batch.action)
        signs, ends, losses = jax.device_get(
            _predict(self.model, state.params, frames, actions, reward, end, counts)
        )
        metrics = pictures.prediction_errors(
            np.sign(reward)[counts], signs[counts], end[counts], ends[counts]
        ) | {"held_out/token_loss": float(losses["next_token"])}
        return Examination(metrics, pictures.prediction_picture(self, state, batch, key))

    def imagine(self, state: IrisState, batch: Batch, key: PRNGKeyArray, interval: int) -> OpenLoop:
        """Predict frames by the actions alone (`agents.protocol.ImaginingAgent`).

        At each start, every `interval` steps, the model reads `CONTEXT` frames, and knows none
        before them.
        """
        if interval <= CONTEXT:
            raise ValueError(
                f"The interval is {interval}; expected {CONTEXT + 1} or more, as IRIS reads"
                f" {CONTEXT} frames before it predicts."
            )
        observed = np.asarray(batch.observation)[:, 0]
        length = len(observed)
        number = -(-length // interval)

        def cut(x: np.ndarray) -> np.ndarray:
            x = np.pad(x, ((0, number * interval - len(x)), *((0, 0),) * (x.ndim - 1)))
            return x.reshape(number, interval, *x.shape[1:]).swapaxes(0, 1)

        actions = cut(np.asarray(batch.action)[:, 0])
        predicted = _predict_frames(self.model, state.params, cut(observed), actions, key)
        predicted = np.asarray(as_bytes(predicted)).swapaxes(0, 1)
        predicted = predicted.reshape(-1, *predicted.shape[2:])[:length]
        return OpenLoop(
            observed, predicted, np.maximum(0, np.arange(length) % interval - CONTEXT + 1)
        )


@compilation.jit_compiled_fast(static_argnums=0)
def _predict(
    model: Model,
    params: Params,
    frames: UInt8[Array, "B L S S C"],
    action: Int[Array, "B L"],
    reward: Float[Array, "B L"],
    end: Bool[Array, "B L"],
    counts: Bool[Array, "B L"],
) -> tuple[Float[Array, "B L"], Float[Array, "B L"], dict[str, Float[Array, ""]]]:
    """Return expected signs of rewards and probabilities of ends along sequences, and losses."""
    tokens = jax.lax.map(lambda x: model.tokens(params, as_fractions(x)), frames)
    logits = model.predict(params, tokens, action, None)
    sign = jax.nn.softmax(logits.reward) @ jnp.array([-1.0, 0.0, 1.0])
    losses = world_model_losses(logits, tokens, reward, end, counts)
    return sign, jax.nn.softmax(logits.end)[..., 1], losses


@compilation.jit_compiled_fast(static_argnums=0)
def _predict_frames(
    model: Model,
    params: Params,
    frames: UInt8[Array, "T B S S C"],
    action: Int[Array, "T B"],
    key: PRNGKeyArray,
) -> Float[Array, "T B S S C"]:
    """Return predicted frames with entries in [0, 1], after `CONTEXT` reconstructed ones.

    An action follows each frame. A world model whose memory is full goes on from the last frame
    that it predicted.
    """
    seen = jnp.stack([model.tokens(params, as_fractions(x)) for x in frames[:CONTEXT]])
    cache = model.empty_cache(frames.shape[1])
    for tokens, after in zip(seen[:-1], action[: CONTEXT - 1], strict=True):
        _, cache = model.feed(params, "tokens", tokens, cache)
        _, cache = model.feed(params, "actions", after[:, None], cache)
    _, cache = model.feed(params, "tokens", seen[-1], cache)

    def step(carry: tuple[Array, Cache], row: tuple[Array, Array]):
        (tokens, cache), (action, key) = carry, row
        needed = model.tokens_per_frame + 1
        cache = with_room(model, params, tokens, cache, needed, len(frames))
        hidden, cache = model.feed(params, "actions", action[:, None], cache)
        found, cache = next_frame(model, params, hidden[:, 0], cache, key)
        return (found, cache), found

    actions = action[CONTEXT - 1 : len(frames) - 1]
    keys = jax.random.split(key, len(actions))
    _, predicted = jax.lax.scan(step, (seen[-1], cache), (actions, keys))
    return jax.lax.map(lambda x: model.frames(params, x), jnp.concatenate([seen, predicted]))

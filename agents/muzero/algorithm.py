"""MuZero as an agent: it acts by search, and learns to predict what searches find.

Two kinds of update are `update`, which learns, and `reanalyse`, which searches again in replayed
positions and writes back what it finds. The search is Gumbel MuZero's, by `mctx`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import mctx
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

import disco
from agents import search_space
from agents.history import History
from agents.latent_model import LatentModel
from agents.loss_agent import LossAgent
from agents.muzero.config import PAPER, MuZeroConfig
from agents.muzero.losses import importance_weights, loss
from agents.optimizers import scheduled_adamw
from agents.policy_agent import NetworkState
from agents.protocol import Batch, Mode, ReplaySpec, Requirements, Update, UpdateSpec
from agents.registry import Algorithm
from agents.search_space import Choice, CommonSettings, LogUniform, Settings, given
from disco.values import decode_value
from disco_common.pytrees import register_dataclass


class SearchResult(NamedTuple):
    """The result of a search in each of B states.

    Attributes:
      action: to take.
      policy: the improved policy, to learn (Danihelka et al. 2022, section 4, "Learning an
        improved policy").
      value: of the state, by the search.
      predicted_value: of the state, by the model alone.
    """

    action: Int[Array, "B"]
    policy: Float[Array, "B A"]
    value: Float[Array, "B"]
    predicted_value: Float[Array, "B"]


def search(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "B E"],
    key: PRNGKeyArray,
    config: MuZeroConfig,
    gumbel_scale: float = 1.0,
) -> SearchResult:
    """Search from B states, all in one compiled loop; noise of this scale is added at the root.

    Full Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel").
    """
    root, recurrent = model_for_search(model, params, embedding, config)
    with jax.numpy_dtype_promotion("standard"):  # mctx multiplies floats by whole numbers.
        output = mctx.gumbel_muzero_policy(
            params,
            key,
            root,
            recurrent,
            config.num_simulations,
            max_num_considered_actions=config.max_considered_actions,
            gumbel_scale=gumbel_scale,
            qtransform=functools.partial(
                mctx.qtransform_completed_by_mix_value, value_scale=config.value_scale
            ),
        )
    value = output.search_tree.summary().value
    return SearchResult(output.action, output.action_weights, value, root.value)


def model_for_search(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "B E"],
    config: MuZeroConfig,
) -> tuple[mctx.RootFnOutput, mctx.RecurrentFn]:
    """Return the roots of searches, and the model as `mctx` calls it."""

    def recurrent(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        del key
        state = model.step(params, state, action)
        predicted = model.predict(params, state)
        reward = decode_value(predicted.reward, config.max_value)
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.full_like(reward, config.discount),
            prior_logits=predicted.logits,
            value=decode_value(predicted.value, config.max_value),
        )
        return output, state

    state = model.start(params, embedding)
    predicted = model.predict(params, state)
    root = mctx.RootFnOutput(
        prior_logits=predicted.logits,
        value=decode_value(predicted.value, config.max_value),
        embedding=state,
    )
    return root, recurrent


REANALYSE, PRIORITY = "reanalyse", "priority"
_LEAST_ERROR = 1e-3  # So that each position is drawn at times.


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MuZeroAgent(LossAgent):
    """MuZero. Its network is a `LatentModel`."""

    @staticmethod
    def network_for(config: MuZeroConfig, dynamics: Any) -> LatentModel:
        stack, bins = config.frame_stack, config.num_bins
        return LatentModel(config.network, dynamics, frame_stack=stack, num_bins=bins)

    @property
    def requirements(self) -> Requirements:
        config = self.config
        updates = [
            UpdateSpec(
                batch_size=config.batch_size,
                num_replayed=config.batch_size,
                length=config.sequence_length,
                updates_per_step=config.updates_per_step,
                first_step=config.min_steps,
                priority=PRIORITY if config.priority_exponent else "",
            )
        ]
        if config.reanalyses_per_step:
            updates.append(
                UpdateSpec(
                    name=REANALYSE,
                    batch_size=config.batch_size,
                    num_replayed=config.batch_size,
                    length=1,
                    updates_per_step=config.reanalyses_per_step / config.batch_size,
                    first_step=config.min_steps,
                    gradient_steps=0,
                )
            )
        return Requirements(
            num_environments=config.num_environments,
            unroll_length=config.unroll_length,
            history=self.network.history,
            replay=ReplaySpec(capacity=config.replay_capacity, anywhere=True),
            updates=tuple(updates),
        )

    def act(
        self,
        acting_state: disco.Params,
        memory: None,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[None, Array, dict[str, Array]]:
        """Search in each environment; in `Mode.EVALUATION` without noise."""
        noise = 0.0 if mode == Mode.EVALUATION else 1.0
        embedding, _ = self.network.embed_step(acting_state, timestep.observation, None)
        found = search(self.network, acting_state, embedding, key, self.config, noise)
        extras = {"search_policy": found.policy, "search_value": found.value}
        if self.config.priority_exponent:
            extras[PRIORITY] = self._priority(jnp.abs(found.value - found.predicted_value))
        return memory, found.action, extras

    def _priority(self, error: Float[Array, "B"]) -> Float[Array, "B"]:
        """Return priorities by the errors of values; at first, by what the search changed."""
        return (error + _LEAST_ERROR) ** self.config.priority_exponent

    def update(self, state: NetworkState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        if name == REANALYSE:
            return self._reanalyse(state, batch, key)
        config = self.config
        observation = _first_rows(batch.observation, config.frame_stack)

        weight = None
        if config.priority_exponent:
            weight = importance_weights(
                jnp.asarray(batch.extras[PRIORITY])[0], jnp.asarray(batch.mask)[0]
            )

        def batch_loss(params):
            embedding = self.network.embed_unroll(params, observation, None)[0]
            policy, value = (
                jnp.asarray(batch.extras[x]) for x in ("search_policy", "search_value")
            )
            return loss(self.network, params, embedding, batch, policy, value, config, weight)

        state, (metrics, error), norm = self.step(state, batch_loss)
        refreshed = None
        if config.priority_exponent:
            refreshed = {PRIORITY: self._priority(error)[None]}
        return Update(state, metrics | norm, refreshed)

    def _reanalyse(self, state: NetworkState, batch: Batch, key: PRNGKeyArray) -> Update:
        """Search again in each sequence's first position, with the newest parameters."""
        observation = _first_rows(batch.observation, self.config.frame_stack)
        embedding = self.network.embed_unroll(state.params, observation, None)[0]
        found = search(self.network, state.params, embedding, key, self.config)
        change = jnp.abs(found.value - jnp.asarray(batch.extras["search_value"])[0])
        refreshed = {"search_policy": found.policy[None], "search_value": found.value[None]}
        return Update(state, {"value_change": jnp.mean(change)}, refreshed)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """AdamW, with a bound on the gradient's norm and a learning rate that may fall to 0."""
        config = self.config
        return scheduled_adamw(
            self.peak_rate,
            num_updates=round((config.total_steps or 0) * config.updates_per_step),
            weight_decay=config.weight_decay,
            max_gradient_norm=config.max_gradient_norm,
        )


def _first_rows(observation: Any, frame_stack: int) -> Any:
    """Return the first row of sequences' observations, with the frames before it."""
    if not isinstance(observation, History):
        return jax.tree.map(lambda x: x[:1], observation)
    frames = jax.tree.map(lambda x: x[:frame_stack], observation.frames)
    return History(frames=frames, age=observation.age[:1])


def _tuned(common: CommonSettings, settings: Settings) -> MuZeroConfig:
    """Return settings by which it learns after 1% of the budget, but after 1,024 steps at most."""
    return MuZeroConfig(
        **search_space.on_policy_settings(common, settings),
        min_steps=min(1024, common.num_steps // 100),
        **given(("updates_per_step", "td_steps", "weight_decay"), settings),
    )


MUZERO = Algorithm(
    name="muzero",
    paper="MuZero, Schrittwieser et al. 2020, arXiv 1911.08265, with the search of Danihelka et al."
    " 2022",
    presets={"laptop": MuZeroConfig(total_steps=None), "paper": PAPER},
    make=MuZeroAgent.make,
    ranges={
        **search_space.SIZES,
        "learning_rate": search_space.RATE,
        "updates_per_step": Choice(
            (0.03125, 0.0625, 0.125, 0.25), may_be_lower=True, may_be_higher=True
        ),
        # One step is worse than three with the best settings (docs/measurements/tuning.md).
        "td_steps": Choice((3, 5, 10), may_be_higher=True),
        "weight_decay": LogUniform(1e-6, 1e-2),
    },
    tuned=_tuned,
)

"""Muesli as an agent: it acts by its policy, and learns as `agents.muesli.losses` says."""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
from agents.latent_model import LatentModel, latent_model
from agents.muesli.losses import PAPER, MuesliConfig, loss
from agents.protocol import Batch, Experience, Update
from agents.registry import Algorithm
from agents.rule_agent import ActsByPolicy, NetworkState, to_trajectory
from agents.search_space import (
    RULE_RANGES,
    SIZES,
    TRACES,
    LogUniform,
    Settings,
    Shared,
    given,
    make_agent,
    with_images_of,
    with_settings,
)
from disco import moments
from disco.moments import Moments
from disco.types import without_masked_damage
from disco_common.pytrees import register_dataclass


@chex.dataclass(frozen=True)
class MuesliState(NetworkState):
    """The learning state, with the parameters' moving average and the advantages' moments."""

    target_params: disco.Params
    moments: Moments


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MuesliAgent(ActsByPolicy):
    """Muesli (`agents.protocol.Agent`) for discrete actions.

    Its model has one parameter vector. A `learning_rate` replaces the configuration's.
    """

    config: MuesliConfig = dataclasses.field(metadata={"static": True})
    model: LatentModel = dataclasses.field(metadata={"static": True})
    learning_rate: Float[Array, ""] | None = None

    @classmethod
    def create(cls, config: MuesliConfig, dynamics: Any) -> "MuesliAgent":
        """Make an agent for dynamics, of which only the specs are used; actions are discrete."""
        stack, burn_in = config.frame_stack, config.burn_in
        model = latent_model(config.network, dynamics, config.num_bins, stack, burn_in)
        return cls(config=config, model=model)

    @property
    def experience(self) -> Experience:
        return self.config.experience(self.model.history)

    def init(self, key: PRNGKeyArray) -> MuesliState:
        params = self.model.init(key)
        return MuesliState(
            params=params,
            target_params=jnp.copy(params),
            optimizer=self.optimizer.init(params),
            moments=moments.init(params.dtype),
        )

    def initial_memory(self, batch_size: int, /) -> PyTree[Array]:
        return self.model.initial_memory(batch_size)

    def policy(self, params: disco.Params, observation: Any, memory: Any, /) -> tuple[Array, Any]:
        embedding, memory = self.model.embed_step(params, observation, memory)
        return self.model.policy(params, embedding), memory

    def update(self, state: MuesliState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        del key, name
        config = self.config
        trajectory = config.scaled(without_masked_damage(to_trajectory(batch)))

        def batch_loss(params):
            return loss(self.model, params, state.target_params, trajectory, state.moments, config)

        gradients, (after, metrics) = jax.grad(batch_loss, has_aux=True)(state.params)
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        target: Any = optax.incremental_update(params, state.target_params, config.target_rate)
        state = MuesliState(params=params, target_params=target, optimizer=optimizer, moments=after)
        return Update(state, metrics | {"gradient_norm": optax.tree.norm(gradients)})

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return self.config.optimizer(self.learning_rate)


def _tuned(shared: Shared, settings: Settings) -> MuesliConfig:
    agent = with_settings(shared.agent, settings)
    return MuesliConfig(
        **{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
        | {"lifetime": agent.lifetime or shared.budget},
        discount=shared.discount,
        **given(("regularizer_cost", "lambda_"), settings),
    )


MUESLI = Algorithm(
    name="muesli",
    paper="Muesli, Hessel et al. 2021, arXiv 2104.06159",
    presets={"laptop": MuesliConfig(), "paper": PAPER},
    make=functools.partial(make_agent, MuesliAgent),
    observed=with_images_of,
    ranges={
        **SIZES,
        **RULE_RANGES,
        "regularizer_cost": LogUniform(0.1, 10.0),
        "lambda_": TRACES,
    },
    tuned=_tuned,
)

"""Muesli as an agent: it acts by its policy, and an update is a step on the losses."""

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

import disco
from agents import search_space
from agents.latent_model import LatentModel
from agents.loss_agent import LossAgent
from agents.muesli.config import PAPER, MuesliConfig
from agents.muesli.losses import loss
from agents.policy_agent import NetworkState
from agents.protocol import Batch, Requirements, Update
from agents.registry import Algorithm
from agents.rule_agent import to_trajectory
from agents.search_space import CommonSettings, LogUniform, Settings, given
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
class MuesliAgent(LossAgent):
    """Muesli. Its network is a `LatentModel`."""

    @staticmethod
    def network_for(config: MuesliConfig, dynamics: Any) -> LatentModel:
        return LatentModel(
            config.network,
            dynamics,
            frame_stack=config.frame_stack,
            burn_in=config.burn_in,
            num_bins=config.num_bins,
        )

    @property
    def requirements(self) -> Requirements:
        return self.config.requirements(self.network.history)

    def init(self, key: PRNGKeyArray) -> MuesliState:
        state = super().init(key)
        target, initial = jnp.copy(state.params), moments.init(state.params.dtype)
        return MuesliState(**vars(state), target_params=target, moments=initial)

    def update(self, state: MuesliState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        del key, name
        config = self.config
        trajectory = config.scaled(without_masked_damage(to_trajectory(batch)))

        def batch_loss(params):
            return loss(
                self.network, params, state.target_params, state.moments, trajectory, config
            )

        learned, (after, metrics), norm = self.step(state, batch_loss)
        target: Any = optax.incremental_update(
            learned.params, state.target_params, config.target_rate
        )
        learned = dataclasses.replace(learned, target_params=target, moments=after)
        return Update(learned, metrics | norm)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return self.config.optimizer(self.learning_rate)


def _tuned(common: CommonSettings, settings: Settings) -> MuesliConfig:
    agent = common.agent.with_settings(settings)
    return MuesliConfig(
        **{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
        | {"lifetime": agent.lifetime or common.budget},
        discount=common.discount,
        **given(("regularizer_cost", "lambda_"), settings),
    )


MUESLI = Algorithm(
    name="muesli",
    paper="Muesli, Hessel et al. 2021, arXiv 2104.06159",
    presets={"laptop": MuesliConfig(), "paper": PAPER},
    make=MuesliAgent.make,
    ranges={
        **search_space.SIZES,
        **search_space.RULE_RANGES,
        "regularizer_cost": LogUniform(0.1, 10.0),
        "lambda_": search_space.TRACES,
    },
    tuned=_tuned,
)

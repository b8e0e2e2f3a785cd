"""DiCE as an agent: each episode has a temperature, which a vote of bandits chooses."""

import dataclasses
import functools
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
import environments
from agents import search_space
from agents.dice import bandits
from agents.dice.bandits import Bandits
from agents.dice.config import PAPER, DiceConfig
from agents.dice.losses import at_temperature, loss, shaped_reward
from agents.loss_agent import LossAgent
from agents.networks import Network
from agents.optimizers import scheduled_adamw
from agents.policy_agent import NetworkState, some_sequences
from agents.protocol import Batch, Mode, Requirements, Update
from agents.registry import Algorithm
from agents.rule_agent import to_trajectory
from agents.search_space import Choice, CommonSettings, Settings, given
from disco.types import Metrics, without_masked_damage
from disco_common.pytrees import register_dataclass


@chex.dataclass(frozen=True)
class DiceState(NetworkState):
    """The learning state, with the bandits that choose temperatures."""

    bandits: Bandits


@chex.dataclass(frozen=True)
class DiceMemory:
    """What acting carries from step to step.

    Attributes:
      network: the memory of the network; None if it has none.
      inverse_temperature: 1/τ of the episode.
      episode_return: sum of the episode's rewards so far.
    """

    network: PyTree[Array] | None
    inverse_temperature: Float[Array, "*runs B"]
    episode_return: Float[Array, "*runs B"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DiceAgent(LossAgent):
    """DiCE. Its network has the outputs `logits`, advantages that are not centred, and `value`."""

    @staticmethod
    def network_for(config: DiceConfig, dynamics: Any) -> Network:
        shapes = (("logits", (environments.num_actions(dynamics),)), ("value", (1,)))
        return Network(config.network, dynamics, config.frame_stack, config.burn_in, shapes=shapes)

    @property
    def requirements(self) -> Requirements:
        return self.on_policy_requirements(self.config.num_uses // self.config.batch_size)

    def init(self, key: PRNGKeyArray) -> DiceState:
        network_key, bandits_key = jax.random.split(key)
        ensemble = bandits.init(self.config.num_bandits, self.config.num_tiles, bandits_key)
        return DiceState(**vars(super().init(network_key)), bandits=ensemble)

    def acting_state(self, state: DiceState) -> tuple[disco.Params, Bandits]:
        return state.params, state.bandits

    def initial_memory(self, batch_size: int) -> DiceMemory:
        zeros = jnp.zeros(batch_size, jnp.result_type(float))
        return DiceMemory(
            network=self.network.initial_memory(batch_size),
            inverse_temperature=zeros,
            episode_return=zeros,
        )

    def act(
        self,
        acting_state: tuple[disco.Params, Bandits],
        memory: DiceMemory,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[DiceMemory, Array, dict[str, Array]]:
        params, ensemble = acting_state
        choosing, acting = jax.random.split(key)
        starts = timestep.first()
        chosen = self._choose(ensemble, choosing, starts.shape[0], mode)
        inverse = jnp.where(starts, chosen, memory.inverse_temperature)
        dtype = memory.episode_return.dtype
        rewards = memory.episode_return + jnp.asarray(timestep.reward, dtype)
        episode_return = jnp.where(starts, jnp.zeros((), dtype), rewards)
        logits, inner = self.network.policy(params, timestep.observation, memory.network)
        tempered = at_temperature(logits, inverse)
        memory = DiceMemory(
            network=inner, inverse_temperature=inverse, episode_return=episode_return
        )
        extras = {
            "behaviour_logits": tempered,
            "inverse_temperature": inverse,
            "episode_return": episode_return,
        }
        return memory, jax.random.categorical(acting, tempered), extras

    def _choose(
        self, ensemble: Bandits, key: PRNGKeyArray, number: int, mode: Mode
    ) -> Float[Array, "B"]:
        """Return inverse temperatures for episodes."""
        if self.config.exploration == "fixed":
            return jnp.full(number, 1.0 / self.config.temperature, jnp.result_type(float))
        config, choose = self.config, bandits.best
        if mode == Mode.TRAINING or config.exploration == "random":
            choose = functools.partial(bandits.draw, num_candidates=config.candidates)
        keys = jax.random.split(key, number)
        x = jax.vmap(lambda key: choose(ensemble, config.largest_x, key=key))(keys)
        return jnp.expm1(x)

    def update(self, state: DiceState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        """Learn `sample_reuse` times from each sequence, and from the episodes that ended."""
        del name
        config = self.config
        ensemble = state.bandits
        # An episode's last row, whose action has no effect, has its return.
        has_ended = jnp.logical_not(batch.mask).reshape(-1)
        if config.exploration == "bandit":
            x = jnp.log1p(batch.extras["inverse_temperature"]).reshape(-1)
            episode_return = batch.extras["episode_return"].reshape(-1)
            usable = has_ended & jnp.isfinite(episode_return)
            ensemble = bandits.update_all(ensemble, config.largest_x, x, episode_return, usable)
        trajectory = to_trajectory(
            dataclasses.replace(
                batch, memory=None if batch.memory is None else batch.memory.network
            )
        )
        trajectory = without_masked_damage(trajectory)
        if config.shapes_reward:
            reward = shaped_reward(jnp.asarray(trajectory.reward))
            trajectory = dataclasses.replace(trajectory, reward=reward)
        inverse = jnp.asarray(batch.extras["inverse_temperature"])
        permutation = functools.partial(jax.random.permutation, x=config.num_environments)
        order = jax.vmap(permutation)(jax.random.split(key, config.sample_reuse))
        state, metrics = jax.lax.scan(
            lambda state, index: self._step(
                state, some_sequences(trajectory, index), inverse[:, index]
            ),
            dataclasses.replace(state, bandits=ensemble),
            order.reshape(-1, config.batch_size),
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        return Update(state, metrics | {"inverse_temperature": jnp.mean(inverse)})

    def _step(
        self, state: DiceState, trajectory: disco.Trajectory, inverse: Float[Array, "T M"]
    ) -> tuple[DiceState, Metrics]:
        """Make a gradient step on some sequences with these inverse temperatures."""

        def batch_loss(params):
            outputs = self.network.unroll(params, trajectory)
            value = outputs["value"][..., 0]
            return loss(outputs["logits"], value, inverse, trajectory, self.config)

        state, metrics, norm = self.step(state, batch_loss)
        return state, metrics | norm

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """AdamW whose rate and weight decay rise, then fall linearly to 0 (table 5)."""
        config = self.config
        steps = self.requirements.updates[0].gradient_steps
        return scheduled_adamw(
            self.peak_rate,
            num_updates=(config.total_steps or 0) // config.steps_per_update * steps,
            num_warmup=config.warmup,
            weight_decay=config.weight_decay,
            max_gradient_norm=config.max_gradient_norm,
            b2=config.adam_b2,
            eps=config.adam_epsilon,
        )


def _tuned(common: CommonSettings, settings: Settings) -> DiceConfig:
    """Return settings by which an update learns from all sequences of an unroll at once."""
    names = ("sample_reuse", "action_value_cost", "max_inverse_temperature", "lambda_")
    return DiceConfig(
        **search_space.on_policy_settings(common, settings),
        burn_in=common.agent.burn_in,
        batch_size=common.agent.num_environments,
        **given(names, settings),
    )


DICE = Algorithm(
    name="dice",
    paper="DiCE, Xiao et al. 2021, arXiv 2106.00707",
    presets={"laptop": DiceConfig(total_steps=None), "paper": PAPER},
    make=DiceAgent.make,
    ranges={
        **search_space.SIZES,
        "learning_rate": search_space.RATE,
        "sample_reuse": Choice((1, 2, 4), may_be_higher=True),
        # A search down to 0.1 and 0.6 had its best trial at both (docs/measurements/tuning.md).
        "action_value_cost": Choice(
            (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), may_be_lower=True, may_be_higher=True
        ),
        "max_inverse_temperature": Choice((1.0, 2.0, 5.0, 15.0, 50.0), may_be_lower=True),
        "lambda_": Choice((0.2, 0.4, *search_space.TRACES.values), may_be_lower=True),
    },
    tuned=_tuned,
)

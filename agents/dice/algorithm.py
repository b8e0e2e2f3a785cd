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
from agents.dice import bandits
from agents.dice.bandits import Bandits
from agents.dice.losses import PAPER, DiceConfig, at_temperature, loss, shaped_reward
from agents.networks import Network, flat_network
from agents.optimizers import scheduled_adamw
from agents.protocol import Batch, Experience, Mode, Update, UpdateSpec
from agents.registry import Algorithm
from agents.rule_agent import NetworkState, some_sequences, to_trajectory
from agents.search_space import (
    RATE,
    SIZES,
    TRACES,
    Choice,
    Settings,
    Shared,
    given,
    make_agent,
    on_policy_settings,
)
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
class DiceAgent:
    """DiCE (`agents.protocol.Agent`) for discrete actions.

    Its network, of one parameter vector, has the outputs `logits`, the advantages that are not
    centred, and `value`. A `learning_rate` replaces the configuration's.
    """

    config: DiceConfig = dataclasses.field(metadata={"static": True})
    network: Network = dataclasses.field(metadata={"static": True})
    learning_rate: Float[Array, ""] | None = None

    @classmethod
    def create(cls, config: DiceConfig, dynamics: Any) -> "DiceAgent":
        """Make an agent for dynamics, of which only the specs are used; actions are discrete."""
        shapes = (("logits", (environments.num_actions(dynamics),)), ("value", (1,)))
        network = flat_network(config.network, dynamics, shapes, config.frame_stack, config.burn_in)
        return cls(config=config, network=network)

    @property
    def experience(self) -> Experience:
        config = self.config
        return Experience(
            num_environments=config.num_environments,
            unroll_length=config.unroll_length,
            history=self.network.history,
            updates=(
                UpdateSpec(
                    batch_size=config.num_environments,
                    gradient_steps=config.num_uses // config.batch_size,
                ),
            ),
        )

    def init(self, key: PRNGKeyArray) -> DiceState:
        network_key, bandits_key = jax.random.split(key)
        params = self.network.init(network_key)
        return DiceState(
            params=params,
            optimizer=self.optimizer.init(params),
            bandits=bandits.init(self.config.vote, bandits_key),
        )

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
        is_evaluation = mode == Mode.EVALUATION and self.config.exploration == "bandit"
        choose = bandits.best if is_evaluation else bandits.draw
        keys = jax.random.split(key, number)
        # The bandits' number is x = log(1 + 1/τ).
        return jnp.expm1(jax.vmap(lambda key: choose(self.config.vote, ensemble, key))(keys))

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
            ensemble = bandits.update_all(config.vote, ensemble, x, episode_return, usable)
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
        learned, metrics = jax.lax.scan(
            lambda learned, index: self._step(
                learned, some_sequences(trajectory, index), inverse[:, index]
            ),
            (state.params, state.optimizer),
            order.reshape(-1, config.batch_size),
        )
        state = DiceState(params=learned[0], optimizer=learned[1], bandits=ensemble)
        metrics = jax.tree.map(jnp.mean, metrics)
        return Update(state, metrics | {"inverse_temperature": jnp.mean(inverse)})

    def _step(
        self,
        learned: tuple[disco.Params, optax.OptState],
        trajectory: disco.Trajectory,
        inverse: Float[Array, "T M"],
    ) -> tuple[tuple[disco.Params, optax.OptState], Metrics]:
        """Make a gradient step on some sequences with these inverse temperatures."""
        config, (params, optimizer) = self.config, learned

        def batch_loss(params):
            outputs = self.network.unroll(params, trajectory)
            value = outputs["value"][..., 0]
            return loss(outputs["logits"], value, inverse, trajectory, config)

        gradients, metrics = jax.grad(batch_loss, has_aux=True)(params)
        updates, optimizer = self.optimizer.update(gradients, optimizer, params)
        params: Any = optax.apply_updates(params, updates)
        return (params, optimizer), metrics | {"gradient_norm": optax.tree.norm(gradients)}

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """AdamW whose rate and weight decay rise, then fall linearly to 0 (table 5)."""
        config = self.config
        peak: Any = config.learning_rate if self.learning_rate is None else self.learning_rate
        steps = self.experience.updates[0].gradient_steps
        return scheduled_adamw(
            peak,
            num_updates=(config.total_steps or 0) // config.steps_per_update * steps,
            num_warmup=config.warmup,
            weight_decay=config.weight_decay,
            max_gradient_norm=config.max_gradient_norm,
            b2=config.adam_b2,
            eps=config.adam_epsilon,
        )


def _tuned(shared: Shared, settings: Settings) -> DiceConfig:
    """Return settings by which an update learns from all sequences of an unroll at once."""
    names = ("sample_reuse", "action_value_cost", "max_inverse_temperature", "lambda_")
    return DiceConfig(
        **on_policy_settings(shared, settings),
        burn_in=shared.agent.burn_in,
        batch_size=shared.agent.num_environments,
        **given(names, settings),
    )


DICE = Algorithm(
    name="dice",
    paper="DiCE, Xiao et al. 2021, arXiv 2106.00707",
    presets={"laptop": DiceConfig(total_steps=None), "paper": PAPER},
    make=functools.partial(make_agent, DiceAgent),
    ranges={
        **SIZES,
        "learning_rate": RATE,
        "sample_reuse": Choice((1, 2, 4), may_be_higher=True),
        # A search down to 0.1 and 0.6 had its best trial at both (docs/measurements/tuning.md).
        "action_value_cost": Choice(
            (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), may_be_lower=True, may_be_higher=True
        ),
        "max_inverse_temperature": Choice((1.0, 2.0, 5.0, 15.0, 50.0), may_be_lower=True),
        "lambda_": Choice((0.2, 0.4, *TRACES.values), may_be_lower=True),
    },
    tuned=_tuned,
)

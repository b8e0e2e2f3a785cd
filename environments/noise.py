"""Rewards with noise, for any task in JAX."""

import dataclasses
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import JaxEnvironment, ObservationSpec, State, episode_results


@chex.dataclass(frozen=True)
class NoisyTask:
    """A task of other dynamics, and the noise of its rewards.

    Attributes:
      task: of the other dynamics.
      noise: standard deviation of the Gaussian noise that is added to every reward.
    """

    task: Any
    noise: Float[Array, "*tasks"]


@dataclasses.dataclass(frozen=True)
class NoisyRewards:
    """The dynamics of other tasks, with Gaussian noise of mean 0 in every reward.

    What is the best policy, and what returns are expected, stays the same.
    """

    dynamics: JaxEnvironment

    def observation_spec(self) -> ObservationSpec:
        return self.dynamics.observation_spec()

    def action_spec(self) -> specs.DiscreteArray:
        return self.dynamics.action_spec()

    def reset(self, task: NoisyTask, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        return self.dynamics.reset(task.task, key)

    def step(
        self, task: NoisyTask, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        step_key, noise_key = jax.random.split(key)
        state, timestep = self.dynamics.step(task.task, state, action, step_key)
        noise = task.noise * jax.random.normal(noise_key, (), jnp.float32)
        return state, timestep._replace(reward=timestep.reward + noise)

    def results(self, task: NoisyTask, state: State) -> dict[str, Array]:
        """Return what the other dynamics report of an episode."""
        return episode_results(self.dynamics, task.task, state)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a scale of rewards, or of noise, whose logarithm is uniformly distributed."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))

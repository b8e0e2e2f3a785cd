"""Tasks in other encodings: what an agent sees, how rewards are scaled, how actions are numbered.

What is the best behaviour stays the same, so that a rule that is discovered on such tasks cannot
depend on an encoding.
"""

import dataclasses
import math
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from environments.base import JaxEnvironment, ObservationSpec, State, episode_results
from environments.errors import require

NUM_NOISE = 16  # Inputs that say nothing.
KINDS = ("given", "selected", "projected")


@chex.dataclass(frozen=True)
class EncodedTask:
    """A task of other dynamics, and its encoding.

    Attributes:
      task: of the other dynamics.
      encoding: of `selected` for each input which of the values it is; of `projected` a matrix from
        the values to the inputs; of `given` nothing.
      reward_scale: factor of all rewards.
      actions: for each action, which of the other dynamics' it is.
    """

    task: Any
    encoding: Shaped[Array, "*encoding"]
    reward_scale: Float[Array, "*tasks"]
    actions: Int[Array, "*tasks actions"]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The dynamics of other tasks, in an encoding.

    With n values x in an observation of the other dynamics, the observation is

    - `given`: that of the other dynamics;
    - `selected`: float32 `[size]`, each of which is one of x, 1 - x, and `NUM_NOISE` standard
      Gaussian numbers that are new in each step: a permutation with few of them, a large encoding
      of which half is 1 where x are 0 and 1, or distracting inputs;
    - `projected`: float32 `[size]`, a linear map of x.

    Attributes:
      dynamics: of the other tasks.
      kind: `given`, `selected` or `projected`.
      size: inputs; 0 with `given`.

    Raises:
      ValueError: if there is no such kind, or the size does not fit it.
    """

    dynamics: JaxEnvironment
    kind: str = "given"
    size: int = 0

    def __post_init__(self):
        require(self.kind in KINDS, f"Encoded.kind must be one of {KINDS}, found {self.kind!r}.")
        require(
            (self.size > 0) == (self.kind != "given"),
            f"Encoded.size must be above 0, or 0 with 'given', found {self.size}.",
        )

    @property
    def num_values(self) -> int:
        """Numbers in an observation of the other dynamics."""
        return sum(math.prod(spec.shape) for spec in self._specs())

    def _specs(self) -> list[specs.Array]:
        spec = self.dynamics.observation_spec()
        return list(spec.values()) if isinstance(spec, dict) else [spec]

    def observation_spec(self) -> ObservationSpec:
        if self.kind == "given":
            return self.dynamics.observation_spec()
        return specs.Array((self.size,), np.float32, name=self.kind)

    def action_spec(self) -> specs.DiscreteArray:
        return self.dynamics.action_spec()

    def reset(self, task: EncodedTask, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        own, noise = jax.random.split(key)
        state, timestep = self.dynamics.reset(task.task, own)
        return state, self._encoded(task, timestep, noise)

    def step(
        self, task: EncodedTask, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        own, noise = jax.random.split(key)
        state, timestep = self.dynamics.step(task.task, state, task.actions[action], own)
        return state, self._encoded(task, timestep, noise)

    def _encoded(
        self, task: EncodedTask, timestep: dm_env.TimeStep, key: PRNGKeyArray
    ) -> dm_env.TimeStep:
        timestep = timestep._replace(reward=task.reward_scale * timestep.reward)
        if self.kind == "given":
            return timestep
        leaves = jax.tree.leaves(timestep.observation)
        values = jnp.concatenate([x.astype(jnp.float32).ravel() for x in leaves])
        if self.kind == "selected":
            noise = jax.random.normal(key, (NUM_NOISE,), jnp.float32)
            encoded = jnp.concatenate([values, 1.0 - values, noise])[task.encoding]
        else:
            encoded = values @ task.encoding
        return timestep._replace(observation=encoded)

    def results(self, task: EncodedTask, state: State) -> dict[str, Array]:
        """Return what the other dynamics report of an episode."""
        return episode_results(self.dynamics, task.task, state)

    def draw(
        self, rng: np.random.Generator, task: Any, reward_scale: float, noise: float = 0.0
    ) -> EncodedTask:
        """Draw the encoding of a task.

        Args:
          rng: of the encoding and of the order of actions.
          task: of the other dynamics.
          reward_scale: factor of all rewards.
          noise: of `selected`, the part of the inputs that are noise. The others are all values,
            and if there are more inputs values and complements at random.
        """
        number, actions = self.num_values, self.action_spec().num_values
        encoding: Any = np.zeros(0, np.float32)
        if self.kind == "projected":
            encoding = rng.normal(size=(number, self.size)) / np.sqrt(number)
        elif self.kind == "selected":
            num_noise = round(noise * self.size)
            require(
                self.size - num_noise >= number,
                f"Encoded.size must be at least {number + num_noise}, found {self.size}.",
            )
            more = rng.integers(0, 2 * number, self.size - num_noise - number)
            of_noise = 2 * number + rng.integers(0, NUM_NOISE, num_noise)
            encoding = rng.permutation(np.concatenate([np.arange(number), more, of_noise]))
        dtype = jnp.int32 if self.kind == "selected" else jnp.float32
        return EncodedTask(
            task=task,
            encoding=jnp.asarray(encoding, dtype),
            reward_scale=jnp.float32(reward_scale),
            actions=jnp.asarray(rng.permutation(actions), jnp.int32),
        )

"""An environment whose every number is known beforehand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from environments.base import restart, transition


@dataclasses.dataclass(frozen=True)
class Corridor:
    """Episodes of `length` steps that pay 1, 2, 3, ...; the task says whether they terminate.

    The observation is the step's number, and a random number that tells apart all states.
    """

    length: int = 3

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2)

    def reset(self, task, key):
        return jnp.int32(0), restart(self._observe(jnp.int32(0), key))

    def step(self, task, state, action, key):
        state = state + 1
        at_end = state == self.length
        return state, transition(
            self._observe(state, key),
            state.astype(jnp.float32),
            terminated=at_end & task,
            truncated=at_end & ~task,
        )

    def _observe(self, state, key):
        return jnp.stack([state.astype(jnp.float32), jax.random.uniform(key)])

"""An environment whose every number is known beforehand, inside JAX and outside."""

import dataclasses
from functools import partial

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from environments.base import restart, transition
from environments.processes import SerialSimulators


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


class HostCorridor(dm_env.Environment):
    """The same outside JAX, of one instance."""

    def __init__(self, length: int, terminates: bool, seed: int):
        self._length, self._terminates = length, terminates
        self._random = np.random.default_rng(seed)
        self._at = 0

    def reset(self):
        self._at = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._at += 1
        if self._at < self._length:
            return dm_env.transition(float(self._at), self._observe())
        end = dm_env.termination if self._terminates else partial(dm_env.truncation, discount=1.0)
        return end(float(self._at), self._observe())

    def episode_results(self):
        return {"reached": float(self._at)}

    def observation_spec(self):
        return Corridor().observation_spec()

    def action_spec(self):
        return Corridor().action_spec()

    def _observe(self):
        return np.array([self._at, self._random.uniform()], np.float32)


@dataclasses.dataclass(frozen=True)
class HostCorridors:
    """Many of them; the task is whether they terminate."""

    length: int = 3

    def observation_spec(self):
        return Corridor().observation_spec()

    def action_spec(self):
        return Corridor().action_spec()

    def start(self, task, batch_size, seed, workers=None):
        del workers
        return SerialSimulators(
            partial(HostCorridor, self.length, task),
            self.observation_spec(),
            self.action_spec(),
            batch_size,
            seed,
            result_names=("reached",),
        )

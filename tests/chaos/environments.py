"""Environments that fall ill: `sick/catch` inside JAX, `corridor/well` and `corridor/nan` outside.

The registry knows them once this module is imported.
"""

import dataclasses
import sys
from functools import partial
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from environments import registry
from environments.base import Environment, Simulators
from environments.processes import ProcessSimulators
from environments.suites.catch import Catch
from tests.agents.common import Corridor, HostCorridor

WELL, NAN_REWARD, NAN_OBSERVATION = range(3)
NAN_EVERY = 60  # Steps of a simulator: some meta-steps.


@chex.dataclass(frozen=True)
class SickState:
    inner: Any
    sickness: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Sick:
    """Catch, whose state tells whether it is well. A new episode always is."""

    inner: Catch = Catch(rows=4, columns=3)

    def observation_spec(self):
        return self.inner.observation_spec()

    def action_spec(self):
        return self.inner.action_spec()

    def reset(self, task, key):
        state, timestep = self.inner.reset(task, key)
        return SickState(inner=state, sickness=jnp.int32(WELL)), timestep

    def step(self, task, state, action, key):
        inner, timestep = self.inner.step(task, state.inner, action, key)
        has_no_reward = state.sickness == NAN_REWARD
        has_no_observation = state.sickness == NAN_OBSERVATION
        return SickState(inner=inner, sickness=state.sickness), timestep._replace(
            reward=jnp.where(has_no_reward, jnp.nan, timestep.reward),
            observation=jnp.where(has_no_observation, jnp.nan, timestep.observation),
        )


class SickCorridor(HostCorridor):
    """A corridor that pays NaN now and then, if it is not well."""

    def __init__(self, task: str, seed: int):
        super().__init__(3, True, seed)
        self._is_well, self._steps = task == "well", 0

    def step(self, action):
        self._steps += 1
        timestep = super().step(action)
        if self._is_well or self._steps % NAN_EVERY:
            return timestep
        return timestep._replace(reward=np.nan)


@dataclasses.dataclass(frozen=True)
class Corridors:
    """Corridors in processes of their own; the task is `"well"` or `"nan"`."""

    def observation_spec(self):
        return Corridor().observation_spec()

    def action_spec(self):
        return Corridor().action_spec()

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        return ProcessSimulators(
            partial(SickCorridor, task),
            self.observation_spec(),
            self.action_spec(),
            batch_size,
            seed,
            result_names=("reached",),
            num_processes=workers,
        )


def make_sick(parameters: str) -> Environment:
    return Environment(f"sick/{parameters}", Sick())


def make_corridor(parameters: str) -> Environment:
    return Environment(f"corridor/{parameters}", Corridors(), parameters)


# As if this module were one of the suites'.
sys.modules["environments.suites.chaos"] = sys.modules[__name__]
registry._FAMILIES["sick"] = registry._Family("chaos", "make_sick")
registry._FAMILIES["corridor"] = registry._Family("chaos", "make_corridor", is_host=True)

"""Environments that can return NaN: `faulty/catch` in JAX, `corridor/nan` outside JAX.

`corridor/well` does not. All are registered when this module is imported.
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
from environments.suites.small_tasks import Catch
from tests.agents.common import Corridor, HostCorridor

NO_FAULT, NAN_REWARD, NAN_OBSERVATION = range(3)
NAN_EVERY = 60  # Steps of a simulator: some meta-steps.


@chex.dataclass(frozen=True)
class FaultyState:
    inner: Any
    fault: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class FaultyCatch:
    """Catch with a fault in its state, which makes it return NaN. A new episode has no fault."""

    inner: Catch = Catch(rows=4, columns=3)

    def observation_spec(self):
        return self.inner.observation_spec()

    def action_spec(self):
        return self.inner.action_spec()

    def reset(self, task, key):
        state, timestep = self.inner.reset(task, key)
        return FaultyState(inner=state, fault=jnp.int32(NO_FAULT)), timestep

    def step(self, task, state, action, key):
        inner, timestep = self.inner.step(task, state.inner, action, key)
        has_no_reward = state.fault == NAN_REWARD
        has_no_observation = state.fault == NAN_OBSERVATION
        return FaultyState(inner=inner, fault=state.fault), timestep._replace(
            reward=jnp.where(has_no_reward, jnp.nan, timestep.reward),
            observation=jnp.where(has_no_observation, jnp.nan, timestep.observation),
        )


class FaultyCorridor(HostCorridor):
    """A corridor whose reward is NaN every `NAN_EVERY` steps, unless the task is `"well"`."""

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
        make = partial(FaultyCorridor, task)
        return ProcessSimulators(make, self, batch_size, seed, ("reached",), workers)


def make(name: str) -> Environment:
    family, _, task = name.partition("/")
    if family == "faulty":
        return Environment(name, FaultyCatch())
    return Environment(name, Corridors(), task)


# As if this module were two of the suites'.
for family in ("faulty", "corridor"):
    sys.modules[f"environments.suites.{family}"] = sys.modules[__name__]
    registry._MODULES[family] = registry._Module(
        family, has_parameters=True, is_host=family == "corridor"
    )

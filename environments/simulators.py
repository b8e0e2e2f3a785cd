"""Simulators of any environment: JAX ones, too, can be stepped from outside of JAX."""

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import dm_env
import jax
import numpy as np

from environments.base import (
    Environment,
    HostEnvironment,
    JaxEnvironment,
    Simulators,
    Task,
    episode_results,
    stream,
)


def start(
    environment: Environment, batch_size: int, seed: int, workers: int | None = None
) -> Simulators:
    """Starts `batch_size` simulators of an environment, whatever its kind.

    For agents that are not compiled together with their environment. Stepping a JAX environment
    from here is a call of a compiled function per step, a fraction of a millisecond; the arrays
    that it returns can be read only.

    Args:
      environment: which.
      batch_size: simulators.
      seed: of all their randomness.
      workers: see `HostEnvironment.start`; a JAX environment has none.

    Raises:
      SimulatorError: if one cannot be started.
    """
    dynamics = environment.dynamics
    if isinstance(dynamics, HostEnvironment):
        return dynamics.start(environment.task, batch_size, seed, workers)
    return JaxSimulators(dynamics, environment.task, batch_size, seed)


def seed_of(task: str, seed: int, first: int) -> int:
    """A seed of simulators that no other task, run or continuation of one has.

    Args:
      task: its name.
      seed: of the run.
      first: the update or step with which it begins, or goes on.
    """
    address = (zlib.crc32(task.encode()), seed, first)
    return int(np.random.SeedSequence(address).generate_state(1)[0] % 2**31)


class JaxSimulators:
    """Simulators (see `environments.Simulators`) of a JAX environment, on the default device."""

    def __init__(self, dynamics: JaxEnvironment, task: Task, batch_size: int, seed: int):
        """Compiles when it is first stepped.

        Args:
          dynamics: of the environment.
          task: which of its family.
          batch_size: simulators.
          seed: of all their randomness.
        """
        self.batch_size, self.restarts = batch_size, 0
        self._dynamics, self._task = dynamics, task
        self._key, self._steps = jax.random.key(seed), 0
        self._state, self._timestep, self._results = None, None, {}

    @property
    def results(self) -> Mapping[str, np.ndarray]:
        return self._results

    def reset(self) -> dm_env.TimeStep:
        started = _reset(self._dynamics, self.batch_size, self._task, self._next_key())
        return self._follow(*started)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        if self._state is None:
            raise ValueError("Simulators were stepped before a reset; expected a reset.")
        action = np.asarray(action, np.int32)
        stepped = _step(
            self._dynamics, self._task, self._state, self._timestep, action, self._next_key()
        )
        return self._follow(*stepped)

    def close(self) -> None:
        self._state = None

    def snapshot(self) -> Any:
        """All that what follows depends on, after a reset: a pytree of arrays."""
        return {"state": self._state, "timestep": self._timestep, "steps": np.int64(self._steps)}

    def resume(self, snapshot: Any) -> dm_env.TimeStep:
        """Goes back to a snapshot of simulators of the same seed; the time step it was taken at."""
        self._steps = int(snapshot["steps"])
        return self._follow(snapshot["state"], snapshot["timestep"], {})

    def _next_key(self):
        self._steps += 1
        return jax.random.fold_in(self._key, self._steps)

    def _follow(self, state, timestep, results) -> dm_env.TimeStep:
        self._state, self._timestep = state, timestep
        timestep, self._results = jax.device_get((timestep, results))
        return timestep


@functools.partial(jax.jit, static_argnums=(0, 1))
def _reset(dynamics: JaxEnvironment, batch_size: int, task: Task, key):
    def one(key):
        state, timestep = dynamics.reset(task, key)
        return state, timestep, episode_results(dynamics, task, state)

    return jax.vmap(one)(jax.random.split(key, batch_size))


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: JaxEnvironment, task: Task, state, previous: dm_env.TimeStep, action, key):
    def one(state, previous, action, key):
        state, timestep = stream(dynamics, task, state, previous, action, key)
        return state, timestep, episode_results(dynamics, task, state)

    return jax.vmap(one)(state, previous, action, jax.random.split(key, action.shape[0]))

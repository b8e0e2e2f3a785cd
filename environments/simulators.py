"""Simulators of any environment; they step JAX environments from outside JAX."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping

import dm_env
import jax
import numpy as np

from environments.base import (
    Environment,
    HostEnvironment,
    JaxEnvironment,
    Simulators,
    TaskParams,
    episode_results,
    stream,
)
from environments.output_checks import require_declared_outputs


def start(
    environment: Environment, batch_size: int, seed: int, workers: int | None = None
) -> Simulators:
    """Start `batch_size` simulators of an environment of either kind.

    For agents that are not compiled together with their environment. Each step of a JAX
    environment is then a call of a compiled function, a fraction of a millisecond; the arrays
    that it returns are read-only.

    `workers` are as in `HostEnvironment.start`; a JAX environment has none.

    Raises:
      OutputError: if the environment returns something else than it declares.
      SimulatorError: if one cannot be started.
    """
    require_declared_outputs(environment)
    dynamics = environment.dynamics
    if isinstance(dynamics, HostEnvironment):
        return dynamics.start(environment.params, batch_size, seed, workers)
    return JaxSimulators(dynamics, environment.params, batch_size, seed)


def seed_of(task: str, seed: int, first: int) -> int:
    """Return a seed of simulators, different for each task's name, run's seed and continuation.

    `first` is the update or step with which the run starts, or continues.
    """
    address = (zlib.crc32(task.encode()), seed, first)
    return int(np.random.SeedSequence(address).generate_state(1)[0] % 2**31)


class JaxSimulators:
    """`environments.Simulators` of a JAX environment, on the default device."""

    def __init__(self, dynamics: JaxEnvironment, task: TaskParams, batch_size: int, seed: int):
        """Prepare the simulators; the first reset and the first step compile them."""
        self.batch_size, self.restarts = batch_size, 0
        self._dynamics, self._task = dynamics, task
        self._key, self._steps = jax.random.key(seed), 0
        self._state, self._timestep = None, None
        self.results: Mapping[str, np.ndarray] = {}

    def reset(self) -> dm_env.TimeStep:
        started = _reset(self._dynamics, self.batch_size, self._task, self._next_key())
        return self._set(*started)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        if self._state is None:
            raise ValueError("Simulators were stepped before a reset; expected a reset.")
        action = np.asarray(action, np.int32)
        stepped = _step(
            self._dynamics, self._task, self._state, self._timestep, action, self._next_key()
        )
        return self._set(*stepped)

    def close(self) -> None:
        self._state = None

    def _next_key(self):
        self._steps += 1
        return jax.random.fold_in(self._key, self._steps)

    def _set(self, state, timestep, results) -> dm_env.TimeStep:
        self._state, self._timestep = state, timestep
        timestep, self.results = jax.device_get((timestep, results))
        return timestep


@functools.partial(jax.jit, static_argnums=(0, 1))
def _reset(dynamics: JaxEnvironment, batch_size: int, task: TaskParams, key):
    def one(key):
        state, timestep = dynamics.reset(task, key)
        return state, timestep, episode_results(dynamics, task, state)

    return jax.vmap(one)(jax.random.split(key, batch_size))


@functools.partial(jax.jit, static_argnums=0)
def _step(
    dynamics: JaxEnvironment, task: TaskParams, state, previous: dm_env.TimeStep, action, key
):
    def one(state, previous, action, key):
        state, timestep = stream(dynamics, task, state, previous, action, key)
        return state, timestep, episode_results(dynamics, task, state)

    return jax.vmap(one)(state, previous, action, jax.random.split(key, action.shape[0]))


@dataclasses.dataclass(frozen=True)
class Episode:
    """The undiscounted return, the steps, and the suite's own results of an episode that ended."""

    episode_return: float
    length: int
    results: Mapping[str, float]


class EpisodeTracker:
    """The progress of the episodes of a batch of simulators.

    Attributes:
      ended: whether each simulator's last time step was LAST, `[B]`.
      age: steps since the start of each simulator's episode, `[B]`.
    """

    def __init__(self, batch_size: int):
        """Start before the first step of all simulators."""
        self.ended = np.zeros(batch_size, bool)
        self.age = np.zeros(batch_size, np.int32)
        self._return = np.zeros(batch_size, np.float64)
        self._restarts = 0

    def follow(
        self, timestep: dm_env.TimeStep, results: Mapping[str, np.ndarray], restarts: int
    ) -> list[Episode]:
        """Update the progress by a step, and return the episodes that ended with it.

        No episode is returned if `restarts`, the number of simulators that died, has grown: some
        episodes were then truncated by the restart, and their returns are not the agent's.
        """
        died, self._restarts = restarts > self._restarts, restarts
        started, self.ended = self.ended, timestep.step_type == dm_env.StepType.LAST
        self._return = np.where(started, 0.0, self._return) + timestep.reward
        self.age = np.where(started, 0, self.age + 1).astype(np.int32)
        if died:
            return []
        return [
            Episode(
                episode_return=float(self._return[i]),
                length=int(self.age[i]),
                results={name: float(x[i]) for name, x in results.items()},
            )
            for i in np.flatnonzero(self.ended)
        ]

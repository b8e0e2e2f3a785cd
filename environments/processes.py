"""Batches of simulators written in Python: in this thread, or in worker processes."""

import itertools
import os
import time
import traceback
from collections.abc import Mapping
from multiprocessing.sharedctypes import RawArray

import dm_env
import numpy as np
from absl import logging

from disco_common import stopping
from environments.base import HostEnvironment
from environments.errors import OutputError, SimulatorError, simulator_failed
from environments.workers import (
    STEPS_OF_PROGRESS,
    Isolated,
    Make,
    SharedBatch,
    Worker,
    advance,
    generators_kept,
    use_short_folder,
)

_ANSWER_SECONDS = 300.0
_SECONDS_TO_CLOSE, _SECONDS_IN_HASTE = 5.0, 1.0
# A worker may die any number of times in a long run, but no more than this many times in a row
# without progress.
_MOST_DEATHS = 3
_GUARD = (
    "Its own message stands above. Worker processes import the main script, whose work must stand"
    ' under `if __name__ == "__main__":`.'
)


class _BatchSimulators:
    """Simulators that write their time steps into the arrays of a `SharedBatch`, at a command."""

    def __init__(self, batch: SharedBatch, batch_size: int):
        self.batch_size, self.restarts = batch_size, 0
        self._batch = batch
        self.results: Mapping[str, np.ndarray] = batch.results

    def reset(self) -> dm_env.TimeStep:
        self._exchange("reset")
        return self._batch.timestep()

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        self._batch.action[...] = action
        self._exchange("step")
        return self._batch.timestep()

    def _exchange(self, command: str) -> None:
        raise NotImplementedError


class SerialSimulators(_BatchSimulators):
    """Simulators stepped in sequence, in this thread: for steps that take microseconds."""

    def __init__(
        self,
        make: Make,
        dynamics: HostEnvironment,
        batch_size: int,
        seed: int,
        result_names: tuple[str, ...] = (),
    ):
        """Make the simulators, with consecutive seeds."""
        super().__init__(SharedBatch(*_layout(dynamics, result_names, batch_size)), batch_size)
        with generators_kept():
            self._simulators = [Isolated(make, seed + i) for i in range(batch_size)]

    def close(self) -> None:
        for simulator in self._simulators:
            simulator.close()
        self._simulators = []

    def _exchange(self, command: str) -> None:
        try:
            with generators_kept():
                advance(self._simulators, self._batch, 0, command)
        except OutputError:
            raise
        except Exception as error:  # The simulators'.
            raise simulator_failed("", traceback.format_exc()) from error


class ProcessSimulators(_BatchSimulators):
    """Simulators in worker processes, several in each; arrays pass through shared memory.

    A worker that dies, or whose simulator raises an `EngineDiedError`, is replaced: the episodes of
    its simulators are truncated, and new ones start. When it dies three times in a row, each time
    within 1000 steps of its start, `SimulatorError` is raised. After any other exception of a
    simulator it is not replaced; the error includes the traceback.
    """

    def __init__(
        self,
        make: Make,
        dynamics: HostEnvironment,
        batch_size: int,
        seed: int,
        result_names: tuple[str, ...] = (),
        num_processes: int | None = None,
        patience: float = _ANSWER_SECONDS,
    ):
        """Start the workers and their simulators, which have consecutive seeds.

        `num_processes` is by default one per processor, and no more than simulators. A worker that
        does not answer for `patience` seconds counts as dead.

        Raises:
          SimulatorError: if a simulator cannot be made.
          ValueError: if there is no worker.
        """
        if num_processes is not None and num_processes < 1:
            raise ValueError(f"num_processes is {num_processes}; expected at least 1.")
        self._patience, self._is_closed = patience, False
        num_processes = min(batch_size, num_processes or available_processors())
        use_short_folder()
        layout = _layout(dynamics, result_names, batch_size)
        # Unlike `SharedMemory`, this stays allocated while any array uses it, even after `close`.
        memory = RawArray("b", SharedBatch(*layout).size)
        super().__init__(SharedBatch(*layout, buffer=memoryview(memory)), batch_size)
        bounds = np.linspace(0, batch_size, num_processes + 1).round().astype(int).tolist()
        self._workers = [
            Worker(make, memory, layout, seed, first, last)
            for first, last in itertools.pairwise(bounds)
        ]
        try:
            self._exchange("start")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_closed = True
        for worker in self._workers:
            worker.hang_up()
        patience = _SECONDS_IN_HASTE if stopping.is_requested() else _SECONDS_TO_CLOSE
        end = time.monotonic() + patience  # Of all of them together.
        for worker in self._workers:
            worker.stop(max(0.0, end - time.monotonic()))
        self._workers = []

    def _exchange(self, command: str) -> None:
        """Send all workers a command, and wait until each has finished it."""
        had_ended = self._batch.step_type == dm_env.StepType.LAST
        for worker in self._workers:
            worker.send(command)
        for worker in self._workers:
            if died := self._wait(worker):
                self._replace(worker, command, died, had_ended)
            worker.steps += 1

    def _wait(self, worker: Worker, is_new: bool = False) -> str | None:
        """Wait for a worker's answer. Return how it died, or None."""
        died = worker.wait(self._patience)
        if self._is_closed:  # By another thread, which closes all workers but a new one.
            if is_new:
                worker.stop(0.0)
            raise SimulatorError("The simulators were closed during a step.")
        return died

    def _replace(
        self, worker: Worker, command: str, died: str | None, had_ended: np.ndarray
    ) -> None:
        whose = (
            f"A worker process with simulators {worker.first} to {worker.last - 1} of"
            f" {self.batch_size}"
        )
        if command == "start":
            hint = f" {_GUARD}" if worker.failed_by_itself else ""
            raise SimulatorError(f"{whose} {died}.{hint}")
        if stopping.is_requested():  # Whoever asked this process may have ended the worker, too.
            raise SimulatorError(f"{whose} {died} while this process stops.")
        mine = slice(worker.first, worker.last)
        last, mid = dm_env.StepType.LAST, dm_env.StepType.MID
        while died:
            if worker.count_death() >= _MOST_DEATHS:
                raise SimulatorError(
                    f"{whose} {died} again, after it had been replaced {_MOST_DEATHS - 1} times,"
                    f" each time within {STEPS_OF_PROGRESS} steps."
                )
            logging.warning("%s %s: it is started again, and their episodes are cut.", whose, died)
            self.restarts += 1
            # It may have died after some of its simulators had taken the step.
            self._batch.step_type[mine] = np.where(had_ended[mine], last, mid)
            worker.restart()
            for order in ("start", "reset" if command == "reset" else "continue"):
                worker.send(order)
                if died := self._wait(worker, is_new=True):
                    break


def _layout(dynamics: HostEnvironment, result_names: tuple[str, ...], batch_size: int) -> tuple:
    """Return the arguments of a `SharedBatch`."""
    return dynamics.observation_spec(), dynamics.action_spec(), result_names, batch_size


def available_processors() -> int:
    """Return the number of processors that this process may use.

    The environment variable DISCO_PROCESSORS sets an upper limit, for jobs that share a machine.

    Raises:
      ValueError: if the variable is not a whole number from 1.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # Not on every system.
    number = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    most = os.environ.get("DISCO_PROCESSORS", str(number))
    if not most.isdigit() or int(most) < 1:
        raise ValueError(f"DISCO_PROCESSORS is {most!r}; expected a whole number from 1.")
    return min(number, int(most))

"""Batches of simulators written in Python: in this thread, or in worker processes.

Each simulator is a `dm_env.Environment`. It may have a method `episode_results()`, which returns
numbers by name for the episode so far and is called at its end.
"""

import contextlib
import importlib.machinery
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any

import dm_env
import numpy as np
from absl import logging
from dm_env import specs

from environments.base import ObservationSpec
from environments.errors import EngineDiedError, SimulatorError

Make = Callable[[int], dm_env.Environment]
"""Makes a simulator of a seed. Pickled for worker processes: a function of a module, or a
`functools.partial` of one."""

_ANSWER_SECONDS = 300.0
# A worker may die any number of times in a long run, but no more than this many times in a row
# before it has made that many steps.
_MOST_DEATHS, _STEPS_OF_PROGRESS = 3, 1000
_ENGINE_DIED = "engine died: "
_GUARD = (
    "Its own message stands above. Worker processes import the main script, whose work must stand"
    ' under `if __name__ == "__main__":`.'
)


class _Batch:
    """The last time step of each simulator, in arrays of one layout.

    Attributes:
      observation: leaves `[B, ...]`, by name; one of the name "" if it is a single array.
      step_type, reward, discount, action, results: `[B, ...]`.
    """

    def __init__(
        self,
        observation_spec: ObservationSpec,
        action_spec: specs.Array,
        result_names: tuple[str, ...],
        batch_size: int,
        buffer: memoryview | None = None,
    ):
        """Lay out the arrays in a buffer of `size` bytes, or in new memory."""
        leaves = observation_spec if isinstance(observation_spec, dict) else {"": observation_spec}
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            f"observation/{name}": (spec.shape, spec.dtype) for name, spec in leaves.items()
        }
        shapes |= {
            "step_type": ((), np.int32),
            "reward": ((), np.float32),
            "discount": ((), np.float32),
            "action": (action_spec.shape, action_spec.dtype),
        }
        shapes |= {f"results/{name}": ((), np.float32) for name in result_names}
        sizes = {
            key: batch_size * int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
            for key, (shape, dtype) in shapes.items()
        }
        self.size = sum(_aligned(size) for size in sizes.values())
        buffer = memoryview(bytearray(self.size)) if buffer is None else buffer
        arrays, offset = {}, 0
        for key, (shape, dtype) in shapes.items():
            arrays[key] = np.ndarray((batch_size, *shape), dtype, buffer, offset)
            offset += _aligned(sizes[key])
        self.observation = {name: arrays[f"observation/{name}"] for name in leaves}
        self.results = {name: arrays[f"results/{name}"] for name in result_names}
        self.step_type, self.reward = arrays["step_type"], arrays["reward"]
        self.discount, self.action = arrays["discount"], arrays["action"]

    def write(self, index: int, timestep: dm_env.TimeStep, simulator: dm_env.Environment) -> None:
        """Store a simulator's time step."""
        self.step_type[index] = timestep.step_type
        self.reward[index] = 0.0 if timestep.reward is None else timestep.reward
        self.discount[index] = 1.0 if timestep.discount is None else timestep.discount
        if "" in self.observation:
            self.observation[""][index] = timestep.observation
        else:
            for name, array in self.observation.items():
                array[index] = timestep.observation[name]
        if self.results and timestep.last():
            results = simulator.episode_results()  # pyright: ignore[reportAttributeAccessIssue]
            for name, array in self.results.items():
                array[index] = results[name]

    def truncate(self, index: int) -> None:
        """Truncate an episode whose simulator died. Its results are unknown, and set to 0."""
        self.step_type[index] = dm_env.StepType.LAST
        self.reward[index] = 0.0
        self.discount[index] = 1.0
        for array in self.results.values():
            array[index] = 0.0

    def timestep(self) -> dm_env.TimeStep:
        """Return the time steps as one, with a leading batch axis."""
        is_single = "" in self.observation
        return dm_env.TimeStep(
            step_type=self.step_type,
            reward=self.reward,
            discount=self.discount,
            observation=self.observation[""] if is_single else self.observation,
        )


def _advance(simulators: list[dm_env.Environment], batch: _Batch, first: int, command: str) -> None:
    """Reset or step simulators numbered from `first`, or continue after their process died."""
    for index, simulator in enumerate(simulators, first):
        if command == "reset" or batch.step_type[index] == dm_env.StepType.LAST:
            batch.write(index, simulator.reset(), simulator)
        elif command == "step":
            batch.write(index, simulator.step(batch.action[index]), simulator)
        else:
            batch.truncate(index)


class SerialSimulators:
    """Simulators stepped in sequence, in this thread: for steps that take microseconds."""

    def __init__(
        self,
        make: Make,
        observation_spec: ObservationSpec,
        action_spec: specs.Array,
        batch_size: int,
        seed: int,
        result_names: tuple[str, ...] = (),
    ):
        """Make the simulators, with consecutive seeds."""
        self.batch_size, self.restarts = batch_size, 0
        self._batch = _Batch(observation_spec, action_spec, result_names, batch_size)
        self._simulators = [make(seed + i) for i in range(batch_size)]
        self.results: Mapping[str, np.ndarray] = self._batch.results

    def reset(self) -> dm_env.TimeStep:
        """See `Simulators`."""
        _advance(self._simulators, self._batch, 0, "reset")
        return self._batch.timestep()

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """See `Simulators`."""
        self._batch.action[...] = action
        _advance(self._simulators, self._batch, 0, "step")
        return self._batch.timestep()

    def close(self) -> None:
        """See `Simulators`."""
        for simulator in self._simulators:
            simulator.close()
        self._simulators = []


class ProcessSimulators:
    """Simulators in worker processes, several in each; arrays pass through shared memory.

    A worker that dies, or whose simulator raises an `EngineDiedError`, is replaced: the episodes of
    its simulators are truncated, and new ones start. When it dies three times in a row, each time
    within 1000 steps of its start, `SimulatorError` is raised. After any other exception of a
    simulator it is not replaced; the error includes the traceback.
    """

    def __init__(
        self,
        make: Make,
        observation_spec: ObservationSpec,
        action_spec: specs.Array,
        batch_size: int,
        seed: int,
        result_names: tuple[str, ...] = (),
        num_processes: int | None = None,
        patience: float = _ANSWER_SECONDS,
    ):
        """Start the workers and their simulators, which have consecutive seeds.

        Args:
          make: see `Make`.
          observation_spec: of each simulator.
          action_spec: of each simulator.
          batch_size: number of simulators.
          seed: of the first simulator.
          result_names: the names that `episode_results` returns.
          num_processes: workers; by default one per processor, and no more than simulators.
          patience: seconds after which a worker that does not answer counts as dead.

        Raises:
          SimulatorError: if a simulator cannot be made.
        """
        self.batch_size, self.restarts = batch_size, 0
        self._patience, self._is_closed = patience, False
        num_processes = min(batch_size, num_processes or available_processors())
        layout = (observation_spec, action_spec, result_names, batch_size)
        # Unlike `SharedMemory`, this stays allocated while any array uses it, even after `close`.
        memory = RawArray("b", _Batch(*layout).size)
        self._batch = _Batch(*layout, buffer=memoryview(memory))
        self.results: Mapping[str, np.ndarray] = self._batch.results
        bounds = np.linspace(0, batch_size, num_processes + 1).round().astype(int).tolist()
        self._workers = [
            _Worker(make, memory, layout, seed, first, last)
            for first, last in itertools.pairwise(bounds)
        ]
        try:
            self._exchange("start")
        except BaseException:
            self.close()
            raise

    def reset(self) -> dm_env.TimeStep:
        """See `Simulators`."""
        self._exchange("reset")
        return self._batch.timestep()

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """See `Simulators`."""
        self._batch.action[...] = action
        self._exchange("step")
        return self._batch.timestep()

    def close(self) -> None:
        """See `Simulators`."""
        self._is_closed = True
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _exchange(self, command: str) -> None:
        """Send all workers a command, and wait until each has finished it."""
        had_ended = self._batch.step_type == dm_env.StepType.LAST
        for worker in self._workers:
            worker.send(command)
        for worker in self._workers:
            died = worker.wait(self._patience)
            if self._is_closed:  # By another thread.
                raise SimulatorError("The simulators were closed during a step.")
            if died:
                self._replace(worker, command, died, had_ended)
            worker.steps += 1

    def _replace(
        self, worker: "_Worker", command: str, died: str | None, had_ended: np.ndarray
    ) -> None:
        whose = (
            f"A worker process with simulators {worker.first} to {worker.last - 1} of"
            f" {self.batch_size}"
        )
        if command == "start":
            hint = f" {_GUARD}" if worker.failed_by_itself else ""
            raise SimulatorError(f"{whose} {died}.{hint}")
        mine = slice(worker.first, worker.last)
        last, mid = dm_env.StepType.LAST, dm_env.StepType.MID
        while died:
            if worker.count_death() >= _MOST_DEATHS:
                raise SimulatorError(
                    f"{whose} {died} again, after it had been replaced {_MOST_DEATHS - 1} times,"
                    f" each time within {_STEPS_OF_PROGRESS} steps."
                )
            logging.warning("%s %s: it is started again, and their episodes are cut.", whose, died)
            self.restarts += 1
            # It may have died after some of its simulators had taken the step.
            self._batch.step_type[mine] = np.where(had_ended[mine], last, mid)
            worker.restart()
            for order in ("start", "reset" if command == "reset" else "continue"):
                worker.send(order)
                died = worker.wait(self._patience)
                if self._is_closed:  # By another thread.
                    worker.stop()
                    raise SimulatorError("The simulators were closed during a step.")
                if died:
                    break


class _Worker:
    """A worker process, as its parent sees it.

    Attributes:
      first: number of its first simulator.
      last: number after that of its last simulator.
      steps: since the process started.
    """

    def __init__(self, make: Make, memory: Any, layout: tuple, seed: int, first: int, last: int):
        self.first, self.last = first, last
        self.steps = 0
        self._num_replaced = self._deaths = 0
        self._arguments = (make, memory, layout, first, last)
        self._seed = seed
        self._start()

    def _start(self) -> None:
        context = _context()
        self._pipe, theirs = context.Pipe()
        # New seeds after a restart, since the same episodes might kill the engine again.
        seed = (self._seed + 0x5EED * self._num_replaced) % 2**31
        self._process = context.Process(
            target=_work, args=(theirs, seed, *self._arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def count_death(self) -> int:
        """Count a death; return how often in a row it died without progress in between."""
        self._deaths = 1 if self.steps >= _STEPS_OF_PROGRESS else self._deaths + 1
        return self._deaths

    def restart(self) -> None:
        self.stop()
        self._num_replaced, self.steps = self._num_replaced + 1, 0
        self._start()

    @property
    def failed_by_itself(self) -> bool:
        """Whether the process exited with an error, not by a signal.

        255 is the status of one whose forking process is gone.
        """
        return 0 < (self._process.exitcode or 0) < 255

    def send(self, command: str) -> None:
        with contextlib.suppress(OSError):  # The process is dead; `wait` reports it.
            self._pipe.send_bytes(command.encode())

    def wait(self, seconds: float) -> str | None:
        """Wait for an answer. Return how the process died, or None.

        Raises:
          SimulatorError: if a simulator raised an exception.
        """
        try:
            if not self._pipe.poll(seconds):
                self._process.kill()
                self._process.join()
                return f"did not answer within {seconds:g} seconds"
            answer = self._pipe.recv_bytes().decode()
        except (EOFError, OSError):
            self._process.join()
            return f"died ({_exit_reason(self._process.exitcode)})"
        if answer.startswith(_ENGINE_DIED):
            return f"died ({answer.removeprefix(_ENGINE_DIED)})"
        if answer != "done":
            raise SimulatorError(f"A simulator failed in its worker process:\n{answer}")
        return None

    def stop(self) -> None:
        self._pipe.close()  # The process exits then.
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _context() -> Any:
    """Return how worker processes start.

    They are not forked from this process, which has threads and a backend of JAX. On Linux they are
    forked from one that has neither and has imported this module, which takes seconds, once for all
    of them. Its environment variables are those of this process when the first worker started.
    """
    if sys.platform != "linux":  # macOS's own libraries do not survive a fork.
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    if not _is_shadowed():
        context.set_forkserver_preload([__name__])
    return context


def _is_shadowed() -> bool:
    """Return whether the working folder has another package of this one's name.

    The process that forks finds modules there first, whatever `sys.path` is here.
    """
    package = __name__.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(package, [os.getcwd()])
    return found is not None and found.origin != sys.modules[package].__file__


def _work(pipe, seed, make, memory, layout, first, last):
    """Run commands in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle.
    # For simulators that draw from NumPy's global generator: forked processes share its state.
    np.random.seed((seed + first) % 2**32)  # noqa: NPY002
    batch = _Batch(*layout, buffer=memoryview(memory))
    simulators: list[dm_env.Environment] = []
    try:
        while True:
            command = pipe.recv_bytes().decode()
            try:
                if command == "start":
                    simulators = [make(seed + i) for i in range(first, last)]
                else:
                    _advance(simulators, batch, first, command)
            except EngineDiedError as error:
                pipe.send_bytes(f"{_ENGINE_DIED}{error}".encode())
            except Exception:
                pipe.send_bytes(traceback.format_exc().encode())
            else:
                pipe.send_bytes(b"done")
    except (EOFError, OSError):
        pass  # The parent has closed the pipe.
    finally:
        for simulator in simulators:
            simulator.close()


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


def _aligned(size: int) -> int:
    """Round up to a multiple of 64 bytes, so that no two arrays share a cache line."""
    return -(-size // 64) * 64


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        known = {member.value: member.name for member in signal.Signals}
        return f"signal {known.get(-exitcode, -exitcode)}"
    return f"exit status {exitcode}"

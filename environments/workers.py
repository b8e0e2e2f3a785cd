"""Worker processes of simulators, and the arrays that they fill.

A worker gets commands through a pipe, and writes time steps into memory that it shares with its
parent (`environments.processes`).
"""

import contextlib
import ctypes
import importlib.machinery
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from disco_common import plugins
from environments.base import ObservationSpec, Simulator
from environments.errors import EngineDiedError, OutputError, simulator_failed
from environments.output_checks import RESET, STEP, check_timestep, number

Make = Callable[[int], Simulator]
"""Makes a simulator of a seed. Pickled for worker processes: a function of a module, or a
`functools.partial` of one."""

_NUMPY: Any = np.random
STEPS_OF_PROGRESS = 1000  # Of a process, after which its next death counts as the first.
_SECONDS_WITHOUT_PARENT = 1.0
# A socket's path has 107 bytes at most, of which `multiprocessing` needs 32 behind the folder.
_LONGEST_FOLDER, _SHORT_FOLDERS = 75, ("/tmp", "/var/tmp", "/dev/shm")


# The generator of the functions of `random`. CPython keeps its 624 numbers and their index in the
# object, behind the head: copying them takes 0.3 microseconds, `getstate` and `setstate` take 20.
_PYTHON: Any = getattr(random.random, "__self__", None)
_HEAD = object.__basicsize__
_SIZE = random.Random.__bases__[0].__basicsize__ - _HEAD
_NUMBERS = None
if sys.implementation.name == "cpython" and _PYTHON and 4 * 625 <= _SIZE < 4 * 627:
    _NUMBERS = memoryview((ctypes.c_ubyte * _SIZE).from_address(id(_PYTHON) + _HEAD)).cast("B")
    _found = np.frombuffer(_NUMBERS, np.uint32, 625)  # The index comes first there.
    if tuple(np.roll(_found, -1).tolist()) != random.getstate()[1]:
        _NUMBERS = None


def _python_state() -> Any:
    if _NUMBERS is None:
        return random.getstate()
    return bytes(_NUMBERS), _PYTHON.gauss_next


def _set_python_state(state: Any) -> None:
    if _NUMBERS is None:
        random.setstate(state)
    else:
        _NUMBERS[:], _PYTHON.gauss_next = state


class Isolated:
    """A simulator with global random generators of its own, seeded like itself.

    All code of a process draws from one generator of Python's `random` and from one of NumPy's
    legacy functions. With states of both of its own, a simulator's episodes depend on its seed
    only, and not on the simulators that its process steps beside it. NumPy's generator forgets the
    second number of a pair of normal ones after each step.
    """

    def __init__(self, make: Make, seed: int):
        """Make the simulator of a seed."""
        random.seed(seed)
        self._python = _python_state()
        self._numpy = np.random.MT19937(seed % 2**32)
        self._simulator = self._alone(make, seed)

    def reset(self) -> dm_env.TimeStep:
        return self._alone(self._simulator.reset)

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._alone(self._simulator.step, action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

    def _alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        _set_python_state(self._python)
        _NUMPY.set_bit_generator(self._numpy)
        try:
            return function(*arguments)
        finally:
            self._python = _python_state()


_OF_ONE = threading.RLock()  # Simulators of several threads take turns.


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restore this process's global generators behind its simulators."""
    with _OF_ONE:
        python, bits = _python_state(), _NUMPY.get_bit_generator()
        try:
            yield
        finally:
            _set_python_state(python)
            _NUMPY.set_bit_generator(bits)


class SharedBatch:
    """The last time step of each simulator, in arrays of one layout.

    Attributes:
      observation: leaves `[B, ...]`, by name; one of the name "" if it is a single array.
      step_type, reward, discount, action, results: `[B, ...]`.
      size: of all arrays, in bytes.
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
        self._spec, self._checked = observation_spec, set[tuple[int, str]]()
        self._is_single = not isinstance(observation_spec, dict)
        leaves = observation_spec if isinstance(observation_spec, dict) else {"": observation_spec}
        self.size = 0

        def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            """Lay out an array `[B, ...]`; no two share a cache line of 64 bytes."""
            offset = self.size
            num_bytes = batch_size * math.prod(shape) * np.dtype(dtype).itemsize
            self.size += -(-num_bytes // 64) * 64
            if buffer is None:
                return np.zeros((batch_size, *shape), dtype)
            return np.ndarray((batch_size, *shape), dtype, buffer, offset)

        self.observation = {name: array(spec.shape, spec.dtype) for name, spec in leaves.items()}
        self.action = array(action_spec.shape, action_spec.dtype)
        self.step_type = array((), np.int32)
        self.reward, self.discount = array((), np.float32), array((), np.float32)
        self.results = {name: array((), np.float32) for name in result_names}

    def checked(self, index: int, call: str, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Return a simulator's time step; that of the first reset and step is checked before."""
        if (index, call) not in self._checked:
            check_timestep(call, self._spec, timestep)
            self._checked.add((index, call))
        return timestep

    def write(self, index: int, timestep: dm_env.TimeStep, simulator: Isolated) -> None:
        """Store a simulator's time step."""
        self.step_type[index] = timestep.step_type
        self.reward[index] = 0.0 if timestep.reward is None else number(timestep.reward)
        self.discount[index] = 1.0 if timestep.discount is None else timestep.discount
        if self._is_single:
            self.observation[""][index] = timestep.observation
        else:
            for name, array in self.observation.items():
                array[index] = timestep.observation[name]
        if self.results and timestep.last():
            results = simulator.episode_results()
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
        return dm_env.TimeStep(
            step_type=self.step_type,
            reward=self.reward,
            discount=self.discount,
            observation=self.observation[""] if self._is_single else self.observation,
        )


def advance(simulators: list[Isolated], batch: SharedBatch, first: int, command: str) -> None:
    """Reset or step simulators numbered from `first`, or continue after their process died."""
    for index, simulator in enumerate(simulators, first):
        if command == "reset" or batch.step_type[index] == dm_env.StepType.LAST:
            batch.write(index, batch.checked(index, RESET, simulator.reset()), simulator)
        elif command == "step":
            timestep = simulator.step(batch.action[index])
            batch.write(index, batch.checked(index, STEP, timestep), simulator)
        else:
            batch.truncate(index)


class Worker:
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
        self._arguments = (make, memory, layout, first, last, plugins.imported())
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
        with _started_apart():
            self._process.start()
        theirs.close()

    def count_death(self) -> int:
        """Count a death; return how often in a row it died without progress in between."""
        self._deaths = 1 if self.steps >= STEPS_OF_PROGRESS else self._deaths + 1
        return self._deaths

    def restart(self) -> None:
        self.stop(5.0)
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
            self._pipe.send(command)

    def wait(self, seconds: float) -> str | None:
        """Wait for an answer. Return how the process died, or None.

        Raises:
          OutputError: if a simulator returned something else than it declares.
          SimulatorError: if a simulator raised an exception.
        """
        try:
            if not self._pipe.poll(seconds):
                self._process.kill()
                self._process.join()
                return f"did not answer within {seconds:g} seconds"
            answer, text = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"died ({_exit_reason(self._process.exitcode)})"
        if answer == "refused":
            raise OutputError(text)
        if answer == "failed":
            raise simulator_failed(" in its worker process", text)
        return f"died ({text})" if answer == "engine died" else None

    def hang_up(self) -> None:
        self._pipe.close()  # The process exits then.

    def stop(self, seconds: float) -> None:
        """End the process: by itself within some seconds, or killed after them."""
        self.hang_up()
        self._process.join(seconds)
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
        context.set_forkserver_preload(["disco_common.ends_with_parent", __name__])
    return context


def _is_shadowed() -> bool:
    """Return whether the working folder has another package of this one's name.

    The process that forks finds modules there first, whatever `sys.path` is here.
    """
    package = __name__.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(package, [os.getcwd()])
    return found is not None and found.origin != sys.modules[package].__file__


def use_short_folder() -> None:
    """Have `multiprocessing` keep its sockets where their paths are short enough."""
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER:
        return
    short = (x for x in _SHORT_FOLDERS if os.access(x, os.W_OK | os.X_OK))
    kept, tempfile.tempdir = tempfile.tempdir, next(short, None)
    try:
        multiprocessing.util.get_temp_dir()  # It remembers the folder.
    finally:
        tempfile.tempdir = kept


@contextlib.contextmanager
def _started_apart() -> Iterator[None]:
    """Start processes that a Ctrl-C in the terminal does not reach.

    What they start ignores the signal, too, from its first instruction on.
    """
    resource_tracker.ensure_running()  # It would unblock the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this process when its parent has ended and simulators have had time to close."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(_SECONDS_WITHOUT_PARENT)
    os._exit(1)


def _work(pipe, seed, make, memory, layout, first, last, modules):
    """Run commands in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    batch = SharedBatch(*layout, buffer=memoryview(memory))
    simulators: list[Isolated] = []
    try:
        while True:
            command, answer = pipe.recv(), ("done", "")
            try:
                if command == "start":
                    plugins.import_modules(modules)
                    simulators = [Isolated(make, seed + i) for i in range(first, last)]
                else:
                    advance(simulators, batch, first, command)
            except EngineDiedError as error:
                answer = "engine died", str(error)
            except OutputError as error:
                answer = "refused", str(error)
            except Exception:
                answer = "failed", traceback.format_exc()
            pipe.send(answer)
    except (EOFError, OSError):
        pass  # The parent has closed the pipe.
    finally:
        for simulator in simulators:
            simulator.close()


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        known = {member.value: member.name for member in signal.Signals}
        return f"signal {known.get(-exitcode, -exitcode)}"
    return f"exit status {exitcode}"

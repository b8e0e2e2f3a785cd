"""Simulators with states of their own of the global random generators.

All code of a process draws from one generator of Python's `random` and from one of NumPy's legacy
functions. Here each simulator has its own states of both, so that its episodes depend on its seed
only, and not on the simulators that its process steps beside it.
"""

import ctypes
import random
import threading
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from environments.base import Simulator

_PYTHON: Any = random.random.__self__  # pyright: ignore[reportFunctionMemberAccess]
_NUMPY: Any = np.random
_OF_ONE = threading.RLock()  # Simulators of several threads take turns.


def _memory(generator: random.Random) -> Any:
    """Return the part of a generator's memory in which CPython has its index and 624 words.

    `getstate` and `setstate` take 15 microseconds, as long as a step of CartPole; this takes one.
    """
    size = random.Random.__mro__[1].__basicsize__ - object.__basicsize__
    memory = (ctypes.c_char * size).from_address(id(generator) + object.__basicsize__)
    *words, index = generator.getstate()[1]
    is_known = memory.raw[:2500] == np.array([index, *words], np.uint32).tobytes()
    return memory if is_known else None


_MEMORY = _memory(_PYTHON)


def _state() -> Any:
    return random.getstate() if _MEMORY is None else (_MEMORY.raw, _PYTHON.gauss_next)


def _set_state(state: Any) -> None:
    if _MEMORY is None:
        random.setstate(state)
    else:
        _MEMORY.raw, _PYTHON.gauss_next = state


class _States:
    """The states of one simulator, which are those of the generators within a `with` statement."""

    def __init__(self, seed: int):
        self._python, self._numpy = _state(), np.random.MT19937(seed % 2**32)
        with self:
            random.seed(seed)

    def __enter__(self) -> None:
        _OF_ONE.acquire()
        self._outer = _state(), _NUMPY.get_bit_generator()
        _set_state(self._python)
        _NUMPY.set_bit_generator(self._numpy)

    def __exit__(self, *exception: Any) -> None:
        self._python, self._numpy = _state(), _NUMPY.get_bit_generator()
        python, numpy = self._outer
        _set_state(python)
        _NUMPY.set_bit_generator(numpy)
        _OF_ONE.release()


class Isolated:
    """A simulator that draws from global generators of its own, seeded like itself.

    NumPy's generator forgets the second number of a pair of normal ones after each step.
    """

    def __init__(self, make: Callable[[int], Simulator], seed: int):
        """Make the simulator of a seed."""
        self._states = _States(seed)
        with self._states:
            self._simulator = make(seed)

    def reset(self) -> dm_env.TimeStep:
        with self._states:
            return self._simulator.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        with self._states:
            return self._simulator.step(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

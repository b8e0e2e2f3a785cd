"""A measurement of the fraction of time in which the device is idle."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax


class DeviceClock:
    """A clock of asynchronously dispatched computations; it does not block the dispatch."""

    def __init__(self):
        self._watch = ThreadPoolExecutor(1, "device-clock")
        self._began = time.monotonic()
        self._followed: list[tuple[float, Future[float]]] = []

    def follow(self, dispatch: Callable[[], Any], watched: Callable[[Any], Any]) -> Any:
        """Dispatch a computation, and record when it begins and ends.

        Args:
          dispatch: dispatches the computation and returns its results.
          watched: returns some of the results; a thread waits for them. They must not be donated to
            another computation.
        """
        began = time.monotonic()
        results = dispatch()
        self._followed.append((began, self._watch.submit(_when_done, watched(results))))
        return results

    def idle_fraction(self) -> float:
        """Return the idle fraction of the time since the last call.

        Waits for all followed computations.
        """
        idle, free_from = 0.0, self._began
        for began, done in sorted(self._followed, key=lambda pair: pair[0]):
            idle += max(0.0, began - free_from)
            free_from = max(free_from, done.result())
        now = time.monotonic()
        idle += max(0.0, now - free_from)
        fraction = idle / max(now - self._began, 1e-9)
        self._began, self._followed = now, []
        return fraction

    def close(self) -> None:
        """End the thread."""
        self._watch.shutdown()


def _when_done(computed: Any) -> float:
    jax.block_until_ready(computed)
    return time.monotonic()

"""Estimates of the remaining time of jobs, from the time per unit of other jobs of their kind."""

import dataclasses
import time
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class _Work:
    """Work done on jobs of one kind: units, and the seconds that they took."""

    units: float = 0.0
    seconds: float = 0.0

    @property
    def seconds_per_unit(self) -> float:
        return self.seconds / self.units


class Pace:
    """The estimate of the remaining time of jobs that run one after the other.

    Jobs of one kind take about the same time per unit, compilation included. Jobs of different
    kinds may differ tenfold, such as those of a random policy and of an agent that learns.
    """

    def __init__(
        self, jobs: Sequence[tuple[str, int]], clock: Callable[[], float] = time.monotonic
    ):
        """Initialise the estimate, before the first job.

        Args:
          jobs: the kind and the number of units of each job, in order.
          clock: returns the time in seconds.
        """
        self._jobs = list(jobs)
        self._done: dict[str, _Work] = {}
        self._clock = clock
        self._number = -1
        self._units = 0
        self._began = clock()

    def begin(self) -> None:
        """End the current job, and begin the next one."""
        self._done = self._so_far()
        self._number, self._units, self._began = self._number + 1, 0, self._clock()

    def at(self, units: int) -> None:
        """Record the number of units that the current job has completed."""
        self._units = units

    def left(self) -> str:
        """Return the remaining time in words; empty before the first unit is completed.

        A kind without completed units counts as the slowest known one; the words are then "more
        than ...".
        """
        done = self._so_far()
        if not done:
            return ""
        kind, units = self._jobs[self._number]
        slowest = max(one.seconds_per_unit for one in done.values())
        remaining = [(kind, units - self._units), *self._jobs[self._number + 1 :]]
        seconds = sum(
            units * (done[kind].seconds_per_unit if kind in done else slowest)
            for kind, units in remaining
        )
        is_known = all(kind in done for kind, _ in remaining)
        return f"{'' if is_known else 'more than '}{in_words(seconds)} left"

    def _so_far(self) -> dict[str, _Work]:
        """Return the work done on each kind, including the current job."""
        if not self._units:
            return self._done
        kind, _ = self._jobs[self._number]
        before = self._done.get(kind, _Work())
        seconds = before.seconds + self._clock() - self._began
        return self._done | {kind: _Work(before.units + self._units, seconds)}


def in_words(seconds: float) -> str:
    """Return a duration in words, to about two digits: 40 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

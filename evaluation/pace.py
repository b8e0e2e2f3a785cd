"""Estimates of the remaining time of jobs, from the time per unit of other jobs of their kind."""

import time
from collections.abc import Callable, Sequence


class Pace:
    """The estimate of the remaining time of jobs that run one after the other.

    Jobs of one kind take about the same time per unit. Jobs of different kinds may differ tenfold,
    such as those of a random policy and of an agent that learns. A job's first report comes after
    compilation, and what precedes it is not counted, unless it is the only one.
    """

    def __init__(
        self, jobs: Sequence[tuple[str, int]], clock: Callable[[], float] = time.monotonic
    ):
        """Initialise the estimate, before the first job.

        Args:
          jobs: the kind and the number of units of each job, in order.
          clock: returns the time in seconds.
        """
        self._jobs, self._clock = list(jobs), clock
        self._made: dict[str, tuple[float, float]] = {}  # Units and seconds, by kind.
        self._number, self._began, self._last = -1, clock(), (0, 0.0)

    def begin(self) -> None:
        """End the current job, and begin the next one."""
        self._number += 1
        self._began, self._last = self._clock(), (0, 0.0)

    def at(self, units: int) -> None:
        """Record the number of units that the current job has completed.

        If it is begun again after a failure, they may be fewer than before.
        """
        kind, all_units = self._jobs[self._number]
        before, seconds = self._last
        self._last = units, self._clock() - self._began
        if (before or units == all_units) and units > before:
            made, took = self._made.get(kind, (0.0, 0.0))
            self._made[kind] = made + units - before, took + self._last[1] - seconds

    def left(self) -> str:
        """Return the remaining time of all jobs in words; empty before anything is known.

        A kind that is not known counts as the slowest that is; the words are then "more than ...",
        and none if that is less than a second.
        """
        if not self._made:
            return ""
        rates = {kind: took / made for kind, (made, took) in self._made.items()}
        jobs = self._jobs[self._number :]
        total = sum(units * rates.get(kind, max(rates.values())) for kind, units in jobs)
        total -= self._last[0] * rates.get(jobs[0][0], 0.0)
        is_known = all(kind in rates for kind, _ in jobs)
        if not is_known and total < 1.0:
            return ""
        return f"{'' if is_known else 'more than '}{in_words(total)} left"


def in_words(seconds: float) -> str:
    """Return a duration in words, to about two digits: 40 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

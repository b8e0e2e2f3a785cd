"""Estimates of the remaining time of jobs, from the time per unit of other jobs of their kind."""

import dataclasses
import time
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class _Work:
    """Work done on jobs of one kind.

    Attributes:
      jobs: number of jobs that were begun.
      first: units and seconds up to each job's first report, compilation included.
      later: units and seconds from there on.
    """

    jobs: int = 0
    first: tuple[float, float] = (0.0, 0.0)
    later: tuple[float, float] = (0.0, 0.0)

    def seconds(self, units: float) -> float:
        """Return the seconds that units of a job take that has begun to report."""
        made, took = self.later if self.later[0] else self.first
        return units * took / made

    def seconds_of_job(self, units: float) -> float:
        """Return the seconds that a whole job takes: its compilation, and its units."""
        made, took = self.first
        return max(took - self.seconds(made), 0.0) / self.jobs + self.seconds(units)


class Pace:
    """The estimate of the remaining time of jobs that run one after the other.

    Jobs of one kind take about the same time to compile, and the same time per unit. Jobs of
    different kinds may differ tenfold, such as those of a random policy and of an agent that
    learns. A kind is known once a job of it has reported twice, or has ended: the first report
    comes after compilation, and says little of what follows.
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
        self._began = clock()
        self._first: tuple[float, float] | None = None  # Units and seconds at the first report.
        self._last = (0.0, 0.0)

    def begin(self) -> None:
        """End the current job, and begin the next one."""
        self._done = self._so_far(has_ended=True)
        self._number += 1
        self._began, self._first, self._last = self._clock(), None, (0.0, 0.0)

    def at(self, units: int) -> None:
        """Record the number of units that the current job has completed.

        If it is begun again after a failure, they may be fewer than before.
        """
        self._last = (units, self._clock() - self._began)
        if self._first is None or units < self._first[0]:
            self._first = self._last if units else None

    def left(self) -> str:
        """Return the remaining time in words, of all jobs and of the current one.

        Empty before anything is known. A kind that is not known counts as the slowest that is; the
        words are then "more than ...", and none if that is less than a second.
        """
        done = self._so_far()
        if not done:
            return ""
        (kind, units), *others = self._jobs[self._number :]

        def estimate(kind: str, estimate_of: Callable[[_Work], float]) -> float:
            works = [done[kind]] if kind in done else done.values()
            return max(estimate_of(work) for work in works)

        if self._first is None:
            own = estimate(kind, lambda work: work.seconds_of_job(units))
        else:
            own = estimate(kind, lambda work: work.seconds(units - self._last[0]))
        total = own + sum(estimate(kind, lambda x, n=n: x.seconds_of_job(n)) for kind, n in others)
        is_known = all(kind in done for kind, _ in self._jobs[self._number :])
        if not is_known and total < 1.0:
            return ""
        words = f"{'' if is_known else 'more than '}{in_words(total)} left"
        return f"{words} (of this job {in_words(own)})" if others and kind in done else words

    def _so_far(self, has_ended: bool = False) -> dict[str, _Work]:
        """Return the work done on each known kind, including the current job's."""
        if self._first is None:
            return self._done
        kind, units = self._jobs[self._number]
        later = (self._last[0] - self._first[0], self._last[1] - self._first[1])
        if not (later[0] or has_ended or self._last[0] == units):
            return self._done
        before = self._done.get(kind, _Work())
        work = _Work(before.jobs + 1, _sum(before.first, self._first), _sum(before.later, later))
        return self._done | {kind: work}


def _sum(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def in_words(seconds: float) -> str:
    """Return a duration in words, to about two digits: 40 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

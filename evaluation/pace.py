"""How long jobs of several kinds will take, from how long others of their kind took."""

import dataclasses
import time
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What was seen of a kind: units of work, and the seconds that they took."""

    units: float = 0.0
    seconds: float = 0.0

    @property
    def seconds_per_unit(self) -> float:
        return self.seconds / self.units


class Pace:
    """Estimates the time left of jobs that follow one another.

    Jobs of one kind take about as long per unit, starting and compiling included; those of
    different kinds may differ by ten times, as a random policy and an agent that learns do.
    """

    def __init__(
        self, jobs: Sequence[tuple[str, int]], clock: Callable[[], float] = time.monotonic
    ):
        """Of no job begun.

        Args:
          jobs: the kind and the units of each, in their order.
          clock: seconds.
        """
        self._jobs = list(jobs)
        self._seen: dict[str, _Seen] = {}
        self._clock = clock
        self._number = -1
        self._units = 0
        self._began = clock()

    def begin(self) -> None:
        """Ends the job that was under way, and begins the next one."""
        self._seen = self._so_far()
        self._number, self._units, self._began = self._number + 1, 0, self._clock()

    def at(self, units: int) -> None:
        """The job under way has done so many units."""
        self._units = units

    def left(self) -> str:
        """The time left, in words; empty while nothing is known.

        Kinds that were not seen yet count as the slowest one that was, and the words then say that
        it is a guess from below.
        """
        seen = self._so_far()
        if not seen:
            return ""
        kind, units = self._jobs[self._number]
        slowest = max(one.seconds_per_unit for one in seen.values())
        waiting = [(kind, units - self._units), *self._jobs[self._number + 1 :]]
        seconds = sum(
            units * (seen[kind].seconds_per_unit if kind in seen else slowest)
            for kind, units in waiting
        )
        is_known = all(kind in seen for kind, _ in waiting)
        return f"{'' if is_known else 'more than '}{in_words(seconds)} left"

    def _so_far(self) -> dict[str, _Seen]:
        """What was seen of each kind, the job under way included."""
        if not self._units:
            return self._seen
        kind, _ = self._jobs[self._number]
        before = self._seen.get(kind, _Seen())
        seconds = before.seconds + self._clock() - self._began
        return self._seen | {kind: _Seen(before.units + self._units, seconds)}


def in_words(seconds: float) -> str:
    """Seconds to two digits or so: 40 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

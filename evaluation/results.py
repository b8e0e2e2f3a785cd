"""What became of runs: their episodes along the curves, and in the window of their scores."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig


class Episodes(NamedTuple):
    """The episodes that ended in some stretch of each run.

    Attributes:
      count: how many.
      return_sum: of their undiscounted returns.
    """

    count: Float[np.ndarray, "..."]
    return_sum: Float[np.ndarray, "..."]

    @property
    def mean_return(self) -> Float[np.ndarray, "..."]:
        """NaN where no episode ended."""
        return divide(self.return_sum, self.count)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What became of one run.

    Attributes:
      curve: the episodes that ended in each interval of its learning curve, `[points]`.
      window: those that ended in the score's window, `[]`.
      results: means over the episodes of the window, by name: their `length`, and what the
        suite tells of them besides. NaN where no episode ended.
      is_finite: whether all of the agent's numbers were, at the end.
      start_seconds, train_seconds: its share of the wall time of the runs that were trained
        together: to compile the program, if it was new, and to start them; and to train them.
      devices: that trained it.
      restarts: simulator processes that died and were replaced.
      strip: pictures of what the agent does at the end, PNG (`evaluation.playing`); empty
        without. Kept beside the result, and not read with it.
    """

    curve: Episodes
    window: Episodes
    results: dict[str, float]
    is_finite: bool
    start_seconds: float
    train_seconds: float
    devices: str
    restarts: int = 0
    strip: bytes = b""


@dataclasses.dataclass(frozen=True)
class History:
    """What became of a contender's runs.

    Attributes:
      updates: at which each interval of the learning curves ended, `[points]`.
      curve: the episodes that ended in each interval, `[tasks, seeds, points]`.
      window: the episodes that ended in the score's window, `[tasks, seeds]`.
      results: see `RunResult`; NaN besides where a suite does not tell it.
      is_finite: see `RunResult`.
      start_seconds, train_seconds: of all runs. Runs that were trained in processes side by
        side count as if these had followed one another.
      devices: the different ones that trained them.
    """

    updates: Int[np.ndarray, "points"]
    curve: Episodes
    window: Episodes
    results: dict[str, Float[np.ndarray, "tasks seeds"]]
    is_finite: Bool[np.ndarray, "tasks seeds"]
    start_seconds: float
    train_seconds: float
    devices: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[Sequence[RunResult]], config: EvaluationConfig) -> "History":
        """Of runs on each task (outer) with each seed (inner)."""

        def stacked(value):
            return np.array([[value(run) for run in seeds] for seeds in runs])

        names = sorted({name for seeds in runs for run in seeds for name in run.results})
        return cls(
            updates=intervals(config)[0],
            curve=Episodes(
                stacked(lambda run: run.curve.count), stacked(lambda run: run.curve.return_sum)
            ),
            window=Episodes(
                stacked(lambda run: run.window.count), stacked(lambda run: run.window.return_sum)
            ),
            results={
                name: stacked(lambda run, name=name: run.results.get(name, np.nan))
                for name in names
            },
            is_finite=stacked(lambda run: run.is_finite),
            start_seconds=float(stacked(lambda run: run.start_seconds).sum()),
            train_seconds=float(stacked(lambda run: run.train_seconds).sum()),
            devices=tuple(sorted({run.devices for seeds in runs for run in seeds})),
        )


class Tally:
    """The episodes of runs that are under way.

    Attributes:
      ends: updates at which the curves' intervals end, `[points]`.
      window_start: the update with which the score's window starts.
    """

    def __init__(self, num_runs: int, config: EvaluationConfig):
        """Of no episode yet."""
        self.ends, self.window_start = intervals(config)
        shape = (num_runs, len(self.ends))
        self._curve = Episodes(*(np.zeros(shape) for _ in Episodes._fields))
        self._window = Episodes(*(np.zeros(num_runs) for _ in Episodes._fields))
        self._result_sums: dict[str, np.ndarray] = {}

    def add(self, last: int, sums: Mapping[str, Any]) -> None:
        """Adds the episodes of a stretch that spans no interval's end, nor the window's start.

        Args:
          last: updates made at the stretch's end.
          sums: `count`, `return`, and others by name, `[runs]`; NaN for what is not told.
        """
        point = int(np.searchsorted(self.ends, last))
        for total, name in zip(self._curve, ("count", "return"), strict=True):
            total[:, point] += sums[name]
        if last <= self.window_start:
            return
        for total, name in zip(self._window, ("count", "return"), strict=True):
            total += sums[name]
        for name in set(sums) - {"count", "return"}:
            before = self._result_sums.get(name, np.zeros(len(self._window.count)))
            self._result_sums[name] = before + sums[name]

    def result(
        self,
        run: int,
        *,
        is_finite: bool,
        start_seconds: float,
        train_seconds: float,
        devices: str,
        restarts: int = 0,
        strip: bytes = b"",
    ) -> RunResult:
        """What became of one of the runs; see `RunResult`."""
        means = {
            name: divide(total, self._window.count)[run]
            for name, total in sorted(self._result_sums.items())
        }
        return RunResult(
            curve=Episodes(*(x[run] for x in self._curve)),
            window=Episodes(*(x[run] for x in self._window)),
            results={name: float(mean) for name, mean in means.items()},
            is_finite=is_finite,
            start_seconds=start_seconds,
            train_seconds=train_seconds,
            devices=devices,
            restarts=restarts,
            strip=strip,
        )


def divide(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means; NaN where there is nothing."""
    has_any = counts > 0
    return np.where(has_any, sums / np.where(has_any, counts, 1.0), np.nan)


def intervals(config: EvaluationConfig) -> tuple[Int[np.ndarray, "points"], int]:
    """The updates at which a curve's intervals end, and the one with which the window starts."""
    num_updates = config.num_updates
    ends = np.unique(np.round(np.linspace(0, num_updates, config.num_points + 1)).astype(int))[1:]
    window = max(1, round(num_updates * config.score_window))
    return ends, num_updates - window

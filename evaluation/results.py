"""What became of runs: their episodes along the curves, and in the window of their scores."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig
from training.results import TrainedRun


class Episodes(NamedTuple):
    """The episodes that ended in some stretch of each run.

    Attributes:
      count: how many.
      return_sum: of their undiscounted returns.
    """

    # Tuples have a method of that name, which nobody calls here.
    count: Float[np.ndarray, "..."]  # pyright: ignore[reportIncompatibleMethodOverride]
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

    @classmethod
    def of(
        cls, trained: TrainedRun, config: EvaluationConfig, devices: str, strip: bytes = b""
    ) -> "RunResult":
        """Return the result of a run that was trained.

        Args:
          trained: the run.
          config: of the evaluation, for the curve's intervals and the score's window.
          devices: that trained it.
          strip: see `RunResult`.
        """
        per_update = config.agent.steps_per_update
        ends, window_start = intervals(config)
        curve, window = np.zeros((2, len(ends))), np.zeros(2)
        result_sums: dict[str, np.ndarray] = {}
        for sums in trained.episodes:
            both = np.array([sums.episodes, sums.return_sum])
            curve[:, np.searchsorted(ends * per_update, sums.environment_steps)] += both
            if sums.environment_steps <= window_start * per_update:
                continue
            window += both
            for name, x in {**sums.result_sums, "length": sums.length_sum}.items():
                result_sums[name] = result_sums.get(name, np.zeros(())) + x
        window = Episodes(*map(np.asarray, window))
        return cls(
            curve=Episodes(*curve),
            window=window,
            results={
                name: float(divide(total, window.count))
                for name, total in sorted(result_sums.items())
            },
            is_finite=trained.is_finite,
            start_seconds=trained.start_seconds,
            train_seconds=trained.train_seconds,
            devices=devices,
            restarts=trained.restarts,
            strip=strip,
        )


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


def divide(sums: np.ndarray | np.floating, counts: np.ndarray | np.floating) -> np.ndarray:
    """Means; NaN where there is nothing."""
    has_any = counts > 0
    return np.where(has_any, sums / np.where(has_any, counts, 1.0), np.nan)


def intervals(config: EvaluationConfig) -> tuple[Int[np.ndarray, "points"], int]:
    """The updates at which a curve's intervals end, and the one with which the window starts."""
    num_updates = config.num_updates
    ends = np.unique(np.round(np.linspace(0, num_updates, config.num_points + 1)).astype(int))[1:]
    window = max(1, round(num_updates * config.score_window))
    return ends, num_updates - window

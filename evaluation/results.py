"""Results of runs: the episodes along their learning curves, and in the window of their scores."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig
from training.records import TrainedRun


class Episodes(NamedTuple):
    """The episodes that ended in an interval of each run.

    Attributes:
      count: number of episodes.
      return_sum: sum of their undiscounted returns.
    """

    # Tuples have a method of that name, which nobody calls here.
    count: Float[np.ndarray, "..."]  # pyright: ignore[reportIncompatibleMethodOverride]
    return_sum: Float[np.ndarray, "..."]

    @property
    def mean_return(self) -> Float[np.ndarray, "..."]:
        """Mean return of the episodes; NaN where no episode ended, or where it is not finite."""
        return np.where(self.is_not_finite, np.nan, divide(self.return_sum, self.count))

    @property
    def is_not_finite(self) -> Bool[np.ndarray, "..."]:
        """Whether episodes ended, and a return of them is not finite."""
        return np.asarray((self.count > 0) & ~np.isfinite(self.return_sum), bool)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Attributes:
      curve: the episodes that ended in each interval of the learning curve, `[points]`.
      window: the episodes that ended in the score's window, `[]`.
      results: means over the episodes of the window, by name: the `length`, and the suite's own
        results. NaN where no episode ended.
      is_finite: whether all numbers of the trained agent are finite.
      start_seconds: wall time of compilation and start. In JAX environments, that of the job that
        trained the run, in its last session, divided by the job's number of runs. In host
        environments and for agents that train themselves 0.0; it is not measured.
      train_seconds: wall time of training, over all sessions. In JAX environments, that of the
        job divided by its number of runs.
      devices: that trained it.
      restarts: number of simulator processes that died and were replaced.
    """

    curve: Episodes
    window: Episodes
    results: dict[str, float]
    is_finite: bool
    start_seconds: float
    train_seconds: float
    devices: str
    restarts: int = 0

    @classmethod
    def of(cls, trained: TrainedRun, config: EvaluationConfig, devices: str) -> "RunResult":
        """Return the result of a finished run, by an evaluation's intervals and window."""
        per_update = config.agent.steps_per_update
        ends, window_start = config.intervals
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
        )


@dataclasses.dataclass(frozen=True)
class LearningCurves:
    """The learning curves and other results of a contender's runs on all tasks, stacked.

    Attributes:
      updates: the updates at which the intervals of the learning curves end, `[points]`.
      curve: the episodes that ended in each interval, `[tasks, seeds, points]`.
      window: the episodes that ended in the score's window, `[tasks, seeds]`.
      results: see `RunResult`; NaN also where a suite does not report a result.
      is_finite: see `RunResult`.
      start_seconds, train_seconds: sums over all runs of `RunResult`'s; that is, sums of the wall
        times of jobs, also of jobs that ran at the same time.
      devices: the different devices that trained them.
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
    def of(cls, runs: Sequence[Sequence[RunResult]], config: EvaluationConfig) -> "LearningCurves":
        """Return the stacked results of runs on each task (outer) with each seed (inner)."""

        def stacked(value):
            return np.array([[value(run) for run in seeds] for seeds in runs])

        def episodes(name):
            return Episodes(*(stacked(lambda x, i=i: getattr(x, name)[i]) for i in range(2)))

        names = sorted({name for seeds in runs for run in seeds for name in run.results})
        return cls(
            updates=config.intervals[0],
            curve=episodes("curve"),
            window=episodes("window"),
            results={
                name: stacked(lambda run, name=name: run.results.get(name, np.nan))
                for name in names
            },
            is_finite=stacked(lambda run: run.is_finite),
            start_seconds=float(stacked(lambda run: run.start_seconds).sum()),
            train_seconds=float(stacked(lambda run: run.train_seconds).sum()),
            devices=tuple(sorted({run.devices for seeds in runs for run in seeds})),
        )


def join_intervals(
    contender_curves: Sequence[LearningCurves], tasks: Bool[np.ndarray, "tasks"]
) -> tuple[Int[np.ndarray, "points"], list[Episodes]]:
    """Return curves whose intervals are long enough for an episode to end in each.

    Neighbouring intervals are joined until, for every contender, at least one run on each of the
    selected tasks has an episode in every interval. If none of these joins suffices, the original
    intervals are returned, some of them empty.

    Returns:
      The updates at which the intervals end, which are the same for all contenders, and each
      contender's episodes on the selected tasks.
    """
    updates = contender_curves[0].updates
    curves = [Episodes(*(x[tasks] for x in one.curve)) for one in contender_curves]
    for number in range(len(updates), 0, -1):
        starts = np.array([part[0] for part in np.array_split(np.arange(len(updates)), number)])
        joined = [
            Episodes(*(np.add.reduceat(x, starts, axis=-1) for x in curve)) for curve in curves
        ]
        if all(np.all(np.sum(curve.count, axis=1) > 0) for curve in joined):
            return updates[np.append(starts[1:], len(updates)) - 1], joined
    return updates, curves


def divide(sums: np.ndarray | np.floating, counts: np.ndarray | np.floating) -> np.ndarray:
    """Return sums divided by counts; NaN where the count is 0."""
    has_any = counts > 0
    return np.where(has_any, sums / np.where(has_any, counts, 1.0), np.nan)

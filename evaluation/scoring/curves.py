"""Learning curves: returns along the budget, on one task or aggregated over tasks."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.references import Scale

Curves = tuple[Int[np.ndarray, "points"], dict[str, Float[np.ndarray, "3 points"]]]
"""The environment steps of a curve's points; and by contender a value, and the low and high end of
its band, at each point."""


def join_intervals(
    contender_curves: Sequence[LearningCurves], tasks: Bool[np.ndarray, "tasks"]
) -> tuple[Int[np.ndarray, "points"], list[Episodes]]:
    """Return curves whose intervals are long enough for an episode to end in each.

    Neighbouring intervals are joined until, for every contender, at least one run on each of the
    selected tasks has an episode in every interval. If none of these joins suffices, the original
    intervals are returned, some of them empty.

    Args:
      contender_curves: the learning curves of the contenders to compare, which all get the same
        intervals.
      tasks: selects tasks.

    Returns:
      The updates at which the intervals end, and each contender's episodes on the selected tasks.
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


def task_curves(
    contender_curves: Mapping[str, LearningCurves],
    task: int,
    num_tasks: int,
    config: EvaluationConfig,
) -> Curves:
    """Return the contenders' learning curves on a task, and the environment steps of their points.

    Args:
      contender_curves: the learning curves of the contenders to compare, by name.
      task: index on the curves' first axis.
      num_tasks: length of that axis.
      config: of the evaluation.

    Returns:
      The environment steps at which the points' intervals end (see `join_intervals`), and each
      contender's mean return over seeds, then this mean minus and plus its standard error; NaN
      where it is unknown.
    """
    updates, joined = join_intervals(list(contender_curves.values()), np.arange(num_tasks) == task)
    curves = {}
    for name, episodes in zip(contender_curves, joined, strict=True):
        returns = episodes.mean_return[0].T
        mean, error = statistics.mean(returns), statistics.standard_error(returns)
        curves[name] = np.stack([mean, mean - error, mean + error])
    return updates * config.agent.steps_per_update, curves


def areas(
    contender_curves: Mapping[str, LearningCurves], scale: Scale
) -> dict[str, Float[np.ndarray, "counted seeds"]]:
    """Return the area under each run's normalised learning curve: its mean over the points.

    It is NaN for a run without an episode; points without an episode of a run do not count.
    """
    return {
        name: statistics.mean(np.stack(points, axis=-1))
        for name, points in _normalized_points(contender_curves, scale)[1].items()
    }


def aggregate_curves(
    statistic: statistics.Statistic,
    contender_curves: Mapping[str, LearningCurves],
    scale: Scale,
    config: EvaluationConfig,
) -> Curves:
    """Return a statistic of normalised returns along the budget, and its interval over seeds.

    The points are those of `join_intervals`; NaN where a task has no episode.
    """
    updates, returns = _normalized_points(contender_curves, scale)
    curves = {}
    for name, points in returns.items():
        curve = np.full((3, len(updates)), np.nan)
        for point, runs in enumerate(points):
            if np.isfinite(runs).any(axis=-1).all():
                ends = statistics.interval(statistic, runs, **config.bootstrap)
                curve[:, point] = statistic(runs), *ends
        curves[name] = curve
    return updates * config.agent.steps_per_update, curves


def _normalized_points(
    contender_curves: Mapping[str, LearningCurves], scale: Scale
) -> tuple[Int[np.ndarray, "points"], dict[str, list[Float[np.ndarray, "counted seeds"]]]]:
    """Return the updates of joined intervals, and by contender the normalised returns at each."""
    if not contender_curves:
        return np.zeros(0, int), {}
    updates, joined = join_intervals(list(contender_curves.values()), scale.counted)
    found = {}
    for name, episodes in zip(contender_curves, joined, strict=True):
        returns = episodes.mean_return
        found[name] = [scale.normalize(returns[..., point]) for point in range(len(updates))]
    return updates, found

"""Learning curves: returns along the budget, on one task or aggregated over tasks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.summary import Summary

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


def normalized_curves(
    summary: Summary, contender_curves: Mapping[str, LearningCurves], config: EvaluationConfig
) -> Curves:
    """Return the mean normalised return over tasks along the budget, and its environment steps.

    Args:
      summary: with at least one task that counts.
      contender_curves: the learning curves of the contenders to compare, by name.
      config: of the evaluation.

    Returns:
      See `aggregate_curves`.
    """
    scale = summary.scale
    return aggregate_curves(
        statistics.mean_over_tasks, contender_curves, scale.counted, scale.normalize, config
    )


def areas(
    contender_curves: Mapping[str, LearningCurves],
    tasks: Bool[np.ndarray, "tasks"],
    normalize: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Float[np.ndarray, "selected seeds"]]:
    """Return the area under each run's normalised learning curve: its mean over the points.

    Args:
      contender_curves: the learning curves of the contenders to compare, by name.
      tasks: selects tasks.
      normalize: see `aggregate_curves`.

    Returns:
      By contender, for each run; NaN for one without an episode. Points without an episode of a run
      do not count.
    """
    _, joined = join_intervals(list(contender_curves.values()), tasks)
    found = {}
    for name, episodes in zip(contender_curves, joined, strict=True):
        returns = episodes.mean_return
        points = [normalize(returns[..., point]) for point in range(returns.shape[-1])]
        found[name] = statistics.mean(np.stack(points, axis=-1))
    return found


def aggregate_curves(
    statistic: statistics.Statistic,
    contender_curves: Mapping[str, LearningCurves],
    tasks: Bool[np.ndarray, "tasks"],
    normalize: Callable[[np.ndarray], np.ndarray],
    config: EvaluationConfig,
) -> Curves:
    """Return a statistic of normalised returns along the budget, and its environment steps.

    Args:
      statistic: of normalised returns.
      contender_curves: the learning curves of the contenders to compare, by name.
      tasks: selects tasks.
      normalize: maps returns on the selected tasks, `[tasks, seeds]`, to a common scale.
      config: of the evaluation.

    Returns:
      The environment steps at which the points' intervals end (see `join_intervals`), and each
      contender's value, low and high end of the interval over seeds at each; NaN where a task has
      no episode.
    """
    updates, joined = join_intervals(list(contender_curves.values()), tasks)
    curves = {}
    for name, episodes in zip(contender_curves, joined, strict=True):
        returns = episodes.mean_return
        curve = np.full((3, len(updates)), np.nan)
        for point in range(len(updates)):
            runs = normalize(returns[..., point])
            if np.isfinite(runs).any(axis=-1).all():
                ends = statistics.interval(statistic, runs, **config.bootstrap)
                curve[:, point] = statistic(runs), *ends
        curves[name] = curve
    return updates * config.agent.steps_per_update, curves

"""From runs to scores, normalised scores, and who is ahead.

The score of a run is the mean return of the episodes that ended in the last part of its
budget (`EvaluationConfig.score_definition`). On a task it is normalised between the random
policy (0) and the best hand-designed contender on that task (1), both by their mean score. A
task on which these two cannot be told apart measures nothing, and is left out of all means. Single
runs cannot tell them apart, as the noise of their scores is unknown.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation import statistics
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender
from evaluation.results import Episodes, History
from evaluation.statistics import Estimate


@dataclasses.dataclass(frozen=True)
class Summary:
    """The outcome of an evaluation, in the order of its tasks.

    Attributes:
      tasks: their names.
      scores: of each contender's runs; NaN where no episode ended in the window.
      baseline: the best mean score of a hand-designed contender on each task.
      left_out: tasks that are not in any mean over tasks, and why.
      tuned: of each hand-designed rule, its contender with the best mean over tasks.
      aggregate: each contender's mean normalised score over tasks; empty if no task is left.
      differences: of each rule's mean normalised score and each tuned baseline's.
      above_random: tasks on which a contender's mean score is above the random policy's; empty if
        there is one seed only, as the noise of its scores is unknown.
    """

    tasks: tuple[str, ...]
    scores: dict[str, Float[np.ndarray, "tasks seeds"]]
    baseline: Float[np.ndarray, "tasks"]
    left_out: dict[str, str]
    tuned: dict[str, str]
    aggregate: dict[str, Estimate]
    differences: dict[tuple[str, str], Estimate]
    above_random: dict[str, tuple[str, ...]]

    @property
    def counted(self) -> Bool[np.ndarray, "tasks"]:
        """Tasks over which means are taken."""
        return np.array([task not in self.left_out for task in self.tasks], bool)

    def normalize(
        self, returns: Float[np.ndarray, "counted seeds"]
    ) -> Float[np.ndarray, "counted seeds"]:
        """Returns on the tasks that count: 0 is the random policy, 1 the best baseline."""
        low = statistics.mean(self.scores[RANDOM])[self.counted]
        return statistics.normalize(returns, low, self.baseline[self.counted])


def summarize(
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    histories: Mapping[str, History],
    config: EvaluationConfig,
) -> Summary:
    """Scores all contenders.

    Args:
      tasks: names, in the order of the histories' first axis.
      contenders: among them the random policy.
      histories: of each, by name.
      config: of the evaluation.
    """
    scores = {c.name: histories[c.name].window.mean_return for c in contenders}
    means = {name: statistics.mean(x) for name, x in scores.items()}
    baseline, baseline_error = _best_baseline(scores, contenders, config)
    summary = Summary(
        tasks=tuple(tasks),
        scores=scores,
        baseline=baseline,
        left_out=_left_out(
            tasks,
            means,
            baseline,
            np.hypot(baseline_error, statistics.standard_error(scores[RANDOM])),
            config.min_separation,
        ),
        tuned={},
        aggregate={},
        differences={},
        above_random={
            name: tuple(t for t, x, r in zip(tasks, mean, means[RANDOM], strict=True) if x > r)
            for name, mean in means.items()
            if config.seeds > 1
        },
    )
    if not summary.counted.any():
        return summary
    bootstrap = config.bootstrap
    normalized = {name: summary.normalize(x[summary.counted]) for name, x in scores.items()}
    aggregate = {
        name: statistics.estimate(statistics.mean_over_tasks, x, **bootstrap)
        for name, x in normalized.items()
    }
    tuned = {
        kind: max(
            (c.name for c in contenders if c.kind == kind), key=lambda name: aggregate[name].value
        )
        for kind in config.baselines
    }
    differences = {
        (rule.name, kind): statistics.estimate(
            _difference, normalized[rule.name], normalized[tuned[kind]], **bootstrap
        )
        for rule in contenders
        if rule.kind == "discovered"
        for kind in config.baselines
    }
    return dataclasses.replace(summary, aggregate=aggregate, tuned=tuned, differences=differences)


def coarsen(
    histories: Sequence[History], tasks: Bool[np.ndarray, "all_tasks"]
) -> tuple[Int[np.ndarray, "points"], list[Episodes]]:
    """Joins neighbouring intervals until an episode ended in each, on each of some tasks.

    Where episodes are long, some of a curve's intervals have none; fewer and longer ones do.

    Args:
      histories: of contenders to compare; all get the same intervals.
      tasks: which to look at. An interval must have an episode of at least one run on each.

    Returns:
      The updates at which the intervals end, and each contender's episodes on these tasks.
      Intervals without an episode are left if nothing helps.
    """
    updates = histories[0].updates
    curves = [Episodes(*(x[tasks] for x in history.curve)) for history in histories]
    for number in range(len(updates), 0, -1):
        starts = np.array([part[0] for part in np.array_split(np.arange(len(updates)), number)])
        joined = [
            Episodes(*(np.add.reduceat(x, starts, axis=-1) for x in curve)) for curve in curves
        ]
        if all(np.all(np.sum(curve.count, axis=1) > 0) for curve in joined):
            return updates[np.append(starts[1:], len(updates)) - 1], joined
    return updates, curves


def normalized_curves(
    summary: Summary, histories: Mapping[str, History], config: EvaluationConfig
) -> tuple[Int[np.ndarray, "points"], dict[str, Float[np.ndarray, "3 points"]]]:
    """The mean normalised return over tasks along the budget: (mean, low, high) at each point.

    Args:
      summary: with at least one task that counts.
      histories: of the contenders to compare, by name.
      config: of the evaluation.

    Returns:
      The updates at which the points' intervals end (see `coarsen`), and the curves by name.
    """
    return estimated_curves(
        statistics.mean_over_tasks, histories, summary.counted, summary.normalize, config
    )


def estimated_curves(
    statistic: statistics.Statistic,
    histories: Mapping[str, History],
    tasks: Bool[np.ndarray, "tasks"],
    normalize: Callable[[np.ndarray], np.ndarray],
    config: EvaluationConfig,
) -> tuple[Int[np.ndarray, "points"], dict[str, Float[np.ndarray, "3 points"]]]:
    """A statistic along the budget, of returns on some tasks; NaN where one has no episode.

    Args:
      statistic: of normalised returns.
      histories: see `normalized_curves`, whose result this has.
      tasks: which count.
      normalize: puts the returns on these tasks, `[counted, seeds]`, on a common scale.
      config: of the evaluation.
    """
    updates, joined = coarsen(list(histories.values()), tasks)
    curves = {}
    for name, episodes in zip(histories, joined, strict=True):
        returns = episodes.mean_return
        curve = np.full((3, len(updates)), np.nan)
        for point in range(len(updates)):
            runs = normalize(returns[..., point])
            if np.isfinite(runs).any(axis=-1).all():
                curve[:, point] = statistics.estimate(statistic, runs, **config.bootstrap)
        curves[name] = curve
    return updates, curves


def _difference(
    scores: Float[np.ndarray, "*s tasks runs"], others: Float[np.ndarray, "*s tasks runs"]
) -> Float[np.ndarray, "*s"]:
    return statistics.mean_over_tasks(scores) - statistics.mean_over_tasks(others)


def _best_baseline(
    scores, contenders: Sequence[Contender], config: EvaluationConfig
) -> tuple[Float[np.ndarray, "tasks"], Float[np.ndarray, "tasks"]]:
    """Mean score and standard error of each task's best hand-designed contender; NaN if none."""
    hand_designed = [scores[c.name] for c in contenders if c.kind in config.baselines]
    if not hand_designed:
        missing = np.full(len(scores[RANDOM]), np.nan)
        return missing, missing
    runs = np.stack(hand_designed)
    means = statistics.mean(runs)
    best = np.argmax(means, axis=0)[None]
    errors = statistics.standard_error(runs)
    return np.take_along_axis(means, best, 0)[0], np.take_along_axis(errors, best, 0)[0]


def _left_out(
    tasks: Sequence[str],
    means: Mapping[str, Float[np.ndarray, "tasks"]],
    baseline: Float[np.ndarray, "tasks"],
    error: Float[np.ndarray, "tasks"],
    min_separation: float,
) -> dict[str, str]:
    """Tasks that say nothing of the contenders, and why.

    Args:
      tasks: names.
      means: each contender's mean scores.
      baseline: the best baseline's mean scores.
      error: standard error of the best baseline's minus the random policy's mean; NaN where it
        is unknown, for want of seeds.
      min_separation: see `EvaluationConfig`.
    """
    reasons = {}
    for i, task in enumerate(tasks):
        missing = [name for name, mean in means.items() if np.isnan(mean[i])]
        gap = baseline[i] - means[RANDOM][i]
        if missing:
            reasons[task] = f"no episode of {', '.join(missing)} ended in the score's window"
        elif np.isnan(baseline[i]):
            reasons[task] = "there is no hand-designed contender to normalise by"
        elif np.isnan(error[i]) and min_separation > 0:
            reasons[task] = (
                "a single run of the best baseline or of the random policy cannot tell these two"
                " apart; expected at least two seeds"
            )
        elif gap <= 0 or gap < min_separation * error[i]:
            reasons[task] = (
                f"the best baseline's score {baseline[i]:.4g} is not clearly above the random"
                f" policy's {means[RANDOM][i]:.4g} (difference {gap:.3g}, standard error"
                f" {error[i]:.2g}; expected at least {min_separation:g} of them)"
            )
    return reasons

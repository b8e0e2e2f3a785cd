"""Scores of all runs of an evaluation, and their summary over tasks.

The score of a run is the mean return of the episodes that ended in the last part of its budget
(`EvaluationConfig.score_definition`). It is normalised on each task from the random policy (0) to
the best hand-designed contender (1), by their mean scores (`evaluation.scoring.normalization`). A
task on which these two cannot be told apart is left out of all means over tasks. With one seed they
cannot be told apart on any task, because the noise of their scores is unknown.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from evaluation.config import EvaluationConfig
from evaluation.contenders import DISCOVERED, RANDOM, RULE, Contender
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.normalization import Scale, baseline_scale
from evaluation.scoring.statistics import Estimate


@dataclasses.dataclass(frozen=True)
class Summary:
    """The scores of an evaluation. Arrays are in the order of its tasks.

    Attributes:
      tasks: names.
      scores: of each contender's runs; NaN where no episode ended in the window.
      baseline: the best mean score of a hand-designed contender on each task.
      left_out: tasks that are left out of means over tasks, and why.
      tuned: by kind of hand-designed rule, its contender with the best mean over tasks.
      aggregate: each contender's mean normalised score over tasks; empty if no task counts.
      differences: of an evaluated rule's (`DISCOVERED` or `RULE`) and a tuned baseline's mean
        normalised scores, by the rule's name and the baseline's kind.
      above_random: by contender, the tasks on which its mean score is above the random policy's,
        without a significance test; empty if there is only one seed.
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
        """Whether each task counts in means over tasks."""
        return np.array([task not in self.left_out for task in self.tasks], bool)

    @property
    def scale(self) -> Scale:
        """The scale from the random policy to the best baseline."""
        return baseline_scale(statistics.mean(self.scores[RANDOM]), self.baseline, self.counted)


def summarize(
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    contender_curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
) -> Summary:
    """Return the summary of all runs.

    Args:
      tasks: names, in the order of the curves' first axis.
      contenders: among them the random policy.
      contender_curves: the learning curves of each contender, by name.
      config: of the evaluation.
    """
    scores = {c.name: contender_curves[c.name].window.mean_return for c in contenders}
    means = {name: statistics.mean(x) for name, x in scores.items()}
    baseline, baseline_error = _best_baseline(scores, contenders, config)
    error = np.hypot(baseline_error, statistics.standard_error(scores[RANDOM]))
    summary = Summary(
        tasks=tuple(tasks),
        scores=scores,
        baseline=baseline,
        left_out=_left_out(tasks, means, baseline, error, config.min_separation),
        tuned={},
        aggregate={},
        differences={},
        above_random={
            name: tuple(t for t, x, r in zip(tasks, mean, means[RANDOM], strict=True) if x > r)
            for name, mean in means.items()
            if config.seeds > 1
        },
    )
    return _aggregated(summary, contenders, config) if summary.counted.any() else summary


def shown_contenders(summary: Summary, contenders: Sequence[Contender]) -> list[Contender]:
    """Return the contenders for tables and plots.

    They are the discovered rules first, then other rules and agents and each baseline at its tuned
    learning rate, the random policy last.
    """
    order = {DISCOVERED: 0, RANDOM: 2}
    shown = [
        c for c in contenders if c.kind in order or summary.tuned.get(c.kind, c.name) == c.name
    ]
    return sorted(shown, key=lambda c: order.get(c.kind, 1))


def _aggregated(
    summary: Summary, contenders: Sequence[Contender], config: EvaluationConfig
) -> Summary:
    """Return the summary with means over tasks, tuned baselines, and differences from these."""
    scale = summary.scale
    normalized = {name: scale.normalize(x[scale.counted]) for name, x in summary.scores.items()}
    aggregate = {
        name: statistics.estimate(statistics.mean_over_tasks, x, **config.bootstrap)
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
            _difference, normalized[rule.name], normalized[tuned[kind]], **config.bootstrap
        )
        for rule in contenders
        if rule.kind in (DISCOVERED, RULE)
        for kind in config.baselines
    }
    return dataclasses.replace(summary, aggregate=aggregate, tuned=tuned, differences=differences)


def _difference(
    scores: Float[np.ndarray, "*s tasks runs"], others: Float[np.ndarray, "*s tasks other_runs"]
) -> Float[np.ndarray, "*s"] | np.float64:
    return statistics.mean_over_tasks(scores) - statistics.mean_over_tasks(others)


def _best_baseline(
    scores: Mapping[str, Float[np.ndarray, "tasks seeds"]],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
) -> tuple[Float[np.ndarray, "tasks"], Float[np.ndarray, "tasks"]]:
    """Return mean score and standard error of each task's best baseline; NaN if there is none."""
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
    """Return the tasks that are left out of means over tasks, with the reasons.

    Args:
      tasks: names.
      means: each contender's mean scores.
      baseline: the best baseline's mean scores.
      error: standard error of the best baseline's minus the random policy's mean; NaN if there are
        too few runs.
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

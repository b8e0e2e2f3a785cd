"""Aggregate comparisons of contenders on many tasks (Agarwal et al. 2021, arXiv 2108.13264).

Scores are first normalised on one or more scales (`evaluation.scoring.normalization`). A contender
without any run on one of a scale's tasks has no aggregate on that scale; it is listed instead.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from evaluation.config import EvaluationConfig
from evaluation.contenders import GRADIENT_STEPS, RANDOM, AlgorithmContender, Contender
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.curves import aggregate_curves
from evaluation.scoring.curves import areas as areas_of_runs
from evaluation.scoring.normalization import Scale, published_scales
from evaluation.scoring.statistics import Estimate
from evaluation.scoring.summary import Summary, with_discoveries

_PROFILE_POINTS = 81
_MAX_PAIRS = 66  # That plots show: all pairs of a dozen contenders.


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contenders compared on a scale.

    Attributes:
      scale: of all scores.
      left_out: contenders without any run on some counted task, with these tasks.
      aggregates: by contender, or the description of several discoveries, and name in
        `statistics.AGGREGATES`.
      thresholds: of the performance profiles.
      profiles: by contender, the fraction of runs above each threshold, `[value, low, high]`.
      improvement: by pair of contenders, the probability that a run of the first has a higher score
        than a run of the second.
      differences: by pair of contenders, of their mean scores over tasks.
      steps: environment steps of the curves' points.
      curves: by contender, the IQM along the budget, `[value, low, high]`; NaN where a task has no
        episode.
      areas: by contender, the IQM of the areas under the runs' learning curves; none for one
        without an episode on some task.
      gradient_steps: by contender, the optimiser's steps per environment step, if they are known.
      seconds: by contender, wall seconds of training per environment step of a run.
      best: by contender, the number of tasks on which its mean score is the highest, or ties, and
        above the random policy's.
      above_one: by contender, the number of tasks on which its mean score is above 1.
    """

    scale: Scale
    left_out: dict[str, tuple[str, ...]]
    aggregates: dict[str, dict[str, Estimate]]
    thresholds: Float[np.ndarray, "thresholds"]
    profiles: dict[str, Float[np.ndarray, "3 thresholds"]]
    improvement: dict[tuple[str, str], Estimate]
    differences: dict[tuple[str, str], Estimate]
    steps: Int[np.ndarray, "points"]
    curves: dict[str, Float[np.ndarray, "3 points"]]
    areas: dict[str, Estimate]
    gradient_steps: dict[str, float]
    seconds: dict[str, float]
    best: dict[str, int]
    above_one: dict[str, int]

    @property
    def has_discoveries(self) -> bool:
        """Whether some aggregates are of several discoveries."""
        return len(self.aggregates) > len(self.profiles)


def scales(summary: Summary) -> list[Scale]:
    """Return the scales that are defined for an evaluation's tasks; possibly none."""
    own = [summary.scale] if summary.counted.any() else []
    return own + published_scales(summary.tasks)


def compare(
    scale: Scale,
    summary: Summary,
    contender_curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
    shown: Sequence[Contender],
) -> Comparison:
    """Return the comparison of contenders on a scale.

    Args:
      scale: one of `scales(summary)`.
      summary: of the evaluation.
      contender_curves: the learning curves of each contender, by name.
      config: of the evaluation.
      shown: contenders to compare.
    """
    scores, left_out = _complete_scores(scale, summary, shown)
    means = {name: statistics.mean(x) for name, x in scores.items()}
    thresholds = _thresholds(scores)
    steps, curves, areas = np.zeros(0, int), {}, {}
    compared = {name: contender_curves[name] for name in scores}
    if scores:
        steps, curves = aggregate_curves(
            statistics.interquartile_mean, compared, scale.counted, scale.normalize, config
        )
        areas = areas_of_runs(compared, scale.counted, scale.normalize)
    return Comparison(
        scale=scale,
        left_out=left_out,
        aggregates=statistics.aggregates(
            with_discoveries(scores, summary.discoveries), **config.bootstrap
        ),
        thresholds=thresholds,
        profiles={name: _profile(x, thresholds, config) for name, x in scores.items()},
        improvement=_of_pairs(
            statistics.probability_of_improvement, scores, config, bounds=(0.0, 1.0)
        ),
        differences=_of_pairs(statistics.difference_of_means, scores, config),
        steps=steps,
        curves=curves,
        areas={
            name: statistics.estimate(statistics.interquartile_mean, runs, **config.bootstrap)
            for name, runs in areas.items()
            if np.isfinite(runs).any(axis=1).all()
        },
        gradient_steps={
            x.name: x.source[GRADIENT_STEPS] for x in shown if GRADIENT_STEPS in x.source
        },
        seconds={
            name: x.train_seconds / (x.is_finite.size * config.num_steps)
            for name, x in compared.items()
        },
        best=_best(means),
        above_one={name: int(np.sum(x > 1.0)) for name, x in means.items()},
    )


def _of_pairs(
    statistic: statistics.Statistic,
    scores: Mapping[str, Float[np.ndarray, "counted seeds"]],
    config: EvaluationConfig,
    **options: Any,
) -> dict[tuple[str, str], Estimate]:
    options |= config.bootstrap
    return {
        (x, y): statistics.estimate(statistic, scores[x], scores[y], **options)
        for x, y in itertools.permutations(scores, 2)
    }


def _best(means: Mapping[str, Float[np.ndarray, "counted"]]) -> dict[str, int]:
    """Return on how many tasks each mean is the highest, and above the random policy's."""
    chance, learning = means.get(RANDOM, -np.inf), {k: x for k, x in means.items() if k != RANDOM}
    highest = np.max(list(learning.values()), axis=0) if learning else 0.0
    return {k: int(np.sum((x >= highest) & (x > chance))) for k, x in learning.items()}


def shown_pairs(comparison: Comparison, contenders: Sequence[Contender]) -> list[tuple[str, str]]:
    """Return the pairs of contenders whose probability of improvement plots show.

    If there are many pairs, these are only those with an algorithm.

    Args:
      comparison: on a scale.
      contenders: in order; the first of a pair comes before the second.
    """
    shown = [x for x in contenders if x.name in comparison.aggregates]
    pairs = list(itertools.combinations([x.name for x in shown], 2))
    if len(pairs) <= _MAX_PAIRS:
        return pairs
    references = {x.name for x in shown if isinstance(x, AlgorithmContender)}
    return [pair for pair in pairs if references & set(pair)] or pairs


def _complete_scores(
    scale: Scale, summary: Summary, shown: Sequence[Contender]
) -> tuple[dict[str, Float[np.ndarray, "counted seeds"]], dict[str, tuple[str, ...]]]:
    """Return normalised scores by contender, and the contenders that lack tasks, with these."""
    tasks = [task for task, counts in zip(summary.tasks, scale.counted, strict=True) if counts]
    complete, left_out = {}, {}
    for contender in shown:
        scores = scale.normalize(summary.scores[contender.name][scale.counted])
        lacking = tuple(t for t, runs in zip(tasks, scores, strict=True) if np.isnan(runs).all())
        if lacking:
            left_out[contender.name] = lacking
        else:
            complete[contender.name] = scores
    return complete, left_out


def _thresholds(
    scores: Mapping[str, Float[np.ndarray, "counted seeds"]],
) -> Float[np.ndarray, "thresholds"]:
    """Return thresholds from the 1st to the 95th percentile of all runs, at least -0.1 to 1.1."""
    every = np.concatenate([x.ravel() for x in scores.values()] or [np.zeros(1)])
    every = every[np.isfinite(every)]
    high = max(1.1, float(np.quantile(every, 0.95)))
    return np.linspace(min(-0.1, float(np.quantile(every, 0.01))), high, _PROFILE_POINTS)


def _profile(
    scores: Float[np.ndarray, "tasks runs"],
    thresholds: Float[np.ndarray, "thresholds"],
    config: EvaluationConfig,
) -> Float[np.ndarray, "3 thresholds"]:
    """Return a performance profile, with an interval at each threshold."""
    statistic = partial(statistics.performance_profile, thresholds=thresholds)
    low, high = statistics.interval(statistic, scores, bounds=(0.0, 1.0), **config.bootstrap)
    return np.stack([statistic(scores), low, high])

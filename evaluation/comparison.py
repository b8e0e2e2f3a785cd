"""Aggregate comparisons of contenders on many tasks (Agarwal et al. 2021, arXiv 2108.13264).

Scores are put on a common scale first, in one or more ways:

- between the random policy (0) and the best hand-designed contender (1) of the same evaluation, as
  `evaluation.scores` does it, on those tasks where the two can be told apart;
- between the random and the human scores that papers report, where they do for every task;
- between random and human world record, capped at 2: SABER (Toromanoff et al. 2019,
  arXiv 1908.04683), likewise.

A contender without any run on one of the tasks has no aggregate there; it is named instead.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from evaluation import statistics
from evaluation.archive import Gathered
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender
from evaluation.published_aggregates import HUMAN, RECORD
from evaluation.published_aggregates import RANDOM as PUBLISHED_RANDOM
from evaluation.published_scores import PublishedScore, published
from evaluation.scores import Summary, estimated_curves
from evaluation.statistics import Estimate

AGGREGATES: dict[str, Callable[..., np.ndarray]] = {
    "mean": statistics.mean_over_tasks,
    "median": statistics.median_over_tasks,
    "IQM": statistics.interquartile_mean,
    "optimality gap": statistics.optimality_gap,
}
"""What scores on a common scale are aggregated to. The gap is to 1, and better when smaller."""

_PROFILE_POINTS = 81


@dataclasses.dataclass(frozen=True)
class Scale:
    """A way to make scores on different tasks comparable.

    Attributes:
      name: for a heading.
      definition: in a sentence.
      counted: on which tasks it is defined.
      low, high: the scores that become 0 and 1, on the tasks that count.
      cap: that no score exceeds.
    """

    name: str
    definition: str
    counted: Bool[np.ndarray, "tasks"]
    low: Float[np.ndarray, "counted"]
    high: Float[np.ndarray, "counted"]
    cap: float = np.inf

    def __call__(
        self, scores: Float[np.ndarray, "counted runs"]
    ) -> Float[np.ndarray, "counted runs"]:
        """Scores on this scale, on the tasks that count."""
        return statistics.normalize(scores, self.low, self.high, self.cap)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contenders on a scale.

    Attributes:
      scale: of all.
      left_out: contenders without any run on some task that counts, with these tasks.
      aggregates: by contender and name of `AGGREGATES`.
      thresholds: at which the profiles are.
      profiles: fraction of runs above each threshold, `[value, low, high]`, by contender.
      improvement: probability that a run of the first contender is better than one of the second.
      steps: environment steps at which the curves' points are.
      curves: by contender, the IQM along the budget, `[value, low, high]`; NaN where no episode of
        some task ended.
      best: on how many tasks a contender has the best mean score, ties counting for all.
      above_one: on how many its mean score is above 1.
    """

    scale: Scale
    left_out: dict[str, tuple[str, ...]]
    aggregates: dict[str, dict[str, Estimate]]
    thresholds: Float[np.ndarray, "thresholds"]
    profiles: dict[str, Float[np.ndarray, "3 thresholds"]]
    improvement: dict[tuple[str, str], Estimate]
    steps: Float[np.ndarray, "points"]
    curves: dict[str, Float[np.ndarray, "3 points"]]
    best: dict[str, int]
    above_one: dict[str, int]


def scales(summary: Summary) -> list[Scale]:
    """The scales that are defined for an evaluation's tasks; possibly none."""
    found = []
    if summary.counted.any():
        random = statistics.mean(summary.scores[RANDOM])[summary.counted]
        found.append(
            Scale(
                name="Normalised by the best baseline",
                definition="0 is the random policy's mean score, 1 that of the best hand-designed"
                f" contender on each task; over {summary.counted.sum()} of {len(summary.tasks)}"
                " tasks, on which these two can be told apart.",
                counted=summary.counted,
                low=random,
                high=summary.baseline[summary.counted],
            )
        )
    for name, reference, cap in (("Human-normalised", HUMAN, np.inf), ("SABER", RECORD, 2.0)):
        pairs = [pair for task in summary.tasks if (pair := _references(task, reference))]
        if len(pairs) < len(summary.tasks):
            continue
        low, high = (np.array([x.score for x in side]) for side in zip(*pairs, strict=True))
        capped = "" if np.isinf(cap) else f", and no score is above {cap:g}"
        found.append(
            Scale(
                name=name,
                definition=f"0 is a random policy's score, 1 the {reference.lower()}'s{capped}, as"
                f" {pairs[0][0].source} has them; over {len(pairs)} tasks.",
                counted=np.ones(len(pairs), bool),
                low=low,
                high=high,
                cap=cap,
            )
        )
    return found


def _references(task: str, reference: str) -> tuple[PublishedScore, PublishedScore] | None:
    """The random and the other score of the first paper that has both; None if none has."""
    by_source: dict[str, dict[str, PublishedScore]] = {}
    for score in published(task):
        by_source.setdefault(score.source, {})[score.agent] = score
    for scores in by_source.values():
        if PUBLISHED_RANDOM in scores and reference in scores:
            return scores[PUBLISHED_RANDOM], scores[reference]
    return None


def compare(
    gathered: Gathered, summary: Summary, scale: Scale, shown: Sequence[Contender]
) -> Comparison:
    """Compares contenders on a scale.

    Args:
      gathered: their runs.
      summary: of these.
      scale: of `scales(summary)`.
      shown: contenders to compare.
    """
    config = gathered.config
    scores = {
        contender.name: scale(summary.scores[contender.name][scale.counted]) for contender in shown
    }
    tasks = [task for task, counts in zip(summary.tasks, scale.counted, strict=True) if counts]
    left_out = {
        name: tuple(task for task, runs in zip(tasks, x, strict=True) if np.isnan(runs).all())
        for name, x in scores.items()
    }
    left_out = {name: without for name, without in left_out.items() if without}
    scores = {name: x for name, x in scores.items() if name not in left_out}
    estimate = partial(statistics.estimate, **config.bootstrap)
    means = {name: statistics.mean(x) for name, x in scores.items()}
    highest = np.max(list(means.values()), axis=0) if means else np.zeros(0)
    thresholds = _thresholds(scores)
    updates, curves = np.zeros(0, int), {}
    if scores:
        histories = {name: gathered.histories[name] for name in scores}
        updates, curves = estimated_curves(
            statistics.interquartile_mean, histories, scale.counted, scale, config
        )
    return Comparison(
        scale=scale,
        left_out=left_out,
        aggregates={
            name: {label: estimate(statistic, x) for label, statistic in AGGREGATES.items()}
            for name, x in scores.items()
        },
        thresholds=thresholds,
        profiles={name: _profile(x, thresholds, config) for name, x in scores.items()},
        improvement={
            (name, other): estimate(
                statistics.probability_of_improvement, scores[name], scores[other]
            )
            for name in scores
            for other in scores
            if name != other
        },
        steps=updates * config.agent.steps_per_update,
        curves=curves,
        best={name: int(np.sum(x >= highest)) for name, x in means.items()},
        above_one={name: int(np.sum(x > 1.0)) for name, x in means.items()},
    )


def _thresholds(scores: Mapping[str, np.ndarray]) -> Float[np.ndarray, "thresholds"]:
    """From the worst run to the best, without the worst hundredth and the best twentieth."""
    every = np.concatenate([x.ravel() for x in scores.values()] or [np.zeros(1)])
    every = every[np.isfinite(every)]
    high = max(1.1, float(np.quantile(every, 0.95)))
    return np.linspace(min(-0.1, float(np.quantile(every, 0.01))), high, _PROFILE_POINTS)


def _profile(
    scores: Float[np.ndarray, "tasks runs"],
    thresholds: Float[np.ndarray, "thresholds"],
    config: EvaluationConfig,
) -> Float[np.ndarray, "3 thresholds"]:
    """A performance profile, with an interval at each threshold."""
    statistic = partial(statistics.performance_profile, thresholds=thresholds)
    low, high = statistics.interval(statistic, scores, **config.bootstrap)
    return np.stack([statistic(scores), low, high])

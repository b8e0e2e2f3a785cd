"""Scores of all runs of an evaluation, and their summary over tasks.

The score of a run is the mean return of the episodes that ended in the last part of its budget
(`EvaluationConfig.score_definition`). It is normalised on each task between two constants, the
random policy's score (0) and a reference (1): see `evaluation.scoring.references`. A task without
them is left out of all means over tasks.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from evaluation.config import EvaluationConfig
from evaluation.contenders import DISCOVERED, RANDOM, Contender, RuleContender
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.normalization import Scale, reference_scale
from evaluation.scoring.references import Reference
from evaluation.scoring.statistics import Estimate

# What the headers of rules say that differ in the seed of their discovery only, besides the rule's
# own settings. The meta-steps of an exported rule may differ, as each discovery exports its best.
_SAME_IN_ALL_SEEDS = ("environments", "agent", "population", "meta", "objective")


@dataclasses.dataclass(frozen=True)
class Summary:
    """The scores of an evaluation. Arrays are in the order of its tasks.

    Attributes:
      tasks: names.
      scores: of each contender's runs; NaN where no episode ended in the window.
      not_finite: of each contender, the tasks without a score because returns are not finite.
      references: the scale of each task that has one, by name.
      left_out: tasks that are left out of means over tasks, and why.
      baseline: the best mean score of an algorithm that is not random, on each task; NaN without
        any.
      aggregates: of each contender's normalised scores, by its name and that of the statistic
        (`statistics.AGGREGATES`); empty if no task counts.
      improvement: the probability that a run of an evaluated rule has a
        higher score than a baseline's, by their names.
      discoveries: for each discovery that has several rules, which differ in its seed only, their
        names.
      differences: of the mean normalised scores of an evaluated rule and of a baseline, likewise.
      above_random: by contender, the tasks on which its mean score is above the random policy's,
        without a significance test; empty if there is only one seed.
    """

    tasks: tuple[str, ...]
    scores: dict[str, Float[np.ndarray, "tasks seeds"]]
    not_finite: dict[str, Bool[np.ndarray, "tasks"]]
    references: Mapping[str, Reference]
    left_out: dict[str, str]
    baseline: Float[np.ndarray, "tasks"]
    aggregates: dict[str, dict[str, Estimate]]
    improvement: dict[tuple[str, str], Estimate]
    discoveries: dict[str, tuple[str, ...]]
    differences: dict[tuple[str, str], Estimate]
    above_random: dict[str, tuple[str, ...]]

    @property
    def counted(self) -> Bool[np.ndarray, "tasks"]:
        """Whether each task counts in means over tasks."""
        return np.array([task not in self.left_out for task in self.tasks], bool)

    def missing(self, contender: str, task: int) -> str:
        """Return why a contender has no score on a task, for a cell of a table."""
        is_infinite = contender in self.not_finite and self.not_finite[contender][task]
        return "not finite" if is_infinite else "no episode"

    @property
    def scores_over_discoveries(self) -> dict[str, Float[np.ndarray, "tasks rules"]]:
        """The mean scores of each discovery's rules, by its description: a rule is a run."""
        return {
            several: np.stack([statistics.mean(self.scores[name]) for name in names], axis=-1)
            for several, names in self.discoveries.items()
        }

    @property
    def scale(self) -> Scale:
        """The scale from the random policy to the reference."""
        return reference_scale(self.tasks, self.references, self.counted)


def summarize(
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    contender_curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
    references: Mapping[str, Reference],
    reasons: Mapping[str, str] | None = None,
) -> Summary:
    """Return the summary of all runs.

    Args:
      tasks: names, in the order of the curves' first axis.
      contenders: among them the random policy.
      contender_curves: the learning curves of each contender, by name.
      config: of the evaluation.
      references: by task; of those that have one.
      reasons: why other tasks have none, where it is known.
    """
    scores = {c.name: contender_curves[c.name].window.mean_return for c in contenders}
    means = {name: statistics.mean(x) for name, x in scores.items()}
    not_finite = {
        name: contender_curves[name].window.is_not_finite.any(axis=1) & np.isnan(mean)
        for name, mean in means.items()
    }
    baselines = [means[c.name] for c in contenders if _is_baseline(c)]
    nothing = np.full(len(tasks), -np.inf)
    best = np.max([np.nan_to_num(x, nan=-np.inf) for x in (nothing, *baselines)], axis=0)
    summary = Summary(
        tasks=tuple(tasks),
        scores=scores,
        not_finite=not_finite,
        references=references,
        left_out=_left_out(tasks, means, not_finite, references, reasons or {}),
        baseline=np.where(np.isfinite(best), best, np.nan),
        aggregates={},
        improvement={},
        discoveries=discoveries_of(contenders),
        differences={},
        above_random={
            name: tuple(t for t, x, r in zip(tasks, mean, means[RANDOM], strict=True) if x > r)
            for name, mean in means.items()
            if config.seeds > 1
        },
    )
    return _aggregated(summary, contenders, config) if summary.counted.any() else summary


def in_order(contenders: Sequence[Contender]) -> list[Contender]:
    """Return contenders for tables and plots: discovered rules first, the random policy last."""
    order = {DISCOVERED: 0, RANDOM: 2}
    return sorted(contenders, key=lambda c: order.get(c.kind, 1))


def _is_baseline(contender: Contender) -> bool:
    return not isinstance(contender, RuleContender) and not contender.is_random


def _aggregated(
    summary: Summary, contenders: Sequence[Contender], config: EvaluationConfig
) -> Summary:
    """Return the summary with aggregates over tasks, and the rules compared with the baselines."""
    scale = summary.scale
    normalized = {name: scale.normalize(x[scale.counted]) for name, x in summary.scores.items()}
    rules = [x.name for x in contenders if isinstance(x, RuleContender)]
    baselines = [x.name for x in contenders if _is_baseline(x)]
    entrants = with_discoveries(normalized, summary.discoveries)
    pairs = [*itertools.product([*rules, *summary.discoveries], baselines)]

    def compared(
        statistic: statistics.Statistic, low: float, high: float
    ) -> dict[tuple[str, str], Estimate]:
        options = {"bounds": (low, high), **config.bootstrap}
        return {
            (x, y): statistics.estimate(statistic, entrants[x], normalized[y], **options)
            for x, y in pairs
        }

    return dataclasses.replace(
        summary,
        aggregates=statistics.aggregates(entrants, **config.bootstrap),
        improvement=compared(statistics.probability_of_improvement, 0.0, 1.0),
        differences=compared(statistics.difference_of_means, -np.inf, np.inf),
    )


def discoveries_of(contenders: Sequence[Contender]) -> dict[str, tuple[str, ...]]:
    """Return the discovered rules that differ in the seed of their discovery only.

    Returns:
      By a description of them, the names of two rules or more. Of several rules of one seed, the
      first one; none that a discovery started from.
    """
    by_seed: dict[str, dict[str, str]] = {}
    for contender in contenders:
        header = contender.source.get("header", {})
        known = header.get("provenance", {})
        is_discovery = isinstance(known, dict) and "seed" in known and known.get("meta_steps") != 0
        if contender.kind == DISCOVERED and is_discovery:
            same = [known.get(name) for name in _SAME_IN_ALL_SEEDS]
            same += [header.get("sizes"), header.get("hyper_parameters")]
            same.append(known.get("planned_meta_steps", known.get("meta_steps")))
            names = by_seed.setdefault(json.dumps(same, sort_keys=True), {})
            names.setdefault(json.dumps(known["seed"]), contender.name)
    return {
        f"{len(found)} discoveries ({', '.join(found.values())})": tuple(found.values())
        for found in by_seed.values()
        if len(found) > 1
    }


def with_discoveries(
    normalized: Mapping[str, Float[np.ndarray, "counted seeds"]],
    discoveries: Mapping[str, Sequence[str]],
) -> dict[str, statistics.Rules]:
    """Return scores by contender, and then those of several discoveries.

    Args:
      normalized: normalised scores by contender.
      discoveries: see `discoveries_of`; those without scores of some rule are left out.
    """
    several = {
        description: [normalized[name] for name in names]
        for description, names in discoveries.items()
        if all(name in normalized for name in names)
    }
    return {**normalized, **several}


def _left_out(
    tasks: Sequence[str],
    means: Mapping[str, Float[np.ndarray, "tasks"]],
    not_finite: Mapping[str, Bool[np.ndarray, "tasks"]],
    references: Mapping[str, Reference],
    reasons: Mapping[str, str],
) -> dict[str, str]:
    """Return the tasks that are left out of means over tasks, with the reasons."""
    found = {}
    for i, task in enumerate(tasks):
        infinite = [name for name, is_one in not_finite.items() if is_one[i]]
        missing = [x for x, mean in means.items() if np.isnan(mean[i]) and x not in infinite]
        if task not in references:
            found[task] = reasons.get(task, "there is no reference score")
        elif infinite:
            found[task] = f"no return of {', '.join(infinite)} in the score's window is finite"
        elif missing:
            found[task] = f"no episode of {', '.join(missing)} ended in the score's window"
    return found

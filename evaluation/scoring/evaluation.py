"""The runs of an evaluation with their scores, and comparisons of contenders over tasks.

The score of a run is the mean return of the episodes that ended in the last part of its budget
(`EvaluationConfig.score_definition`). Scores on different tasks are put together on one or more
scales (`evaluation.scoring.references`), first of all from the random policy's score (0) to a
reference (1). Comparisons are those of Agarwal et al. 2021 (arXiv 2108.13264).
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    DISCOVERED,
    GRADIENT_STEPS,
    RANDOM,
    Contender,
)
from evaluation.results import LearningCurves, join_intervals
from evaluation.scoring import statistics
from evaluation.scoring.references import (
    Reference,
    Scale,
    normalize,
    published_scales,
    reference_scale,
)
from evaluation.scoring.statistics import Estimate

# What the headers of rules say that differ in the seed of their discovery only, besides the rule's
# own settings. The meta-steps of an exported rule may differ, as each discovery exports its best.
_SAME_IN_ALL_SEEDS = ("environments", "agent", "population", "meta", "objective")
_PROFILE_POINTS = 81

RunKey = tuple[str, str, int]
"""A run's contender, task and seed."""

Estimates = Mapping[tuple[str, str], Estimate]
"""A statistic of a contender, or of several discoveries, and another contender, by their names."""

Curves = tuple[Int[np.ndarray, "points"], dict[str, Float[np.ndarray, "3 points"]]]
"""The environment steps of a curve's points; and by contender a value, and the low and high end of
its band, at each point."""


@dataclasses.dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation on disk, finished or not.

    The contenders are without their rules; the provenance has JSON values: code version, command,
    machine.
    """

    folder: pathlib.Path
    config: EvaluationConfig
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    provenance: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """The runs of an evaluation, or of several. Arrays are in the order of its tasks.

    Attributes:
      config: its settings.
      tasks: names.
      contenders: among them the random policy.
      contender_curves: the learning curves by contender; a missing run has no episodes, and NaN as
        results.
      seeds: of the curves' second axis.
      references: the scale of each task that has one, by name.
      reasons: why other tasks have none, where it is known.
      folders: of the runs that are present.
      missing: runs that are absent.
      sources: the evaluations on disk that it was read from.
      problems: one sentence for each file of theirs that is ignored.
    """

    config: EvaluationConfig
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    contender_curves: Mapping[str, LearningCurves]
    seeds: tuple[int, ...]
    references: Mapping[str, Reference]
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folders: Mapping[RunKey, pathlib.Path] = dataclasses.field(default_factory=dict)
    missing: tuple[RunKey, ...] = ()
    sources: tuple[StoredEvaluation, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The names of the sources' folders."""
        return " + ".join(dict.fromkeys(source.folder.name for source in self.sources))

    @cached_property
    def scores(self) -> dict[str, Float[np.ndarray, "tasks seeds"]]:
        """Scores of each contender's runs; NaN where no episode ended in the window."""
        return {x.name: self.contender_curves[x.name].window.mean_return for x in self.contenders}

    @cached_property
    def not_finite(self) -> dict[str, Bool[np.ndarray, "tasks"]]:
        """The tasks on which a contender has no score because returns are not finite."""
        return {
            name: self.contender_curves[name].window.is_not_finite.any(axis=1)
            & np.isnan(statistics.mean(scores))
            for name, scores in self.scores.items()
        }

    @property
    def ordered(self) -> list[Contender]:
        """Contenders for tables and plots: discovered rules first, the random policy last."""
        order = {DISCOVERED: 0, RANDOM: 2}
        return sorted(self.contenders, key=lambda x: order.get(x.kind, 1))

    @cached_property
    def shown(self) -> list[Contender]:
        """Contenders with at least one score, in order."""
        return [x for x in self.ordered if np.isfinite(self.scores[x.name]).any()]

    @cached_property
    def left_out(self) -> dict[str, str]:
        """The tasks that are left out of means over tasks, and why."""
        found = {}
        for i, task in enumerate(self.tasks):
            infinite = [name for name, is_one in self.not_finite.items() if is_one[i]]
            missing = [name for name, scores in self.scores.items() if np.isnan(scores[i]).all()]
            if task not in self.references:
                found[task] = self.reasons.get(task, "there is no reference score")
            elif infinite:
                found[task] = f"no return of {', '.join(infinite)} in the score's window is finite"
            elif missing:
                found[task] = f"no episode of {', '.join(missing)} ended in the score's window"
        return found

    @cached_property
    def baselines(self) -> list[str]:
        """The algorithms but the random policy."""
        return [x.name for x in self.contenders if x.is_baseline]

    @cached_property
    def best_baseline(self) -> Float[np.ndarray, "tasks"]:
        """The best mean score of a baseline on each task; NaN without any."""
        nothing = np.full(len(self.tasks), np.nan)
        means = [statistics.mean(self.scores[name]) for name in self.baselines]
        return np.fmax.reduce([nothing, *means])

    @cached_property
    def above_random(self) -> dict[str, tuple[str, ...]]:
        """The tasks on which a contender's mean score is above the random policy's.

        Without a significance test; empty if there is only one seed.
        """
        means = {name: statistics.mean(scores) for name, scores in self.scores.items()}
        return {
            name: tuple(t for t, x, r in zip(self.tasks, mean, means[RANDOM], strict=True) if x > r)
            for name, mean in means.items()
            if self.config.seeds > 1
        }

    @cached_property
    def discoveries(self) -> dict[str, tuple[str, ...]]:
        """The discovered rules that differ in the seed of their discovery only.

        By a description of them, the names of two rules or more. Of several rules of one seed, the
        first one; none that a discovery started from.
        """
        by_seed: dict[str, dict[str, str]] = {}
        for contender in self.contenders:
            header = contender.source.get("header", {})
            known = header.get("provenance", {})
            is_discovery = isinstance(known, dict) and "seed" in known
            if contender.kind == DISCOVERED and is_discovery and known.get("meta_steps") != 0:
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

    @cached_property
    def scales(self) -> list[Scale]:
        """The scales that are defined for the tasks: first its own, by references; maybe none."""
        counted = np.array([task not in self.left_out for task in self.tasks], bool)
        own = [reference_scale(self.tasks, self.references, counted)] if counted.any() else []
        return own + published_scales(self.tasks)

    @cached_property
    def comparisons(self) -> "list[Comparison]":
        """The shown contenders compared on each scale."""
        return [compare(self, scale, self.shown) for scale in self.scales]

    @property
    def by_references(self) -> "Comparison | None":
        """The comparison on the scale of the references; None if no task counts on it."""
        return self.comparisons[0] if len(self.left_out) < len(self.tasks) else None

    def num_runs(self, contender: str) -> int:
        """Return how many runs of a contender are present."""
        missing = sum(name == contender for name, _, _ in self.missing)
        return self.contender_curves[contender].is_finite.size - missing

    def task_curves(self, task: int, contenders: Sequence[str]) -> Curves:
        """Return learning curves of contenders on a task: mean ± standard error over seeds.

        They are NaN where they are unknown. The points are those of `join_intervals`.
        """
        chosen = np.arange(len(self.tasks)) == task
        updates, joined = join_intervals([self.contender_curves[x] for x in contenders], chosen)
        curves = {}
        for name, episodes in zip(contenders, joined, strict=True):
            returns = episodes.mean_return[0].T
            mean, error = statistics.mean(returns), statistics.standard_error(returns)
            curves[name] = np.stack([mean, mean - error, mean + error])
        return updates * self.config.agent.steps_per_update, curves


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Contenders compared on a scale.

    Attributes:
      scale: of all scores.
      config: of the evaluation.
      scores: normalised, by contender with a score on each counted task.
      discoveries: the names of several rules that differ in the seed of their discovery only, by
        their description.
      left_out: contenders without any score on some counted task, with these tasks.
      contender_curves: the learning curves of those in `scores`.
      gradient_steps: by contender, the optimiser's steps per environment step, if they are known.
      seconds: by contender in `scores`, the wall seconds of a run per environment step.
    """

    scale: Scale
    config: EvaluationConfig
    scores: Mapping[str, Float[np.ndarray, "counted seeds"]]
    discoveries: Mapping[str, Sequence[str]]
    left_out: Mapping[str, tuple[str, ...]]
    contender_curves: Mapping[str, LearningCurves]
    gradient_steps: Mapping[str, float]
    seconds: Mapping[str, float]

    @cached_property
    def _of_rules(self) -> dict[str, statistics.Rules]:
        """The scores of each contender, and of the rules of several discoveries."""
        several = {x: [self.scores[name] for name in own] for x, own in self.discoveries.items()}
        return {**self.scores, **several}

    @cached_property
    def aggregates(self) -> dict[str, dict[str, Estimate]]:
        """`statistics.AGGREGATES` by contender, or description of several discoveries, and name."""
        own = partial(statistics.estimate, **self.config.bootstrap)
        return {
            name: {label: own(x, scores) for label, x in statistics.AGGREGATES.items()}
            for name, scores in self._of_rules.items()
        }

    @cached_property
    def improvement(self) -> Estimates:
        """The probability that a run of the first contender scores higher than the second's."""
        return self._of_pairs(statistics.probability_of_improvement)

    @cached_property
    def differences(self) -> Estimates:
        """The difference of mean scores over tasks."""
        return self._of_pairs(statistics.difference_of_means)

    def _of_pairs(self, statistic: statistics.Statistic) -> Estimates:
        pairs = [*itertools.permutations(self.scores, 2)]
        pairs += [
            (several, other)
            for several, names in self.discoveries.items()
            for other in self.scores
            if other not in names
        ]
        of = partial(statistics.estimate, statistic, **self.config.bootstrap)
        return {(x, y): of(self._of_rules[x], self.scores[y]) for x, y in pairs}

    @cached_property
    def thresholds(self) -> Float[np.ndarray, "thresholds"]:
        """From the 1st to the 95th percentile of all runs, at least -0.1 to 1.1."""
        every = np.concatenate([x.ravel() for x in self.scores.values()] or [np.zeros(1)])
        every = every[np.isfinite(every)]
        high = max(1.1, float(np.quantile(every, 0.95)))
        return np.linspace(min(-0.1, float(np.quantile(every, 0.01))), high, _PROFILE_POINTS)

    @cached_property
    def profiles(self) -> dict[str, Float[np.ndarray, "3 thresholds"]]:
        """The fraction of a contender's runs above each threshold, `[value, low, high]`."""
        profile = partial(statistics.performance_profile, thresholds=self.thresholds)
        options = {"bounds": (0.0, 1.0), **self.config.bootstrap}
        return {
            name: np.stack([profile(x), *statistics.interval(profile, x, **options)])
            for name, x in self.scores.items()
        }

    @cached_property
    def _normalized_curves(
        self,
    ) -> tuple[Int[np.ndarray, "points"], dict[str, Float[np.ndarray, "points counted seeds"]]]:
        """The environment steps of joined intervals, and the normalised returns at each."""
        if not self.scores:
            return np.zeros(0, int), {}
        scale, kept = self.scale, self.scale.counted
        updates, joined = join_intervals(list(self.contender_curves.values()), kept)
        returns = [np.moveaxis(episodes.mean_return, -1, 0) for episodes in joined]
        found = [normalize(x, scale.low[kept], scale.high[kept], scale.cap) for x in returns]
        steps = updates * self.config.agent.steps_per_update
        return steps, dict(zip(self.contender_curves, found, strict=True))

    def curves(self, statistic: statistics.Statistic) -> Curves:
        """Return a statistic of normalised returns along the budget, and its interval over seeds.

        The points are those of `join_intervals`; NaN where a task has no episode.
        """
        steps, returns = self._normalized_curves
        curves = {name: np.full((3, len(steps)), np.nan) for name in returns}
        for name, points in returns.items():
            for point, runs in enumerate(points):
                if np.isfinite(runs).any(axis=-1).all():
                    ends = statistics.interval(statistic, runs, **self.config.bootstrap)
                    curves[name][:, point] = statistic(runs), *ends
        return steps, curves

    @cached_property
    def areas(self) -> dict[str, Estimate]:
        """The IQM of the areas under the runs' learning curves: their means over the points.

        None of a contender without an episode on some task.
        """
        of_runs = {
            k: statistics.mean(x.transpose(1, 2, 0)) for k, x in self._normalized_curves[1].items()
        }
        own = partial(statistics.estimate, statistics.interquartile_mean, **self.config.bootstrap)
        return {k: own(x) for k, x in of_runs.items() if np.isfinite(x).any(axis=1).all()}


def compare(evaluation: Evaluation, scale: Scale, shown: Sequence[Contender]) -> Comparison:
    """Return some contenders of an evaluation, compared on one of its scales."""
    tasks = [x for x, counts in zip(evaluation.tasks, scale.counted, strict=True) if counts]
    complete, left_out = {}, {}
    for contender in shown:
        scores = scale.normalize(evaluation.scores[contender.name])
        lacking = tuple(t for t, runs in zip(tasks, scores, strict=True) if np.isnan(runs).all())
        if lacking:
            left_out[contender.name] = lacking
        else:
            complete[contender.name] = scores
    discoveries = {x: own for x, own in evaluation.discoveries.items() if {*own} <= {*complete}}
    return Comparison(
        scale=scale,
        config=evaluation.config,
        scores=complete,
        discoveries=discoveries,
        left_out=left_out,
        contender_curves={name: evaluation.contender_curves[name] for name in complete},
        gradient_steps={
            x.name: x.source[GRADIENT_STEPS] for x in shown if GRADIENT_STEPS in x.source
        },
        seconds={
            x.name: evaluation.contender_curves[x.name].train_seconds
            / (evaluation.num_runs(x.name) * x.num_steps(evaluation.config))
            for x in shown
            if x.name in complete
        },
    )

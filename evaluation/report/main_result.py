"""The main result of an evaluation in sentences: who is ahead, by how much, and where it loses.

Contenders are ranked by their interquartile mean (IQM), on a single task by their mean. The data
separate two of them if the widest interval of the difference excludes 0: that over tasks and seeds,
where there are enough tasks. Several discoveries, which differ in their seed only, count as one
contender. A contender that is not above the random policy leads nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender, RuleContender
from evaluation.report.texts import interval_legend, number_of
from evaluation.scoring import statistics
from evaluation.scoring.normalization import Scale
from evaluation.scoring.statistics import AGGREGATES, Estimate
from evaluation.scoring.summary import Summary

_MOST_NAMED = 3  # Contenders, or tasks, in a sentence.


@dataclasses.dataclass(frozen=True)
class MainResult:
    """The main result of an evaluation.

    Attributes:
      sentences: the result, for a reader.
      leader: the contender with the highest IQM (mean of a single task) or, where there is none,
        with the highest mean score on the most tasks; empty if no contender that learns is above
        the random policy.
      is_ahead: whether the data separate it from every other contender that learns and from the
        random policy.
      worse_on: tasks on which another contender has a higher mean score, the furthest below first.
    """

    sentences: tuple[str, ...]
    leader: str = ""
    is_ahead: bool = False
    worse_on: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Entrant:
    """A contender, or several discoveries as one.

    Attributes:
      name: of the contender, or the description of the discoveries.
      parts: the scores of its rules' runs, `[tasks, runs]` each; of a contender one.
      is_rule: whether it learns by a rule that is evaluated.
    """

    name: str
    parts: tuple[Float[np.ndarray, "tasks _"], ...]
    is_rule: bool = False

    @property
    def runs(self) -> Float[np.ndarray, "tasks _"]:
        """All runs."""
        return np.concatenate(self.parts, axis=1)

    @property
    def has_several_runs(self) -> bool:
        """Whether there are several runs of some task, from which intervals follow."""
        return bool((np.isfinite(self.runs).sum(axis=1) > 1).any())

    @property
    def scored(self) -> Bool[np.ndarray, "tasks"]:
        """Whether it has a score on each task."""
        return np.asarray(np.isfinite(self.runs).any(axis=1), bool)

    def on(self, tasks: Bool[np.ndarray, "tasks"]) -> "_Entrant":
        """Return it with the scores on some tasks."""
        return dataclasses.replace(self, parts=tuple(part[tasks] for part in self.parts))

    def normalized(self, scale: Scale) -> "_Entrant":
        """Return it with normalised scores, if its scores are of the scale's tasks."""
        return dataclasses.replace(self, parts=tuple(map(scale.normalize, self.parts)))

    def aggregate(self, label: str, config: EvaluationConfig) -> Estimate:
        """Return an aggregate of its runs (`statistics.AGGREGATES`)."""
        if len(self.parts) > 1:
            return AGGREGATES[label].estimate_over_discoveries(self.parts, **config.bootstrap)
        return AGGREGATES[label].estimate(self.runs, **config.bootstrap)

    def improvement(self, other: "_Entrant", config: EvaluationConfig) -> Estimate:
        """Return the probability that a run of it scores higher, on the tasks that both have."""
        both = self.scored & other.scored
        one, two, options = self.on(both), other.on(both), {"bounds": (0.0, 1.0)}
        return one._compared(two, statistics.probability_of_improvement, 1.0, config, options)

    def difference(self, other: "_Entrant", label: str, config: EvaluationConfig) -> Estimate:
        """Return an aggregate of its runs (`statistics.AGGREGATES`) minus that of another's."""
        aggregate = AGGREGATES[label].statistic

        def statistic(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.asarray(aggregate(scores) - aggregate(others))

        return self._compared(other, statistic, 0.0, config, {})

    def _compared(
        self,
        other: "_Entrant",
        statistic: statistics.Statistic,
        total: float,
        config: EvaluationConfig,
        options: Mapping[str, Any],
    ) -> Estimate:
        """Return a statistic of both; `total` is its sum with that of the other and this one."""
        if len(other.parts) > len(self.parts):  # Whose rules are resampled: they are more.
            return other._compared(self, statistic, total, config, options).mirrored(total)
        options = {**options, **config.bootstrap}
        if len(self.parts) > 1:
            return statistics.estimate_over_discoveries(
                statistic, self.parts, other.runs, **options
            )
        return statistics.estimate(statistic, self.runs, other.runs, **options)


def main_result(
    summary: Summary,
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    scale: Scale | None,
) -> MainResult:
    """Return the main result of an evaluation.

    Args:
      summary: of all contenders.
      contenders: to compare, and the random policy.
      config: of the evaluation.
      scale: on which scores of different tasks are put together; None if there is none. Scores of
        a single task need none.
    """
    is_counted = np.ones(len(summary.tasks), bool) if scale is None else scale.counted
    every = [x.on(is_counted) for x in _entrants(summary, contenders)]
    learning = [x for x in every if x.name != RANDOM and x.scored.any()]
    if not learning:
        infinite = [x.name for x in every if summary.not_finite.get(x.name, is_counted).any()]
        why = f": no return of {_listed(infinite)} is finite" if infinite else ""
        return MainResult((f"No contender that learns has a score{why}.",))
    tasks = [task for task, counts in zip(summary.tasks, is_counted, strict=True) if counts]
    where, means = _where(summary, config, len(tasks)), _Means.of(tasks, every)
    if config.seeds == 1 or not any(x.has_several_runs for x in learning):
        return MainResult(
            (
                f"{where}, no interval is known: the data cannot separate contenders, and"
                " normalised means are not shown.",
                f"{means.wins()}.",
            ),
            means.leader,
        )
    complete = [x for x in every if x.scored.all()]
    if (scale is None and len(tasks) > 1) or all(x.name == RANDOM for x in complete):
        return _by_tasks(where, every, means, config)
    found = _by_aggregates(where, complete, means, config, scale)
    if omitted := [x.name for x in every if x not in complete]:
        end = f"{_listed(omitted)}: left out of these means, as scores on some task are missing."
        return dataclasses.replace(found, sentences=(*found.sentences, end))
    return found


@dataclasses.dataclass(frozen=True)
class _Means:
    """The mean score of each contender that learns, on each task.

    Attributes:
      tasks: names.
      means: by contender; NaN without a score.
      chance: of the random policy; NaN without a score.
      spread: standard deviation of all runs on each task.
    """

    tasks: Sequence[str]
    means: Mapping[str, Float[np.ndarray, "tasks"]]
    chance: Float[np.ndarray, "tasks"]
    spread: Float[np.ndarray, "tasks"]

    @classmethod
    def of(cls, tasks: Sequence[str], every: Sequence[_Entrant]) -> "_Means":
        """Return the means of contenders on tasks."""
        learning = [x for x in every if x.name != RANDOM and x.scored.any()]
        runs = np.concatenate([x.runs for x in learning], axis=1)
        spread = np.std(np.where(np.isfinite(runs), runs, statistics.mean(runs)[:, None]), axis=1)
        means = {x.name: statistics.mean(x.runs) for x in learning}
        chance = [statistics.mean(x.runs) for x in every if x.name == RANDOM]
        return cls(tasks, means, chance[0] if chance else np.full(len(tasks), np.nan), spread)

    @property
    def _wins(self) -> list[tuple[str, int]]:
        """The number of tasks on which each contender has the highest mean, or ties; most first.

        Where the random policy's mean is as high, nobody has it.
        """
        highest = _highest(self.means)
        is_won = ~(highest <= self.chance)
        wins = {name: int(np.sum((x >= highest) & is_won)) for name, x in self.means.items()}
        return sorted(wins.items(), key=lambda pair: -pair[1])

    @property
    def leader(self) -> str:
        """The contender with the highest mean on the most tasks; empty if nobody has it on any."""
        name, number = self._wins[0]
        return name if number else ""

    def wins(self) -> str:
        """Return who has the highest mean on how many tasks, as a clause."""
        (first, most), *others = self._wins[:_MOST_NAMED]
        if not most:
            return "no contender that learns has a higher mean score than the random policy"
        also = "".join(f", {name} on {number}" for name, number in others if number)
        return f"{first} has the highest mean score on {most} of {len(self.tasks)} tasks{also}"

    def lost_by(
        self, leader: str, unit: Float[np.ndarray, "tasks"]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return where another contender has a higher mean, in a sentence and as tasks.

        Args:
          leader: a contender.
          unit: of scores on each task, by which differences are compared.
        """
        others = {name: x for name, x in self.means.items() if name != leader}
        if not others:
            return [], ()
        own, highest = self.means[leader], _highest(others)
        gaps = (highest - own) / np.where(unit > 0.0, unit, 1.0)
        order = [int(i) for i in np.argsort(-gaps, kind="stable") if gaps[i] > 0.0]
        if not order:
            return ["No other contender has a higher mean score on any task."], ()
        shown = []
        for i in order[:_MOST_NAMED]:
            winner = next(name for name, x in others.items() if x[i] == highest[i])
            shown.append(f"{self.tasks[i]} ({own[i]:.4g}; {winner} {highest[i]:.4g})")
        furthest = ", furthest below" * (len(order) > _MOST_NAMED)
        return [
            f"{leader} has a lower mean score than another contender on {len(order)} of"
            f" {len(self.tasks)} tasks{furthest}: {', '.join(shown)}."
        ], tuple(self.tasks[i] for i in order)


def _by_tasks(
    where: str, every: Sequence[_Entrant], means: _Means, config: EvaluationConfig
) -> MainResult:
    """Return the result by the number of tasks won, and by probabilities of improvement."""
    if not means.leader:
        return MainResult((f"{where}, {means.wins()}.",))
    [first] = [x for x in every if x.name == means.leader]
    others = [x for x in every if x is not first and (first.scored & x.scored).any()]
    found = {x.name: first.improvement(x, config) for x in others}
    level = [name for name, estimate in found.items() if not estimate.is_above(0.5)]
    told = f" The data cannot separate it from {_listed(level)}." if level else ""
    lost, worse = means.lost_by(first.name, means.spread)
    learning = {name: x for name, x in found.items() if name != RANDOM}
    tasks, several = len(means.tasks), any(len(x.parts) > 1 for x in every)
    compared = f"; {_improvement(learning, config, tasks, several)}" if learning else ""
    won = (
        means.wins() if len(means.means) > 1 else f"{first.name} is the only contender that learns"
    )
    text = f"{where}, which no scale puts together, {won}{compared}."
    return MainResult((text + told, *lost), first.name, bool(learning) and not level, worse)


def _by_aggregates(
    where: str,
    known: Sequence[_Entrant],
    means: _Means,
    config: EvaluationConfig,
    scale: Scale | None,
) -> MainResult:
    """Return the result by aggregates and probability of improvement.

    The aggregates are IQM and median over tasks; of a single task, where the IQM of few runs is
    their mean, the mean of its runs.

    Args:
      where: the tasks and the seeds.
      known: contenders, and the random policy.
      means: of the contenders that learn.
      config: of the evaluation.
      scale: None for the returns of a single task.
    """
    scaled = known if scale is None else [x.normalized(scale) for x in known]
    label, *further = ("mean",) if len(means.tasks) == 1 else ("IQM", "median")
    found = {x.name: x.aggregate(label, config) for x in scaled}
    ranked = sorted(scaled, key=lambda x: -found[x.name].value)
    first, *others = [x for x in ranked if x.name != RANDOM]
    if RANDOM in found and not found[first.name].value > found[RANDOM].value:
        best, chance = (found[name].text(2) for name in (first.name, RANDOM))
        return MainResult(
            (
                f"{where}, no contender that learns is above the random policy: {label} {chance}"
                f" of the random policy, {best} of {first.name}.",
            )
        )
    differences = {x.name: first.difference(x, label, config) for x in ranked if x is not first}
    level = [name for name, x in differences.items() if not x.is_above(0.0)]
    rivals = others or [x for x in ranked if x.name == RANDOM]
    numbers = []
    for one in (label, *further):
        of_two = [x.aggregate(one, config).text(2) for x in (first, *rivals[:1])]
        against = f" of {rivals[0].name}" if rivals else ""
        numbers.append(f"{one} {' against '.join(of_two)}{against if one == label else ''}")
        if rivals and one == label:
            numbers.append(f"difference {differences[rivals[0].name].text(2)}")
    compared = rivals[: _MOST_NAMED if len(rivals) <= _MOST_NAMED else 1]
    if compared:
        improvement = {x.name: first.improvement(x, config) for x in compared}
        several = any(len(x.parts) > 1 for x in known)
        numbers.append(_improvement(improvement, config, len(means.tasks), several))
    unit = means.spread if scale is None else scale.high - scale.low
    lost, worse = means.lost_by(first.name, unit)
    standing = _standing(first.name, [x.name for x in others], level, label)
    ranks = _rank_of_rule(first, others, found, label)
    sentences = [f"{where}, {standing}: {'; '.join(numbers)}.", *ranks]
    if RANDOM in level:
        random = found[RANDOM].text(2)
        sentences.append(
            f"The data cannot separate {first.name} from the random policy, which has {random}."
        )
    return MainResult((*sentences, *lost), first.name, bool(others) and not level, worse)


def _rank_of_rule(
    first: _Entrant, others: Sequence[_Entrant], found: Mapping[str, Estimate], label: str
) -> list[str]:
    """Return the place of the best evaluated rule, if it is neither the first nor the second."""
    ranked = [first, *others]
    places = [i for i, x in enumerate(ranked) if x.is_rule]
    if not places or places[0] < 2:
        return []
    rule = ranked[places[0]].name
    return [f"{rule} is number {places[0] + 1} of {len(ranked)}: {label} {found[rule].text(2)}."]


def _improvement(
    found: Mapping[str, Estimate], config: EvaluationConfig, tasks: int, several: bool
) -> str:
    """Return probabilities of improvement, and what all intervals are over, as a clause."""
    parts = [f"{estimate.text(2)} over {name}" for name, estimate in found.items()]
    legend = interval_legend(tasks, config.confidence, "tasks", several)
    return f"probability of improvement {', '.join(parts)} ({legend})"


def _standing(first: str, others: Sequence[str], level: Sequence[str], label: str) -> str:
    """Return the leader's standing, by an aggregate, among the other contenders that learn."""
    if not others:
        return f"{first} is the only contender that learns"
    if level:
        return f"{first} has the highest {label}, but the data cannot separate it from" + (
            f" {_listed(level)}"
        )
    if len(others) == 1:
        return f"{first} is ahead of {others[0]}"
    return f"{first} is ahead of the {len(others)} other contenders that learn"


def _entrants(summary: Summary, contenders: Sequence[Contender]) -> list[_Entrant]:
    """Return the contenders, with several discoveries as one."""
    grouped = {name for names in summary.discoveries.values() for name in names}
    several = [
        _Entrant(description, tuple(summary.scores[name] for name in names), is_rule=True)
        for description, names in summary.discoveries.items()
    ]
    return several + [
        _Entrant(x.name, (summary.scores[x.name],), isinstance(x, RuleContender))
        for x in contenders
        if x.name not in grouped
    ]


def _where(summary: Summary, config: EvaluationConfig, counted: int) -> str:
    """Return the tasks and the seeds, as the beginning of a sentence."""
    every = len(summary.tasks)
    tasks = f"{counted} tasks" if counted == every else f"{counted} of {every} tasks"
    named = summary.tasks[0] if every == 1 else tasks
    return f"On {named} with {number_of('seed', config.seeds)}"


def _highest(means: Mapping[str, Float[np.ndarray, "tasks"]]) -> Float[np.ndarray, "tasks"]:
    """Return the highest mean on each task; minus infinity without a score."""
    return np.max([np.nan_to_num(x, nan=-np.inf) for x in means.values()], axis=0)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

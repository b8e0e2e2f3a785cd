"""The main result of an evaluation in sentences: who is ahead over tasks, and who may not be.

Contenders are ranked by their interquartile mean (IQM), on a single task by their mean; where no
scale puts the tasks together, by the probability that a run of theirs is better than one of another
contender, on the tasks that both have. The data separate two of them if the widest interval of the
difference excludes 0 (of the probability, 0.5): that over tasks and seeds, where there are enough
tasks. Several discoveries, which differ in their seed only, count as one contender. A contender
that is not above the random policy leads nothing.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM
from evaluation.report.tables import interval_legend, number_of
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.references import Scale
from evaluation.scoring.statistics import AGGREGATES, Estimate


@dataclasses.dataclass(frozen=True)
class MainResult:
    """The main result of an evaluation.

    Attributes:
      sentences: the result, for a reader.
      leader: the first of the contenders that learn; empty without intervals, or if it is not above
        the random policy.
      is_ahead: whether the data separate it from every other contender that learns, of which there
        are some, and from the random policy.
    """

    sentences: tuple[str, ...]
    leader: str = ""
    is_ahead: bool = False


@dataclasses.dataclass(frozen=True)
class _Entrant:
    """A contender, or several discoveries as one.

    Attributes:
      name: of the contender, or the description of the discoveries.
      parts: the scores of its rules' runs, `[tasks, runs]` each; of a contender one.
    """

    name: str
    parts: tuple[Float[np.ndarray, "tasks _"], ...]

    @property
    def runs(self) -> Float[np.ndarray, "tasks _"]:
        """All runs."""
        return np.concatenate(self.parts, axis=1)

    @property
    def scored(self) -> Bool[np.ndarray, "tasks"]:
        """Whether it has a score on each task."""
        return np.asarray(np.isfinite(self.runs).any(axis=1), bool)

    def aggregate(self, label: str, config: EvaluationConfig) -> Estimate:
        """Return an aggregate of its runs (`statistics.AGGREGATES`)."""
        return statistics.estimate(AGGREGATES[label], self.parts, **config.bootstrap)

    def beside(self, other: "_Entrant", label: str, config: EvaluationConfig) -> Estimate:
        """Return the difference of an aggregate; without a label, the probability of being better.

        They are of the tasks on which both have scores.
        """
        if len(other.parts) > len(self.parts):  # Whose rules are resampled: they are more.
            return other.beside(self, label, config).mirrored(0.0 if label else 1.0)

        def difference(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.asarray(AGGREGATES[label](scores) - AGGREGATES[label](others))

        both = self.scored & other.scored
        parts, others = [x[both] for x in self.parts], other.runs[both]
        statistic = difference if label else statistics.probability_of_improvement
        return statistics.estimate(statistic, parts, others, **config.bootstrap)


def main_result(evaluation: Evaluation) -> MainResult:
    """Return the main result of an evaluation, on its first scale."""
    config, tasks = evaluation.config, evaluation.tasks
    scale = next(iter(evaluation.scales), None)
    counted = np.ones(len(tasks), bool) if scale is None else scale.counted
    every = _entrants(evaluation, counted, scale)
    learning = [x for x in every if x.name != RANDOM]
    if not learning:
        infinite = [name for name, x in evaluation.not_finite.items() if x[counted].any()]
        why = f": no return of {_listed(infinite)} is finite" if infinite else ""
        return MainResult((f"No contender that learns has a score{why}.",))
    number, known = int(counted.sum()), len(tasks)
    several = f"{number} tasks" if number == known else f"{number} of {known} tasks"
    where = f"On {tasks[0] if known == 1 else several} with {number_of('seed', config.seeds)}"
    if config.seeds == 1 or not any((np.isfinite(x.runs).sum(1) > 1).any() for x in learning):
        return MainResult((f"{where}, no interval is known: the data cannot separate contenders.",))
    label = "mean" if number == 1 else "IQM" if scale is not None else ""
    complete = [x for x in every if x.scored.all()]
    if not label or all(x.name == RANDOM for x in complete):
        return _ranked(f"{where}, which no scale puts together", every, "", config)
    found = _ranked(where, complete, label, config)
    if omitted := [x.name for x in learning if not x.scored.all()]:
        end = f"{_listed(omitted)}: left out, as scores on some task are missing."
        return dataclasses.replace(found, sentences=(*found.sentences, end))
    return found


def _ranked(
    where: str, entrants: Sequence[_Entrant], label: str, config: EvaluationConfig
) -> MainResult:
    """Return the result by an aggregate; without a label, by probabilities of improvement.

    Args:
      where: the tasks and the seeds.
      entrants: contenders, and the random policy, if it has scores. With a label, on all tasks.
      label: of the aggregate.
      config: of the evaluation.
    """
    found = {x.name: x.aggregate(label, config) for x in entrants} if label else {}
    texts = {name: f" ({label} {x.text(2)})" for name, x in found.items()}
    values = {name: x.value for name, x in found.items()} or _mean_probabilities(entrants)
    ranked = sorted(entrants, key=lambda x: -values[x.name])
    first, *_ = learning = [x for x in ranked if x.name != RANDOM]
    if RANDOM in values and not values[first.name] > values[RANDOM]:
        said = f"no contender that learns is above the random policy{texts.get(RANDOM, '')}"
        best = f"the best is {first.name}{texts.get(first.name, '')}"
        return MainResult((f"{where}, {said}; {best}.",))
    others = [x for x in learning[1:] if (x.scored & first.scored).any()]
    chance = [x for x in ranked if x.name == RANDOM and (x.scored & first.scored).any()]
    beside = {x.name: first.beside(x, label, config) for x in (*others, *chance)}
    level = [name for name, x in beside.items() if not x.is_above(0.0 if label else 0.5)]
    numbers = [f"{label} {found[first.name].text(2)}"] if label else []
    for name, estimate in [*beside.items()][:1]:  # The second one.
        what = f"difference from {name}{texts[name]}" if label else f"P(better than {name})"
        numbers.append(f"{what} {estimate.text(2)}")
    nested = any(len(x.parts) > 1 for x in entrants)
    legend = interval_legend(len(first.scored), config.confidence, "tasks", nested)
    if doubtful := [name for name in level if name != RANDOM]:
        standing = (
            f"{first.name} is first, but the data cannot separate it from {_listed(doubtful)}"
        )
    elif others:
        several = f"the {len(others)} other contenders that learn"
        standing = f"{first.name} is ahead of {several if len(others) > 1 else others[0].name}"
    else:
        standing = f"{first.name} is the only contender that learns"
    shown = f": {'; '.join(numbers)} ({legend})" if numbers else ""
    sentences = [f"{where}, {standing}{shown}."]
    if RANDOM in level:
        said = f"from the random policy{texts.get(RANDOM, '')}"
        sentences.append(f"The data cannot separate {first.name} {said}.")
    return MainResult(tuple(sentences), first.name, bool(others) and not level)


def _entrants(
    evaluation: Evaluation, counted: Bool[np.ndarray, "tasks"], scale: Scale | None
) -> list[_Entrant]:
    """Return the contenders with scores on some counted task, and several discoveries as one."""
    grouped = {name for names in evaluation.discoveries.values() for name in names}
    named = {x.name: (x.name,) for x in evaluation.ordered if x.name not in grouped}
    found = []
    for name, names in {**evaluation.discoveries, **named}.items():
        parts = [evaluation.scores[one][counted] for one in names]
        found.append(_Entrant(name, tuple(map(scale.normalize, parts) if scale else parts)))
    return [x for x in found if x.scored.any()]


def _mean_probabilities(entrants: Sequence[_Entrant]) -> dict[str, float]:
    """Return the mean probability of being better than another, on the tasks that both have."""
    found = {}
    for one in entrants:
        shared = [(x, one.scored & x.scored) for x in entrants if x is not one]
        pairs = [(one.runs[both], x.runs[both]) for x, both in shared if both.any()]
        values = [float(statistics.probability_of_improvement(*pair)) for pair in pairs]
        found[one.name] = float(np.mean(values or [0.5]))
    return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

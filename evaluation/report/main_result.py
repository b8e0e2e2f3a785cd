"""The main result of an evaluation in sentences: who is ahead over tasks, and who may not be.

Contenders are ranked by their interquartile mean (IQM), on a single task by their mean; where no
scale puts the tasks together, by the probability that a run of theirs is better than one of another
contender, on the tasks that both have. The data separate two of them if the widest interval of the
difference excludes 0 (of the probability, 0.5): that over tasks and seeds, where there are enough
tasks. Several discoveries, which differ in their seed only, count as one contender. A contender
that is not above the random policy leads nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM
from evaluation.report.tables import interval_legend, number_of
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.statistics import AGGREGATES, Estimate

Parts = Sequence[Float[np.ndarray, "tasks _"]]
"""The scores of a contender's runs; of several discoveries, which count as one, those of each."""


def main_result(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the main result of an evaluation, on its first scale, in sentences."""
    config, tasks = evaluation.config, evaluation.tasks
    scale = next(iter(evaluation.scales), None)
    counted = np.ones(len(tasks), bool) if scale is None else scale.counted
    every = {
        name: [scale.normalize(x) if scale else x for x in (evaluation.scores[y] for y in names)]
        for name, names in _groups(evaluation).items()
    }
    every = {name: parts for name, parts in every.items() if _scored(parts).any()}
    learning = {name: parts for name, parts in every.items() if name != RANDOM}
    if not learning:
        infinite = [name for name, x in evaluation.not_finite.items() if x[counted].any()]
        why = f": no return of {_listed(infinite)} is finite" if infinite else ""
        return (f"No contender that learns has a score{why}.",)
    number, known = int(counted.sum()), len(tasks)
    several = f"{number} tasks" if number == known else f"{number} of {known} tasks"
    where = f"On {tasks[0] if known == 1 else several} with {number_of('seed', config.seeds)}"
    runs = [np.isfinite(np.concatenate(parts, axis=1)).sum(axis=1) for parts in learning.values()]
    if config.seeds == 1 or np.max(runs) < 2:
        return (f"{where}, no interval is known: the data cannot separate contenders.",)
    label = "mean" if number == 1 else "IQM" if scale is not None else ""
    complete = {name: parts for name, parts in every.items() if _scored(parts).all()}
    if not label or not {*complete} - {RANDOM}:
        return _ranked(f"{where}, which no scale puts together", every, "", config)
    found = _ranked(where, complete, label, config)
    if omitted := [name for name in learning if name not in complete]:
        end = f"{_listed(omitted)}: left out, as scores on some task are missing."
        return (*found, end)
    return found


def _groups(evaluation: Evaluation) -> dict[str, Sequence[str]]:
    """Return the names of several discoveries, and those of all other contenders, by a name."""
    grouped = {name for names in evaluation.discoveries.values() for name in names}
    alone = {x.name: [x.name] for x in evaluation.ordered if x.name not in grouped}
    return {**evaluation.discoveries, **alone}


def _ranked(
    where: str, entrants: Mapping[str, Parts], label: str, config: EvaluationConfig
) -> tuple[str, ...]:
    """Return the result by an aggregate; without a label, by probabilities of improvement.

    Args:
      where: the tasks and the seeds.
      entrants: contenders, and the random policy, if it has scores. With a label, on all tasks.
      label: of the aggregate.
      config: of the evaluation.
    """
    found: dict[str, Estimate] = {}
    texts = dict.fromkeys(entrants, "")
    if not label:
        values = _mean_probabilities(entrants)
    else:
        of = AGGREGATES[label]
        found = {k: statistics.estimate(of, x, **config.bootstrap) for k, x in entrants.items()}
        values = {name: x.value for name, x in found.items()}
        texts = {name: f" ({label} {x.text(2)})" for name, x in found.items()}
    ranked = sorted(entrants, key=lambda name: -values[name])
    first, *others = [name for name in ranked if name != RANDOM]
    if RANDOM in values and not values[first] > values[RANDOM]:
        said = f"no contender that learns is above the random policy{texts[RANDOM]}"
        return (f"{where}, {said}; the best is {first}{texts[first]}.",)
    own = _scored(entrants[first])
    others = [name for name in others if (_scored(entrants[name]) & own).any()]
    chance = [RANDOM] if RANDOM in entrants and (_scored(entrants[RANDOM]) & own).any() else []
    beside = {x: _beside(entrants[first], entrants[x], label, config) for x in others + chance}
    level = [name for name, x in beside.items() if not x.is_above(0.0 if label else 0.5)]
    numbers = [f"{label} {found[first].text(2)}"] if label else []
    for name, estimate in [*beside.items()][:1]:  # The second one.
        what = f"difference from {name}{texts[name]}" if label else f"P(better than {name})"
        numbers.append(f"{what} {estimate.text(2)}")
    nested = any(len(parts) > 1 for parts in entrants.values())
    legend = interval_legend(len(own), config.confidence, nested)
    if doubtful := [name for name in level if name != RANDOM]:
        standing = f"{first} is first, but the data cannot separate it from {_listed(doubtful)}"
    elif others:
        several = f"the {len(others)} other contenders that learn"
        standing = f"{first} is ahead of {several if len(others) > 1 else others[0]}"
    else:
        standing = f"{first} is the only contender that learns"
    shown = f": {'; '.join(numbers)} ({legend})" if numbers else ""
    sentences = [f"{where}, {standing}{shown}."]
    if RANDOM in level:
        said = f"from the random policy{texts[RANDOM]}"
        sentences.append(f"The data cannot separate {first} {said}.")
    return tuple(sentences)


def _scored(parts: Parts) -> Bool[np.ndarray, "tasks"]:
    """Return whether there is a score on each task."""
    return np.asarray(np.isfinite(np.concatenate(parts, axis=1)).any(axis=1))


def _beside(parts: Parts, others: Parts, label: str, config: EvaluationConfig) -> Estimate:
    """Return the difference of an aggregate; without a label, the probability of being better.

    They are of the tasks on which both have scores.
    """
    if len(others) > len(parts):  # Whose rules are resampled: they are more.
        return _beside(others, parts, label, config).mirrored(0.0 if label else 1.0)

    def difference(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.asarray(AGGREGATES[label](scores) - AGGREGATES[label](others))

    both = _scored(parts) & _scored(others)
    statistic = difference if label else statistics.probability_of_improvement
    own, joined = [x[both] for x in parts], np.concatenate(others, axis=1)[both]
    return statistics.estimate(statistic, own, joined, **config.bootstrap)


def _mean_probabilities(entrants: Mapping[str, Parts]) -> dict[str, float]:
    """Return the mean probability of being better than another, on the tasks that both have."""
    found = {}
    for name, parts in entrants.items():
        own, values = np.concatenate(parts, axis=1), []
        for other in (np.concatenate(x, axis=1) for key, x in entrants.items() if key != name):
            both = np.isfinite(own).any(axis=1) & np.isfinite(other).any(axis=1)
            if both.any():
                values.append(statistics.probability_of_improvement(own[both], other[both]))
        found[name] = float(np.mean(values or [0.5]))
    return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

"""The CSV tables of an evaluation: scores, means over episodes, and scores that papers report."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.config import EvaluationConfig
from evaluation.published.scores import PublishedScore
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.statistics import Estimate
from evaluation.scoring.summary import Summary


def scores_to_csv(summary: Summary, config: EvaluationConfig) -> str:
    """Return a table with a row per task and per mean over tasks, and two columns per contender."""
    return _to_csv(_score_rows(summary, config))


def episode_means_to_csv(summary: Summary, contender_curves: Mapping[str, LearningCurves]) -> str:
    """Return a table with a row per task, contender and result of its scored episodes."""
    return _to_csv(_episode_mean_rows(summary, contender_curves))


def published_to_csv(
    published: Mapping[str, Sequence[PublishedScore]], summary: Summary, config: EvaluationConfig
) -> str:
    """Return a table with a row per task and agent, with its budget.

    Args:
      published: the scores that papers report, by task.
      summary: our scores.
      config: of our evaluation.
    """
    return _to_csv(_published_rows(published, summary, config))


def _to_csv(rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _score_rows(summary: Summary, config: EvaluationConfig) -> Iterator[list[Any]]:
    scores = summary.scores | summary.scores_over_discoveries
    names = list(scores)
    yield [
        f"task (score: {config.score_definition}; {config.seeds} seeds)",
        *(column for name in names for column in (name, f"{name} standard error")),
    ]
    means = {name: statistics.mean(x) for name, x in scores.items()}
    errors = {name: statistics.standard_error(x) for name, x in scores.items()}
    for i, task in enumerate(summary.tasks):
        yield [task, *(_number(x) for name in names for x in (means[name][i], errors[name][i]))]
    for label, values in _rows_over_tasks(summary, config):
        yield [label, *(x for name in names for x in (values.get(name, ""), ""))]


def _rows_over_tasks(
    summary: Summary, config: EvaluationConfig
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows over all tasks: label, and value by contender."""
    over = f"over {summary.counted.sum()} tasks"
    for statistic in statistics.AGGREGATES if summary.aggregates else ():
        own = {name: found[statistic] for name, found in summary.aggregates.items()}
        yield from _with_interval(f"normalised score, {statistic} {over}", own, config)
    for what, pairs in (
        ("probability of improvement over", summary.improvement),
        ("mean normalised score minus that of", summary.differences),
    ):
        for baseline in dict.fromkeys(baseline for _, baseline in pairs):
            own = {rule: x for (rule, other), x in pairs.items() if other == baseline}
            yield from _with_interval(f"{what} {baseline}, {over}", own, config)
    numbers = {name: len(above) for name, above in summary.above_random.items()}
    label = "tasks above random by mean score, without a significance test"
    yield f"{label}, of {len(summary.tasks)}", numbers


def _with_interval(
    label: str, estimates: Mapping[str, Estimate], config: EvaluationConfig
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows of an estimate by contender: its value, and the ends of its interval."""
    percent = f"{config.confidence:.0%} interval"
    for part, name in (("value", ""), ("low", f": {percent}, low"), ("high", f": {percent}, high")):
        yield label + name, {n: _number(getattr(x, part)) for n, x in estimates.items()}


def _episode_mean_rows(
    summary: Summary, contender_curves: Mapping[str, LearningCurves]
) -> Iterator[list[Any]]:
    yield ["task", "contender", "result", "mean over episodes", "standard error", "seeds"]
    for i, task in enumerate(summary.tasks):
        for contender, curves in contender_curves.items():
            for name, values in curves.results.items():
                known = values[i][np.isfinite(values[i])]
                if known.size:
                    mean = statistics.mean(known[None])[0]
                    error = statistics.standard_error(known[None])[0]
                    yield [task, contender, name, _number(mean), _number(error), known.size]


def _published_rows(
    published: Mapping[str, Sequence[PublishedScore]], summary: Summary, config: EvaluationConfig
) -> Iterator[list[Any]]:
    yield ["task", "agent", "score", "standard error", "seeds", "budget", "unit", "source", "note"]
    for i, task in enumerate(summary.tasks):
        for name, scores in summary.scores.items():
            mean, error = statistics.mean(scores)[i], statistics.standard_error(scores)[i]
            numbers = [_number(mean), _number(error), config.seeds, config.num_steps, "steps"]
            yield [task, name, *numbers, "this run", config.score_definition]
        for score in published.get(task, ()):
            budget = "" if score.budget is None else score.budget
            numbers = [_number(score.score), "", "", budget, score.budget_unit]
            yield [task, score.agent, *numbers, score.source, _note(score, task)]


def _note(score: PublishedScore, task: str) -> str:
    elsewhere = f"measured on {score.task}" if score.task != task else ""
    return "; ".join(filter(None, (score.scored_on, elsewhere, score.note)))


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""

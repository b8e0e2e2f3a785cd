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
    names = list(summary.scores)
    yield [
        f"task (score: {config.score_definition}; {config.seeds} seeds)",
        *(column for name in names for column in (name, f"{name} standard error")),
    ]
    means = {name: statistics.mean(x) for name, x in summary.scores.items()}
    errors = {name: statistics.standard_error(x) for name, x in summary.scores.items()}
    for i, task in enumerate(summary.tasks):
        yield [task, *(_number(x) for name in names for x in (means[name][i], errors[name][i]))]
    for label, values in _rows_over_tasks(summary, config):
        yield [label, *(x for name in names for x in (values.get(name, ""), ""))]


def _rows_over_tasks(
    summary: Summary, config: EvaluationConfig
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows over all tasks: label, and value by contender."""
    for part, label in _interval_labels(config):
        estimates = {n: _number(getattr(e, part)) for n, e in summary.aggregate.items()}
        yield f"normalised score, mean over {summary.counted.sum()} tasks: {label}", estimates
    for kind, contender in summary.tuned.items():
        for part, label in _interval_labels(config):
            values = {
                rule: _number(getattr(estimate, part))
                for (rule, other), estimate in summary.differences.items()
                if other == kind
            }
            yield f"the same minus {contender}'s: {label}", values
    numbers = {name: len(above) for name, above in summary.above_random.items()}
    label = "tasks above random by mean score, without a significance test"
    yield f"{label}, of {len(summary.tasks)}", numbers


def _interval_labels(config: EvaluationConfig) -> list[tuple[str, str]]:
    percent = f"{config.confidence:.0%} interval"
    return [("value", "mean"), ("low", f"{percent}, low"), ("high", f"{percent}, high")]


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
    return "; ".join(filter(None, (elsewhere, score.note)))


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""

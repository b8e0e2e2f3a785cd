"""Tables of the scores that papers report on an evaluation's tasks, beside ours."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluation.published import (
    HUMAN,
    METRICS,
    RANDOM,
    RECORD,
    RETURN,
    PublishedScore,
    published_scores,
    published_tables,
)
from evaluation.report.tables import format_number
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.references import Scale, reference_scores

_UNKNOWN = "episodes unknown to us"
_UNITS = {10**9: "B", 10**6: "M", 10**3: "K"}


class TaskTable(NamedTuple):
    """Our scores and the papers'.

    Attributes:
      rows: one for each task, then the mean and the median over the tasks on each scale that is
        defined on all of them. The papers' references are those of the human-normalised scale.
      scored_on: the episodes that the papers' scores are of, each with the names of its agents.
    """

    rows: Sequence[Mapping[str, str]]
    scored_on: Mapping[str, Sequence[str]]


def task_table(evaluation: Evaluation) -> TaskTable | None:
    """Return the table of an evaluation; None if no paper has a score on its tasks."""
    tasks = evaluation.tasks
    agents, references = _papers_columns(tasks)
    if not agents:
        return None
    columns = {
        name: dict(zip(tasks, statistics.mean(scores), strict=True))
        for name, scores in evaluation.scores.items()
    }
    columns |= references
    scored_on: dict[str, list[str]] = {}
    for name, scores in agents.items():
        columns[name] = {task: score.score for task, score in scores.items()}
        episodes = next(iter(scores.values())).scored_on or _UNKNOWN
        scored_on.setdefault(episodes, []).append(name)
    rows = [
        {"task": task, **{name: _cell(x.get(task)) for name, x in columns.items()}}
        for task in tasks
    ]
    return TaskTable([*rows, *_rows_over_tasks(tasks, columns, evaluation.scales)], scored_on)


def _papers_columns(
    tasks: Sequence[str],
) -> tuple[dict[str, dict[str, PublishedScore]], dict[str, dict[str, float]]]:
    """Return the scores of each paper's agents, and of the references, by name and task."""
    found: dict[tuple[str, str, int | None], dict[str, PublishedScore]] = {}
    references: dict[str, dict[str, float]] = {}
    for task in tasks:
        for score in published_scores(task):
            if score.agent not in (RANDOM, HUMAN, RECORD):
                found.setdefault((score.source, score.agent, score.budget), {})[task] = score
        for score in reference_scores(task, HUMAN) or ():
            references.setdefault(f"{score.agent} (papers)", {})[task] = score.score
    agents = {}
    for (source, agent, budget), scores in found.items():
        several = sum((source, agent) == key[:2] for key in found) > 1
        which = f"{agent} {_budget(budget)}" if several and budget is not None else agent
        agents[_distinct(f"{which} ({source.partition(',')[0]})", agents)] = scores
    return agents, references


def _rows_over_tasks(
    tasks: Sequence[str], columns: Mapping[str, Mapping[str, float]], scales: Sequence[Scale]
) -> Iterator[dict[str, str]]:
    """Yield the mean and the median normalised score of the columns that have every task."""
    for scale in scales if len(tasks) > 1 else ():
        if not scale.counted.all():
            continue
        values = {}
        for name, scores in columns.items():
            own = np.array([[scores.get(task, np.nan)] for task in tasks])
            values[name] = scale.normalize(own)[:, 0]
        for label, over_tasks in (("mean", np.mean), ("median", np.median)):
            cells = {name: _cell(float(over_tasks(x))) for name, x in values.items()}
            yield {"task": f"{scale.name}, {label} over {len(tasks)} tasks", **cells}


def _cell(score: float | None) -> str:
    return "" if score is None else format_number(score)


def _budget(budget: int) -> str:
    unit = next((x for x in _UNITS if budget >= x), 1)
    return f"{budget / unit:g}{_UNITS.get(unit, '')}"


def _distinct(name: str, others: Mapping[str, object]) -> str:
    return name if name not in others else _distinct(f"{name}'", others)


def published_rows(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the rows of `published.csv`."""
    for (i, task), metric in itertools.product(enumerate(evaluation.tasks), METRICS):
        for score in published_scores(task, metric):
            is_return = metric == RETURN
            scales = on_scales(evaluation, score.score, i) if is_return else {metric: score.score}
            for scale, value in scales.items():
                yield {
                    "task": task,
                    "agent": score.agent,
                    "metric": metric,
                    "scale": scale,
                    "score": rounded(value),
                    "plus_minus": score.plus_minus if scale == metric else None,
                    "runs": len(score.runs) or None,
                    "budget": score.budget,
                    "budget_unit": score.budget_unit if score.budget is not None else "",
                    "scored_on": score.scored_on,
                    "measured_on": score.task,
                    "source": score.source,
                    "note": score.note,
                }


def on_scales(evaluation: Evaluation, score: float, task: int) -> dict[str, float]:
    """Return a return on a task on each scale that the task has, by name; nothing for no return."""
    if not math.isfinite(score):
        return {}
    own = {
        x.name: min((score - x.low[task]) / (x.high[task] - x.low[task]), x.cap)
        for x in evaluation.scales
        if x.counted[task]
    }
    return {RETURN: score, **own}


def rounded(value: float) -> float | None:
    """Return a number with six significant digits; None if it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def protocols(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Return source and protocol of each paper's table that has scores on some of the tasks."""
    used = {
        x.source for task in tasks for metric in METRICS for x in published_scores(task, metric)
    }
    return [(x.source, x.protocol) for x in published_tables() if x.source in used]

"""The papers' own aggregates over tasks, reproduced from the scores that they print.

Agreement shows that our copy of the scores is right and that our statistics equal the papers'.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evaluation.published.scores import (
    HUMAN,
    RANDOM,
    RECORD,
    PrintedAggregate,
    PublishedScore,
    PublishedTable,
    published_tables,
)
from evaluation.scoring import statistics
from evaluation.scoring.normalization import normalize


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A printed aggregate and the one computed from the printed scores.

    Attributes:
      source: the paper and table.
      aggregate: as printed.
      tasks: names of those with a score.
      computed: the aggregate of these scores, in the format of the printed one.
      agrees: whether the two are equal to the last printed digit.
    """

    source: str
    aggregate: PrintedAggregate
    tasks: tuple[str, ...]
    computed: str
    agrees: bool


@dataclasses.dataclass(frozen=True)
class _Scores:
    """An agent's scores, and reference scores on the same tasks.

    Attributes:
      values: NaN where a task has fewer runs; one column if only means are known.
      references: the scores of `RANDOM`, `HUMAN` and `RECORD`, as far as the table has them.
      categories: of each task.
    """

    values: Float[np.ndarray, "tasks runs"]
    references: dict[str, Float[np.ndarray, "tasks"]]
    categories: Sequence[tuple[str, ...]]

    def normalized(self, high: str = HUMAN, cap: float = np.inf) -> Float[np.ndarray, "tasks runs"]:
        """Return scores normalised from random (0) to a reference (1)."""
        return normalize(self.values, self.references[RANDOM], self.references[high], cap)


def _category_mean(scores: _Scores) -> float:
    names = {name for categories in scores.categories for name in categories}
    is_in = [[name in categories for categories in scores.categories] for name in names]
    return float(
        np.mean([statistics.mean_over_tasks(scores.values[np.array(rows)]) for rows in is_in])
    )


STATISTICS: dict[str, Callable[[_Scores], Any]] = {
    "mean_score": lambda x: statistics.mean_over_tasks(x.values),
    "median_score": lambda x: statistics.median_over_tasks(x.values),
    "category_mean": _category_mean,
    "mean_human_normalized": lambda x: statistics.mean_over_tasks(x.normalized()),
    "median_human_normalized": lambda x: statistics.median_over_tasks(x.normalized()),
    "iqm_human_normalized": lambda x: statistics.interquartile_mean(x.normalized()),
    "optimality_gap_human_normalized": lambda x: statistics.optimality_gap(x.normalized()),
    "superhuman_tasks": lambda x: np.sum(statistics.mean(x.normalized()) > 1.0),
    "mean_record_normalized": lambda x: statistics.mean_over_tasks(x.normalized(RECORD)),
    "mean_clipped_record_normalized": lambda x: statistics.mean_over_tasks(
        x.normalized(RECORD, cap=1.0)
    ),
    "mean_saber": lambda x: statistics.mean_over_tasks(x.normalized(RECORD, cap=2.0)),
    "median_saber": lambda x: statistics.median_over_tasks(x.normalized(RECORD, cap=2.0)),
}
"""The statistics that papers print. SABER: see `evaluation.scoring.normalization`."""


def reproductions() -> tuple[Reproduction, ...]:
    """Return every aggregate that a paper prints, with ours.

    Raises:
      PublishedScoresError: if a file of scores is damaged.
      KeyError: if it names a statistic that is not in `STATISTICS`, or references that no file has.
    """
    found = []
    tables = {table.source: table for table in published_tables()}
    for table in tables.values():
        for aggregate in table.aggregates:
            own = _columns(table)[aggregate.agent, aggregate.budget]
            scores = _scores(table, tables[table.references or table.source], own)
            value = float(STATISTICS[aggregate.statistic](scores))
            computed = _as_printed(value, aggregate.printed)
            found.append(
                Reproduction(
                    source=table.source,
                    aggregate=aggregate,
                    tasks=tuple(own),
                    computed=computed,
                    agrees=computed == aggregate.printed,
                )
            )
    return tuple(found)


def rows(found: Sequence[Reproduction]) -> list[dict[str, Any]]:
    """Return a table of aggregates, with explanations of disagreements."""
    return [
        {
            "source": one.source,
            "agent": one.aggregate.agent,
            "budget": "" if one.aggregate.budget is None else one.aggregate.budget,
            "statistic": one.aggregate.statistic,
            "tasks": len(one.tasks),
            "printed": one.aggregate.printed,
            "computed": one.computed,
            "explanation": "" if one.agrees else one.aggregate.explanation,
        }
        for one in found
    ]


def _scores(
    table: PublishedTable, references: PublishedTable, own: Mapping[str, PublishedScore]
) -> _Scores:
    """Return the scores of an agent, on the tasks for which the table has them.

    Args:
      table: with the scores.
      references: the table of the reference scores; the same one, or another.
      own: the agent's scores, by task.
    """
    runs = [score.runs or (score.score,) for score in own.values()]
    values = np.full((len(runs), max(map(len, runs))), np.nan)
    for row, numbers in zip(values, runs, strict=True):
        row[: len(numbers)] = numbers
    columns = _columns(references)
    known = {
        name: np.array([columns[name, None][task].score for task in own])
        for name in (RANDOM, HUMAN, RECORD)
        if (name, None) in columns
    }
    return _Scores(values, known, [table.categories.get(task, ()) for task in own])


def _columns(table: PublishedTable) -> dict[tuple[str, int | None], dict[str, PublishedScore]]:
    """Return the scores by agent and budget, and by task."""
    columns: dict[tuple[str, int | None], dict[str, PublishedScore]] = {}
    for score in table.scores:
        columns.setdefault((score.agent, score.budget), {})[score.task] = score
    return columns


def _as_printed(value: float, printed: str) -> str:
    """Return a number in the format of another: its decimals, and its percent sign if any."""
    is_percent = printed.endswith("%")
    decimals = len(printed.rstrip("%").partition(".")[2])
    return f"{100 * value if is_percent else value:.{decimals}f}" + "%" * is_percent

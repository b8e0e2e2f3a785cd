"""The papers' own aggregates, computed again from the scores that they print.

They show that our copies of the scores are right, and that our statistics are the papers'.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evaluation import statistics
from evaluation.published_scores import PrintedAggregate, PublishedScore, PublishedTable, tables

RANDOM, HUMAN, RECORD = "Random", "Human", "Human world record"


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A printed aggregate beside ours.

    Attributes:
      source: the paper and table.
      aggregate: as printed.
      tasks: how many we have scores of.
      computed: from these scores, formatted as the printed one.
      agrees: whether the two are the same when ours is rounded as the printed one is.
    """

    source: str
    aggregate: PrintedAggregate
    tasks: int
    computed: str
    agrees: bool


@dataclasses.dataclass(frozen=True)
class _Scores:
    """An agent's scores, with what they may be normalised by.

    Attributes:
      values: NaN where a task has fewer runs; one run where only the mean is known.
      references: the scores of random, human and record, where the table has them.
      categories: of each task.
    """

    values: Float[np.ndarray, "tasks runs"]
    references: dict[str, Float[np.ndarray, "tasks"]]
    categories: Sequence[tuple[str, ...]]

    def normalized(self, high: str = HUMAN, cap: float = np.inf) -> Float[np.ndarray, "tasks runs"]:
        """Between random and a reference."""
        return statistics.normalize(
            self.values, self.references[RANDOM], self.references[high], cap
        )


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
"""What papers print, of an agent's scores. SABER: see `statistics.normalize`."""


def reproductions() -> tuple[Reproduction, ...]:
    """Every aggregate that a paper prints beside ours.

    Raises:
      PublishedScoresError: if a file of scores is damaged.
      KeyError: if it names a statistic that is not in `STATISTICS`.
    """
    found = []
    for table in tables():
        for aggregate in table.aggregates:
            scores = _scores(table, aggregate)
            value = float(STATISTICS[aggregate.statistic](scores))
            computed = _as_printed(value, aggregate.printed)
            found.append(
                Reproduction(
                    source=table.source,
                    aggregate=aggregate,
                    tasks=len(scores.values),
                    computed=computed,
                    agrees=computed == aggregate.printed,
                )
            )
    return tuple(found)


def to_csv(rows: Sequence[Reproduction]) -> str:
    """A row for each, with why where they disagree."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["source", "agent", "budget", "statistic", "tasks", "printed", "computed", "explanation"]
    )
    for row in rows:
        printed = row.aggregate
        budget = "" if printed.budget is None else printed.budget
        why = "" if row.agrees else printed.explanation
        numbers = [printed.statistic, row.tasks, printed.printed, row.computed]
        writer.writerow([row.source, printed.agent, budget, *numbers, why])
    return buffer.getvalue()


def _scores(table: PublishedTable, aggregate: PrintedAggregate) -> _Scores:
    """Of the aggregate's agent, on the tasks of which the table has its score."""
    columns: dict[tuple[str, int | None], dict[str, PublishedScore]] = {}
    for score in table.scores:
        columns.setdefault((score.agent, score.budget), {})[score.task] = score
    own = columns[aggregate.agent, aggregate.budget]
    runs = [score.runs or (score.score,) for score in own.values()]
    values = np.full((len(runs), max(map(len, runs))), np.nan)
    for row, numbers in zip(values, runs, strict=True):
        row[: len(numbers)] = numbers
    references = {
        name: np.array([columns[name, None][task].score for task in own])
        for name in (RANDOM, HUMAN, RECORD)
        if (name, None) in columns
    }
    return _Scores(values, references, [table.categories.get(task, ()) for task in own])


def _as_printed(value: float, printed: str) -> str:
    """A number with the decimals and the sign of percent that another one has."""
    is_percent = printed.endswith("%")
    decimals = len(printed.rstrip("%").partition(".")[2])
    return f"{100 * value if is_percent else value:.{decimals}f}" + "%" * is_percent

"""The papers' own aggregates over tasks, reproduced from the scores that they print.

    python -m tests.evaluation.published.reproductions

prints a table of them. Agreement shows that our copy of the scores is right and that our statistics
equal the papers'.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evaluation.published import (
    FOLDER,
    HUMAN,
    RANDOM,
    RECORD,
    PublishedScore,
    PublishedTable,
    published_tables,
)
from evaluation.report.evaluation_files import to_csv
from evaluation.scoring import statistics
from evaluation.scoring.references import normalize


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A printed aggregate and the one computed from the printed scores.

    Attributes:
      source: the paper and table.
      agent, budget: the table's column.
      statistic: its name in `STATISTICS`.
      printed: as it is printed, for example `"54.2%"`.
      computed: the aggregate of the printed scores, in the same format.
      explanation: why our copy of the scores does not reproduce it; mostly empty.
    """

    source: str
    agent: str
    budget: int | None
    statistic: str
    printed: str
    computed: str
    explanation: str


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
    categories: Sequence[Sequence[str]]

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
"""The statistics that papers print. SABER: see `evaluation.scoring.references`."""


def reproductions() -> list[Reproduction]:
    """Return every aggregate that a paper prints, with ours."""
    tables = {table.source: table for table in published_tables()}
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        paper = json.loads(path.read_text())
        for printed in paper["tables"]:
            table = tables[f"{paper['paper']}, {printed['table']}"]
            references = tables[table.references or table.source]
            for aggregate in printed.get("aggregates", ()):
                found += _reproduced(printed, table, references, aggregate)
    return found


def _reproduced(
    printed: Mapping[str, Any],
    table: PublishedTable,
    references: PublishedTable,
    aggregate: Mapping[str, Any],
) -> list[Reproduction]:
    categories = {row["task"]: row.get("categories", ()) for row in printed["rows"]}
    explanations, found = aggregate.get("explanations", {}), []
    for column, figure in zip(printed["columns"], aggregate["printed"], strict=True):
        if figure is not None:
            agent, budget = column["agent"], column["budget"]
            own = _columns(table)[agent, budget]
            value = float(STATISTICS[aggregate["statistic"]](_scores(references, own, categories)))
            found.append(
                Reproduction(
                    source=table.source,
                    agent=agent,
                    budget=budget,
                    statistic=aggregate["statistic"],
                    printed=figure,
                    computed=_as_printed(value, figure),
                    explanation=explanations.get(agent, ""),
                )
            )
    return found


def _scores(
    references: PublishedTable,
    own: Mapping[str, PublishedScore],
    categories: Mapping[str, Sequence[str]],
) -> _Scores:
    """Return the scores of an agent, on the tasks for which the table has them."""
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
    return _Scores(values, known, [categories[task] for task in own])


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


if __name__ == "__main__":
    print(to_csv([dataclasses.asdict(x) for x in reproductions()]))

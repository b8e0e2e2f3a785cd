"""Scores that papers report, read from `evaluation/published/*.json`.

Each file has the tables of one paper as printed: columns (an agent, its budget and, if known, the
episodes that it is scored on), rows (the scores on a task), the protocol, the paper's own
aggregates over the tasks, and notes on numbers that were corrected or are doubtful in our copy of
the paper. A score that the paper omits is null. A table without the scores of a random policy and
of a human may name the table (its `source`) whose scores normalise its own. Tests check the files,
and that the papers' aggregates come out of them.

These scores are comparable with an evaluation's only as far as protocols and budgets agree. Budgets
on Atari are in frames, 4 per action; `EvaluationConfig.budget` counts actions.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

from disco_common import json_lines

FOLDER = pathlib.Path(__file__).parent
RANDOM, HUMAN, RECORD = "Random", "Human", "Human world record"
RETURN, BSUITE_SCORE, CRAFTER_SCORE = "return", "bsuite_score", "crafter_score"
METRICS = (RETURN, BSUITE_SCORE, CRAFTER_SCORE)
# Families of environments that differ in their actions from others, with the same levels.
_SAME_LEVELS = {"dmlab_r2d2": "dmlab", "dmlab_r2d2_test": "dmlab_test"}


@dataclasses.dataclass(frozen=True)
class PublishedScore:
    """An agent's score on a task, as a paper reports it.

    Attributes:
      task: an environment's name, or in `BSUITE_SCORE` an experiment's (`"bsuite/catch"`).
      agent: the paper's name for it; references are `RANDOM`, `HUMAN` and `RECORD`, whatever the
        paper calls them.
      score: as the paper's protocol defines it.
      budget: environment steps or frames that the agent learned from; None for references, and if
        the table does not say.
      budget_unit: `"frames"` or `"steps"`.
      source: the paper and table.
      trained_on: the environment that the agent learned in; `task`, unless that is a test level.
      metric: one of `METRICS`.
      plus_minus: the number that the paper prints behind ±; None without one.
      runs: the score of each run, if known; else empty.
      note: on this number, if it was corrected or is doubtful; mostly empty.
      scored_on: the episodes that the score is of, such as `"100 evaluation episodes"`; empty if
        the source does not say.
    """

    task: str
    agent: str
    score: float
    budget: int | None
    budget_unit: str
    source: str
    trained_on: str
    metric: str
    plus_minus: float | None
    runs: tuple[float, ...]
    note: str
    scored_on: str


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
      source: the paper and table.
      protocol: how agents were trained and scored.
      scores: of all agents on all tasks.
      references: source of the table whose references normalise the scores; empty if the table has
        its own, or none.
    """

    source: str
    protocol: str
    scores: tuple[PublishedScore, ...]
    references: str


def published_scores(task_name: str, metric: str = RETURN) -> tuple[PublishedScore, ...]:
    """Return the scores that papers report on a task, in the order of their tables.

    Args:
      task_name: an environment's name. For an environment to train on, whose agents are tested on
        the levels of another one, the result has the scores on those levels, with the other
        environment's name as `task`. Likewise for levels with another set of actions: papers
        compare scores on DMLab's across both sets.
      metric: kind of scores.
    """
    family, _, parameters = task_name.partition("/")
    task_name = f"{_SAME_LEVELS[family]}/{parameters}" if family in _SAME_LEVELS else task_name
    return tuple(
        score
        for table in published_tables()
        for score in table.scores
        if task_name in (score.task, score.trained_on) and score.metric == metric
    )


@functools.cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return the tables of all files, in the order of the files' names."""
    papers = [json_lines.read_object(path) for path in sorted(FOLDER.glob("*.json"))]
    return tuple(
        PublishedTable(
            source=f"{paper['paper']}, {table['table']}",
            protocol=table["protocol"],
            scores=tuple(_scores(table, f"{paper['paper']}, {table['table']}")),
            references=table.get("references", ""),
        )
        for paper in papers
        for table in paper["tables"]
    )


def _scores(table: dict[str, Any], source: str) -> Iterator[PublishedScore]:
    """Yield the scores of a table that are not null."""
    notes = {(x["task"], x["agent"], x["budget"]): _note(x) for x in table.get("notes", [])}
    columns = table["columns"]
    for row in table["rows"]:
        errors, runs = row.get("plus_minus", [None] * len(columns)), row.get("runs", {})
        for column, number, error in zip(columns, row["scores"], errors, strict=True):
            if number is None:
                continue
            task, agent, budget = row["task"], column["agent"], column["budget"]
            yield PublishedScore(
                task=task,
                agent=agent,
                score=float(number),
                budget=budget,
                budget_unit=table["budget_unit"],
                source=source,
                trained_on=row.get("trained_on", task),
                metric=table.get("metric", RETURN),
                plus_minus=None if error is None else float(error),
                runs=tuple(map(float, runs.get(agent, ()))),
                note=notes.get((task, agent, budget), ""),
                scored_on=column.get("scored_on", ""),
            )


def _note(note: dict[str, Any]) -> str:
    found = note["found"]
    copy = "lacks it" if found is None else f"reads {found!r}"
    return f"Our copy of the paper {copy}. {note['why']}"

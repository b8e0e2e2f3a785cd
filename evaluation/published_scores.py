"""Scores that papers report, to set beside our own.

`evaluation/published/*.json`, one file per paper, has its tables as they are printed: columns (an
agent, and the budget that it had), rows (a task's scores), the protocol, and notes on numbers that
were mended or are doubtful in our copy of the paper. A score that a paper does not give is null.

They compare with ours only as far as the protocols and budgets do. Atari's budgets are in frames,
of which an action lasts 4; `EvaluationConfig.budget` counts actions.
"""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).parent / "published"
BUDGET_UNITS = ("frames", "steps")


class PublishedScoresError(ValueError):
    """A file of published scores cannot be used; the message says where and why."""


@dataclasses.dataclass(frozen=True)
class PublishedScore:
    """What an agent reached on a task, says a paper.

    Attributes:
      task: an environment's name.
      agent: as the paper calls it; `"Random"` and `"Human"` are among them.
      score: as the paper's protocol defines it.
      budget: environment steps or frames that the agent learned from; None for random and human,
        and where the table does not tell.
      budget_unit: `"frames"` or `"steps"`.
      source: the paper and table.
      trained_on: the environment that the agent learned in; `task`, unless that is a test level.
      note: on this number, if it was mended or is doubtful; mostly empty.
    """

    task: str
    agent: str
    score: float
    budget: int | None
    budget_unit: str
    source: str
    trained_on: str
    note: str = ""


def published(task_name: str) -> tuple[PublishedScore, ...]:
    """The scores that papers report on a task, in their tables' order; empty if none does.

    Args:
      task_name: an environment's name. Of one to train on, whose scores are reported on another
        one's levels, the result has those, with the other's name as `task`.

    Raises:
      PublishedScoresError: if a file of scores is damaged.
    """
    return tuple(score for score in _all() if task_name in (score.task, score.trained_on))


def load(path: pathlib.Path) -> tuple[PublishedScore, ...]:
    """All scores of a file.

    Raises:
      OSError: if it cannot be read.
      PublishedScoresError: if a score is missing or not finite, is there twice, or anything else
        is not as expected.
    """
    try:
        paper = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise PublishedScoresError(f"{path} is not JSON: {error}") from error
    title = _field(paper, "paper", str, f"{path}")
    scores: dict[tuple[str, str, int | None], PublishedScore] = {}
    for number, table in enumerate(_field(paper, "tables", list, f"{path}")):
        where = f"{path}, {_field(table, 'table', str, f'{path}, tables[{number}]')}"
        for score in _read_table(table, title, where):
            key = (score.task, score.agent, score.budget)
            if key in scores:
                raise PublishedScoresError(
                    f"{where}: {_describe(*key)} has two scores; expected one."
                )
            scores[key] = score
    return tuple(scores.values())


@functools.cache
def _all() -> tuple[PublishedScore, ...]:
    return tuple(score for path in sorted(FOLDER.glob("*.json")) for score in load(path))


def _read_table(table: dict[str, Any], title: str, where: str) -> list[PublishedScore]:
    source = f"{title}, {table['table']}"
    _field(table, "protocol", str, where)
    unit = _field(table, "budget_unit", str, where)
    if unit not in BUDGET_UNITS:
        raise PublishedScoresError(
            f"{where}: budget_unit is {unit!r}; expected one of {list(BUDGET_UNITS)}."
        )
    columns = [_read_column(column, where) for column in _field(table, "columns", list, where)]
    notes = _read_notes(table, where)
    found = []
    for row in _field(table, "rows", list, where):
        task = _field(row, "task", str, where)
        trained_on = _field(row, "trained_on", str, where) if "trained_on" in row else task
        numbers = _field(row, "scores", list, where)
        if len(numbers) != len(columns):
            raise PublishedScoresError(
                f"{where}: {task} has {len(numbers)} scores; expected {len(columns)}, one for each"
                " column (null where the paper gives none)."
            )
        for (agent, budget), number in zip(columns, numbers, strict=True):
            if number is None:
                continue
            # To Python, a bool is a number.
            if type(number) not in (int, float) or not math.isfinite(number):
                raise PublishedScoresError(
                    f"{where}: {_describe(task, agent, budget)} has the score {number!r};"
                    " expected a finite number or null."
                )
            noted, note = notes.pop((task, agent, budget), (number, ""))
            if noted != number:
                raise PublishedScoresError(
                    f"{where}: {_describe(task, agent, budget)} has the score {number!r}, but its"
                    f" note {noted!r}; expected the same."
                )
            found.append(
                PublishedScore(
                    task=task,
                    agent=agent,
                    score=float(number),
                    budget=budget,
                    budget_unit=unit,
                    source=source,
                    trained_on=trained_on,
                    note=note,
                )
            )
    if notes:
        missing = ", ".join(_describe(*key) for key in notes)
        raise PublishedScoresError(
            f"{where}: there is a note on {missing}; expected a score of that."
        )
    return found


def _read_column(column: Any, where: str) -> tuple[str, int | None]:
    agent = _field(column, "agent", str, where)
    budget = _field(column, "budget", int | None, where)
    if budget is not None and (isinstance(budget, bool) or budget < 1):
        raise PublishedScoresError(
            f"{where}: the budget of {agent} is {budget!r}; expected a positive integer or null."
        )
    return agent, budget


def _read_notes(
    table: dict[str, Any], where: str
) -> dict[tuple[str, str, int | None], tuple[float, str]]:
    """Of each score that has one: the score, and what there is to say."""
    notes = {}
    for note in _field(table, "notes", list, where):
        key = (_field(note, "task", str, where), *_read_column(note, where))
        found = _field(note, "found", str, where)
        why = _field(note, "why", str, where)
        score = _field(note, "score", int | float, where)
        notes[key] = (score, f"Our copy of the paper reads {found!r}. {why}")
    return notes


def _field(entry: Any, name: str, kind: Any, where: str) -> Any:
    """A member of a JSON object, of this type."""
    if not isinstance(entry, dict):
        raise PublishedScoresError(f"{where}: found {entry!r}; expected an object with {name!r}.")
    if name not in entry:
        raise PublishedScoresError(f"{where}: {entry!r:.100} has no {name!r}; expected one.")
    if not isinstance(entry[name], kind):
        expected = getattr(kind, "__name__", kind)
        raise PublishedScoresError(f"{where}: {name} is {entry[name]!r}; expected {expected}.")
    return entry[name]


def _describe(task: str, agent: str, budget: int | None) -> str:
    return f"{agent} on {task}" + ("" if budget is None else f" with a budget of {budget:,}")

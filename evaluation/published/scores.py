"""Scores that papers report, read from `evaluation/published/*.json`.

Each file has the tables of one paper as printed: columns (an agent, its budget and, if known, the
episodes that it is scored on), rows (the scores on a task), the protocol, the paper's own
aggregates over the tasks, and notes on numbers that were corrected or are doubtful in our copy of
the paper. A score that the paper omits is null. A table without the scores of a random policy and
of a human may name the table (its `source`) whose scores normalise its own.

These scores are comparable with an evaluation's only as far as protocols and budgets agree. Budgets
on Atari are in frames, 4 per action; `EvaluationConfig.budget` counts actions.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from disco_common import files, json_lines

FOLDER = pathlib.Path(__file__).parent
RANDOM, HUMAN, RECORD = "Random", "Human", "Human world record"
BUDGET_UNITS = ("frames", "steps")
RETURN, BSUITE_SCORE, CRAFTER_SCORE = "return", "bsuite_score", "crafter_score"
# Families of environments that differ in their actions from others, with the same levels.
_SAME_LEVELS = {"dmlab_r2d2": "dmlab", "dmlab_r2d2_test": "dmlab_test"}
METRICS = (RETURN, BSUITE_SCORE, CRAFTER_SCORE)


_Column = tuple[str, int | None]  # An agent and its budget.


class PublishedScoresError(ValueError):
    """A file of published scores is damaged; the message says where and how."""


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
    metric: str = RETURN
    plus_minus: float | None = None
    runs: tuple[float, ...] = ()
    note: str = ""
    scored_on: str = ""


@dataclasses.dataclass(frozen=True)
class PrintedAggregate:
    """A paper's aggregate over all tasks of a table.

    Attributes:
      statistic: its name in `evaluation.published.aggregates.STATISTICS`.
      agent, budget: the table's column.
      printed: as it is printed, for example `"54.2%"`.
      explanation: why our copy of the scores does not reproduce it; mostly empty.
    """

    statistic: str
    agent: str
    budget: int | None
    printed: str
    explanation: str = ""


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
      source: the paper and table.
      benchmark: the set of tasks.
      protocol: how agents were trained and scored.
      scores: of all agents on all tasks.
      categories: of each task, if the table has categories.
      aggregates: the paper's own, over the tasks.
      references: source of the table whose references normalise the scores; empty if the table has
        its own, or none.
    """

    source: str
    benchmark: str
    protocol: str
    scores: tuple[PublishedScore, ...]
    categories: dict[str, tuple[str, ...]]
    aggregates: tuple[PrintedAggregate, ...]
    references: str = ""


def published_scores(task_name: str, metric: str = RETURN) -> tuple[PublishedScore, ...]:
    """Return the scores that papers report on a task, in the order of their tables.

    Args:
      task_name: an environment's name. For an environment to train on, whose agents are tested on
        the levels of another one, the result has the scores on those levels, with the other
        environment's name as `task`. Likewise for levels with another set of actions: papers
        compare scores on DMLab's across both sets.
      metric: kind of scores.

    Raises:
      PublishedScoresError: if a file of scores is damaged.
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
    """Return all tables of all papers.

    Raises:
      PublishedScoresError: if a file of scores is damaged.
    """
    return tuple(table for path in sorted(FOLDER.glob("*.json")) for table in read_tables(path))


def read_tables(path: pathlib.Path) -> tuple[PublishedTable, ...]:
    """Return the tables of a file.

    Raises:
      OSError: if it cannot be read.
      PublishedScoresError: if a score is missing, duplicated or not finite, or the file is
        malformed otherwise.
    """
    try:
        paper = json_lines.loads(files.read_text(path, files.MOST_OBJECT))
    except ValueError as error:
        raise PublishedScoresError(f"{path} is not JSON: {error}") from error
    title = _field(paper, "paper", str, f"{path}")
    found, keys = [], set()
    for number, entry in enumerate(_field(paper, "tables", list, f"{path}")):
        where = f"{path}, {_field(entry, 'table', str, f'{path}, tables[{number}]')}"
        table = _read_table(entry, f"{title}, {entry['table']}", where)
        for score in table.scores:
            key = (score.task, score.agent, score.budget, score.metric)
            _require(key not in keys, where, f"{_describe(*key[:3])} has two scores", "one")
            keys.add(key)
        found.append(table)
    return tuple(found)


def _read_table(table: dict[str, Any], source: str, where: str) -> PublishedTable:
    metric = _field(table, "metric", str, where, RETURN)
    unit = _field(table, "budget_unit", str, where)
    for name, value, known in (("metric", metric, METRICS), ("budget_unit", unit, BUDGET_UNITS)):
        _require(value in known, where, f"{name} is {value!r}", f"one of {list(known)}")
    entries = _field(table, "columns", list, where)
    columns = [_read_column(entry, where) for entry in entries]
    scored_on = [_field(entry, "scored_on", str, where, "") for entry in entries]
    notes = _read_notes(table, where)
    scores, categories = [], {}
    for row in _field(table, "rows", list, where):
        task = _field(row, "task", str, where)
        if "categories" in row:
            categories[task] = tuple(_field(row, "categories", list, where))
        own = dict(zip(columns, scored_on, strict=True))
        for score in _read_row(row, task, own, where):
            noted, note = notes.pop((task, score.agent, score.budget), (score.score, ""))
            what = f"{_describe(task, score.agent, score.budget)} has the score {score.score:g}"
            _require(noted == score.score, where, f"{what}, but its note {noted!r}", "the same")
            known = {"budget_unit": unit, "source": source, "metric": metric, "note": note}
            scores.append(dataclasses.replace(score, **known))
    missing = ", ".join(_describe(*key) for key in notes)
    _require(not notes, where, f"there is a note on {missing}", "a score of that")
    return PublishedTable(
        source=source,
        benchmark=_field(table, "benchmark", str, where),
        protocol=_field(table, "protocol", str, where),
        scores=tuple(scores),
        categories=categories,
        aggregates=tuple(_read_aggregates(table, columns, where)),
        references=_field(table, "references", str, where, ""),
    )


def _read_row(
    row: dict[str, Any], task: str, scored_on: dict[_Column, str], where: str
) -> Iterator[PublishedScore]:
    """Yield the scores of a task that are not null, without what is the table's.

    Args:
      row: of the task.
      task: its name.
      scored_on: by column, the episodes that are scored.
      where: for messages.
    """
    columns = list(scored_on)
    numbers = _by_column(row, "scores", task, columns, where)
    errors = _by_column(row, "plus_minus", task, columns, where) if "plus_minus" in row else {}
    for column, number in (*numbers.items(), *errors.items()):
        what = f"{_describe(task, *column)} has the score {number!r}"
        _require(number is None or _is_number(number), where, what, "a finite number or null")
    for (agent, budget), number in numbers.items():
        if number is None:
            continue
        error = errors.get((agent, budget))
        runs = _field(row, "runs", dict, where, {}).get(agent, [number])
        is_valid = isinstance(runs, list) and runs and all(map(_is_number, runs))
        _require(
            is_valid and abs(sum(runs) / len(runs) - number) <= 1e-3,
            where,
            f"the runs of {agent} on {task} are {runs!r}",
            f"finite numbers whose mean is {number:g}",
        )
        yield PublishedScore(
            task=task,
            agent=agent,
            score=float(number),
            budget=budget,
            budget_unit="",
            source="",
            trained_on=_field(row, "trained_on", str, where, task),
            plus_minus=None if error is None else float(error),
            runs=tuple(map(float, runs)) if agent in row.get("runs", {}) else (),
            scored_on=scored_on[agent, budget],
        )


def _by_column(
    entry: dict[str, Any], name: str, what: str, columns: Sequence[_Column], where: str
) -> dict[_Column, Any]:
    """Return what a row has for each column."""
    found = _field(entry, name, list, where)
    expected = f"{len(columns)}, one for each column (null where the paper gives none)"
    _require(len(found) == len(columns), where, f"{what} has {len(found)} {name}", expected)
    return dict(zip(columns, found, strict=True))


def _read_aggregates(
    table: dict[str, Any], columns: Sequence[_Column], where: str
) -> Iterator[PrintedAggregate]:
    """Yield the table's aggregates, one for each column that has one."""
    for entry in _field(table, "aggregates", list, where, []):
        statistic = _field(entry, "statistic", str, where)
        printed = _by_column(entry, "printed", statistic, columns, where)
        why = dict(entry.get("explanations", {}))
        for (agent, budget), figure in printed.items():
            if figure is not None:
                yield PrintedAggregate(statistic, agent, budget, figure, why.pop(agent, ""))
        _require(not why, where, f"{statistic} has an explanation of {sorted(why)}", "its figure")


def _read_column(column: Any, where: str) -> _Column:
    agent, budget = (_field(column, *x, where) for x in (("agent", str), ("budget", int | None)))
    is_valid = budget is None or (not isinstance(budget, bool) and budget > 0)
    _require(is_valid, where, f"the budget of {agent} is {budget!r}", "a positive integer or null")
    return agent, budget


def _read_notes(
    table: dict[str, Any], where: str
) -> dict[tuple[str, str, int | None], tuple[int | float, str]]:
    """Return, by task, agent and budget, the score that a note is on, and the note."""
    notes = {}
    for note in _field(table, "notes", list, where):
        found = _field(note, "found", str | None, where)
        copy = "lacks it" if found is None else f"reads {found!r}"
        text = f"Our copy of the paper {copy}. {_field(note, 'why', str, where)}"
        key = (_field(note, "task", str, where), *_read_column(note, where))
        notes[key] = (_field(note, "score", int | float, where), text)
    return notes


def _field(entry: Any, name: str, kind: Any, where: str, default: Any = None) -> Any:
    """Return a member of a JSON object, which must have this type; it may lack one with a default.

    Raises:
      PublishedScoresError: saying where, what was found, and what was expected.
    """
    _require(isinstance(entry, dict), where, f"found {entry!r}", f"an object with {name!r}")
    if name not in entry and default is not None:
        return default
    _require(name in entry, where, f"{entry!r:.100} has no {name!r}", "one")
    expected = getattr(kind, "__name__", kind)
    _require(isinstance(entry[name], kind), where, f"{name} is {entry[name]!r}", f"{expected}")
    return entry[name]


def _require(holds: object, where: str, found: str, expected: str) -> None:
    if not holds:
        raise PublishedScoresError(f"{where}: {found}; expected {expected}.")


def _is_number(value: Any) -> bool:
    # A bool is an int in Python.
    return type(value) in (int, float) and math.isfinite(value)


def _describe(task: str, agent: str, budget: int | None) -> str:
    return f"{agent} on {task}" + ("" if budget is None else f" with a budget of {budget:,}")

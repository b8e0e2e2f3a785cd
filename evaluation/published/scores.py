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
from collections.abc import Iterator
from typing import Any

from disco_common import files, json_lines

FOLDER = pathlib.Path(__file__).parent
RANDOM, HUMAN, RECORD = "Random", "Human", "Human world record"
BUDGET_UNITS = ("frames", "steps")
RETURN, BSUITE_SCORE, CRAFTER_SCORE = "return", "bsuite_score", "crafter_score"
# Families of environments that differ in their actions from others, with the same levels.
_SAME_LEVELS = {"dmlab_r2d2": "dmlab", "dmlab_r2d2_test": "dmlab_test"}
METRICS = (RETURN, BSUITE_SCORE, CRAFTER_SCORE)


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
        table = _read_table(entry, title, where)
        for score in table.scores:
            key = (score.task, score.agent, score.budget, score.metric)
            if key in keys:
                raise PublishedScoresError(
                    f"{where}: {_describe(*key[:3])} has two scores; expected one."
                )
            keys.add(key)
        found.append(table)
    return tuple(found)


def _read_table(table: dict[str, Any], title: str, where: str) -> PublishedTable:
    source = f"{title}, {table['table']}"
    metric = _choice(table, "metric", METRICS, where) if "metric" in table else RETURN
    entries = _field(table, "columns", list, where)
    columns = [_read_column(column, where) for column in entries]
    scored_on = {
        column: _field(entry, "scored_on", str, where) if "scored_on" in entry else ""
        for column, entry in zip(columns, entries, strict=True)
    }
    unit = _choice(table, "budget_unit", BUDGET_UNITS, where)
    common = {"budget_unit": unit, "source": source, "metric": metric}
    notes = _read_notes(table, where)
    scores, categories = [], {}
    for row in _field(table, "rows", list, where):
        task = _field(row, "task", str, where)
        if "categories" in row:
            categories[task] = tuple(_field(row, "categories", list, where))
        for score in _read_row(row, task, columns, common, where):
            key = (score.agent, score.budget)
            noted, note = notes.pop((task, *key), (score.score, ""))
            if noted != score.score:
                raise PublishedScoresError(
                    f"{where}: {_describe(task, *key)} has the score {score.score:g}, but its"
                    f" note {noted!r}; expected the same."
                )
            scores.append(dataclasses.replace(score, note=note, scored_on=scored_on[key]))
    if notes:
        missing = ", ".join(_describe(*key) for key in notes)
        raise PublishedScoresError(
            f"{where}: there is a note on {missing}; expected a score of that."
        )
    return PublishedTable(
        source=source,
        benchmark=_field(table, "benchmark", str, where),
        protocol=_field(table, "protocol", str, where),
        scores=tuple(scores),
        categories=categories,
        aggregates=tuple(_read_aggregates(table, columns, where)),
        references=_field(table, "references", str, where) if "references" in table else "",
    )


def _read_row(
    row: dict[str, Any],
    task: str,
    columns: list[tuple[str, int | None]],
    common: dict[str, str],
    where: str,
) -> Iterator[PublishedScore]:
    """Yield the scores of a task that are not null."""
    trained_on = _field(row, "trained_on", str, where) if "trained_on" in row else task
    numbers = _numbers(row, "scores", columns, where)
    errors = _numbers(row, "plus_minus", columns, where) if "plus_minus" in row else {}
    runs = _field(row, "runs", dict, where) if "runs" in row else {}
    for (agent, budget), number in numbers.items():
        if number is not None:
            yield PublishedScore(
                task=task,
                agent=agent,
                score=number,
                budget=budget,
                trained_on=trained_on,
                plus_minus=errors.get((agent, budget)),
                runs=_read_runs(runs, task, agent, number, where),
                **common,
            )


def _numbers(
    row: dict[str, Any], name: str, columns: list[tuple[str, int | None]], where: str
) -> dict[tuple[str, int | None], float | None]:
    """Return a number or None for each column."""
    numbers, task = _field(row, name, list, where), row["task"]
    if len(numbers) != len(columns):
        raise PublishedScoresError(
            f"{where}: {task} has {len(numbers)} {name}; expected {len(columns)}, one for each"
            " column (null where the paper gives none)."
        )
    for column, number in zip(columns, numbers, strict=True):
        if number is not None and not _is_number(number):
            raise PublishedScoresError(
                f"{where}: {_describe(task, *column)} has the score {number!r};"
                " expected a finite number or null."
            )
    return {
        column: None if number is None else float(number)
        for column, number in zip(columns, numbers, strict=True)
    }


def _read_runs(
    runs: dict[str, Any], task: str, agent: str, mean: float, where: str
) -> tuple[float, ...]:
    """Return the scores of an agent's runs, whose mean must be its score."""
    if agent not in runs:
        return ()
    numbers = runs[agent]
    is_valid = isinstance(numbers, list) and numbers and all(_is_number(x) for x in numbers)
    if not is_valid or abs(sum(numbers) / len(numbers) - mean) > 1e-3:
        raise PublishedScoresError(
            f"{where}: the runs of {agent} on {task} are {numbers!r}; expected finite numbers"
            f" whose mean is {mean:g}."
        )
    return tuple(map(float, numbers))


def _read_aggregates(
    table: dict[str, Any], columns: list[tuple[str, int | None]], where: str
) -> list[PrintedAggregate]:
    """Return the table's aggregates, one for each column that has one."""
    found = []
    for entry in _field(table, "aggregates", list, where) if "aggregates" in table else ():
        statistic = _field(entry, "statistic", str, where)
        printed = _field(entry, "printed", list, where)
        if len(printed) != len(columns):
            raise PublishedScoresError(
                f"{where}: {statistic} has {len(printed)} figures; expected {len(columns)}, one for"
                " each column (null where the paper gives none)."
            )
        explanations = dict(entry.get("explanations", {}))
        for (agent, budget), figure in zip(columns, printed, strict=True):
            if figure is not None:
                found.append(
                    PrintedAggregate(statistic, agent, budget, figure, explanations.pop(agent, ""))
                )
        if explanations:
            raise PublishedScoresError(
                f"{where}: {statistic} has an explanation of {sorted(explanations)}; expected"
                " figures of these."
            )
    return found


def _is_number(value: Any) -> bool:
    # A bool is an int in Python.
    return type(value) in (int, float) and math.isfinite(value)


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
) -> dict[tuple[str, str, int | None], tuple[int | float, str]]:
    """Return, by task, agent and budget, the score that a note is on, and the note."""
    notes = {}
    for note in _field(table, "notes", list, where):
        key = (_field(note, "task", str, where), *_read_column(note, where))
        found = _field(note, "found", str | None, where)
        why = _field(note, "why", str, where)
        score = _field(note, "score", int | float, where)
        copy = "lacks it" if found is None else f"reads {found!r}"
        notes[key] = (score, f"Our copy of the paper {copy}. {why}")
    return notes


def _field(entry: Any, name: str, kind: Any, where: str) -> Any:
    """Return a member of a JSON object, which must have this type."""
    if not isinstance(entry, dict):
        raise PublishedScoresError(f"{where}: found {entry!r}; expected an object with {name!r}.")
    if name not in entry:
        raise PublishedScoresError(f"{where}: {entry!r:.100} has no {name!r}; expected one.")
    if not isinstance(entry[name], kind):
        expected = getattr(kind, "__name__", kind)
        raise PublishedScoresError(f"{where}: {name} is {entry[name]!r}; expected {expected}.")
    return entry[name]


def _choice(entry: Any, name: str, choices: tuple[str, ...], where: str) -> str:
    value = _field(entry, name, str, where)
    if value not in choices:
        raise PublishedScoresError(
            f"{where}: {name} is {value!r}; expected one of {list(choices)}."
        )
    return value


def _describe(task: str, agent: str, budget: int | None) -> str:
    return f"{agent} on {task}" + ("" if budget is None else f" with a budget of {budget:,}")

"""What commands show on the terminal: progress, and tables of results."""

import time
from collections.abc import Mapping, Sequence

import psutil
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from disco_common.terminal import console, printable
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.report.tables import aggregate_rows

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBar:
    """The progress of a command (`evaluation.executors`): a bar, or lines elsewhere."""

    def __init__(self, name: str, total: int):
        """Prepare the display of the work `name`, of `total` units."""
        self._name = printable(name)
        self._total = total
        self._console = console()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(self._name, total=total, numbers="compiling")
        self._last_line = 0.0

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def start(self, completed: int) -> None:
        """Show the progress from a number of completed units on."""
        self._bar.update(self._task, completed=completed)
        if not self._console.is_terminal:
            print(f"{self._name}: {completed}/{self._total}, compiling", flush=True)

    def update(self, completed: int, numbers: Mapping[str, float | None], doing: str = "") -> None:
        """Show the number of completed units and the numbers that are known, while `doing` it."""
        shown = ", ".join(
            f"{name} {value:.4g}" for name, value in numbers.items() if value is not None
        )
        text = printable(": ".join(filter(None, (doing, shown))))
        now = time.monotonic()
        self._bar.update(self._task, completed=completed, numbers=text)
        is_due = now - self._last_line >= _SECONDS_BETWEEN_LINES or completed == self._total
        if not self._console.is_terminal and is_due:
            self._last_line = now
            print(
                ", ".join(filter(None, (f"{self._name}: {completed}/{self._total}", text))),
                flush=True,
            )


def print_evaluation(written: WrittenEvaluation) -> None:
    """Print what an evaluation found, the best scores in bold, and where it wrote it."""
    table, evaluation = written.table, written.evaluation
    made = Table(title=table.title, caption=table.caption or None)
    made.add_column("task", no_wrap=True)
    for contender in table.contenders:
        made.add_column(printable(contender), justify="right")
    for task, cells in table.scores:
        texts = [Text(cell.text, "bold" if cell.is_best else "") for cell in cells]
        made.add_row(printable(task), *texts)
    if (compared := evaluation.by_references) is not None and evaluation.config.seeds > 1:
        made.add_section()
        rows = {row["contender"]: row for row in aggregate_rows(evaluation, compared)}
        for label in [*rows[table.contenders[0]]][1:]:
            made.add_row(printable(label), *(rows[name][label] for name in table.contenders))
    console(log_width=44 + 26 * len(table.contenders)).print(made)
    print(printable(" ".join(written.result.sentences)))
    for remark in written.remarks:
        print(printable(remark))
    print("Written: " + ", ".join(map(printable, written.files)))


def print_needs(memory: str, disk: str) -> None:
    """Print how much memory and disk something would need; of `--dry_run`."""
    print(
        f"Memory: {memory}; updates need more. This process has"
        f" {decimal(psutil.Process().memory_info().rss)} on the host.\n"
        f"Disk: {disk}. Nothing was written."
    )


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table of rows with the same columns, at least one row; the first one is not cut."""
    made = Table(title=title)
    for column in rows[0]:
        made.add_column(column, no_wrap=column == next(iter(rows[0])))
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row.values()))
    console(log_width=200).print(made)

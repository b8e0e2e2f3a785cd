"""What commands show on the terminal: progress, and tables of results."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

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
from evaluation.executors import Numbers, Show
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.report.tables import aggregate_rows

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress_bar(name: str, total: int) -> Iterator[Show]:
    """Show the progress of the work `name`, of `total` units: a bar, or lines elsewhere.

    Numbers that are None are not known yet, and not shown.
    """
    name, lines, last_line = printable(name), 0, 0.0
    own = console()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=own,
        disable=not own.is_terminal,
    )
    task = bar.add_task(name, total=total, numbers="compiling")

    def show(completed: float, numbers: Numbers, doing: str) -> None:
        nonlocal lines, last_line
        known = [f"{key} {x:.4g}" for key, x in numbers.items() if x is not None]
        text = printable(": ".join(filter(None, (doing, ", ".join(known)))))
        bar.update(task, completed=completed, numbers=text)
        now = time.monotonic()
        # The start and the first numbers are always shown.
        is_due = lines < 2 or now - last_line >= _SECONDS_BETWEEN_LINES or completed == total
        if not own.is_terminal and is_due:
            lines, last_line = lines + 1, now
            print(", ".join(filter(None, (f"{name}: {completed}/{total}", text))), flush=True)

    with bar:
        yield show


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
    print(printable(" ".join(written.result)))
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

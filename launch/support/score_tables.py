"""A finished evaluation on the terminal: its result, score table, remarks, and files."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from disco_common.terminal import console, printable
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.report.score_table import ScoreTable


def print_evaluation(written: WrittenEvaluation) -> None:
    """Print what an evaluation found, and where it wrote it."""
    console(log_width=44 + 26 * len(written.table.contenders)).print(_rich_table(written.table))
    print(printable(" ".join(written.result.sentences)))
    for remark in written.remarks:
        print(printable(remark))
    print("Written: " + ", ".join(map(printable, written.files)))


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table of rows with the same columns, at least one row."""
    made = Table(title=title)
    for column in rows[0]:
        made.add_column(column)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row.values()))
    console(log_width=160).print(made)


def _rich_table(table: ScoreTable) -> Table:
    """Return the table with the best score of each task in bold."""
    made = Table(title=table.title, caption=table.caption or None)
    made.add_column("task", no_wrap=True)
    for contender in table.contenders:
        made.add_column(printable(contender), justify="right")
    for task, cells in table.scores:
        texts = [Text(cell.text, "bold" if cell.is_best else "") for cell in cells]
        made.add_row(printable(task), *texts)
    made.add_section()
    for label, texts in table.aggregates:
        made.add_row(label, *texts)
    return made

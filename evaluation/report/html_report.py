"""The report of finished runs: a page, and the numbers and figures in it as files.

    index.html                     the page; needs no network
    scores.csv, aggregates.csv, …  the numbers as tables (`evaluation.report.csv_tables`)
    <section>_*.png, .svg          the figures
    films/                         the films that the page plays

Evaluations of different tasks, budgets or score definitions are shown side by side. No mean is
taken over more than one of them.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

from disco_common import files as file_access
from disco_common.files import write_atomically
from evaluation.report import page
from evaluation.report.csv_tables import TABLES, Tabulated, csv_files
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.discovery_section import discovery_section
from evaluation.report.evaluation_section import EvaluationSection, evaluation_section
from evaluation.report.merging import MergedEvaluation
from evaluation.report.page import Section


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSection(Section):
    """The section on the files beside the page.

    Attributes:
      tables: by file name, what a row of a table is, and its columns.
    """

    template: ClassVar[str] = "files.html"
    name: str = "Files"
    tables: Mapping[str, tuple[str, Mapping[str, str]]]


def write_report(
    output: pathlib.Path,
    evaluations: Sequence[MergedEvaluation],
    discoveries: Sequence[Discovery] = (),
    title: str = "Report",
    first: Sequence[Section] = (),
) -> list[pathlib.Path]:
    """Write a report; return its files.

    Args:
      output: folder; created if necessary.
      evaluations: with at least one run each.
      discoveries: whose metrics to show, too.
      title: of the page.
      first: sections before all others.

    Raises:
      OSError: if a file cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = _distinct([one.name for one in evaluations])
    reports = [evaluation_section(*x) for x in zip(names, evaluations, strict=True)]
    named = zip(discoveries, _distinct([one.name for one in discoveries]), strict=True)
    found = [discovery_section(one._replace(name=name), evaluations) for one, name in named]
    sections: list[Section] = [*first, *reports, *found]
    files: dict[str, str | bytes] = {}
    for section in sections:
        for plot, drawing in section.plots.items():
            files |= drawing.files(section.stem(plot))
    for report in reports:
        files |= _films(report)
    files |= csv_files({report.name: _tabulated(report) for report in reports})
    if reports:
        sections.append(FilesSection(tables={k: x for k, x in TABLES.items() if k in files}))
    files["index.html"] = page.render(title, sections, _remarks(names))
    for file, content in files.items():
        (output / file).parent.mkdir(exist_ok=True)
        write_atomically(output / file, content)
    return [output / file for file in files]


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names, with numbers where they are equal."""
    return [
        f"{name} ({[*names[: i + 1]].count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _remarks(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they are shown"
        " side by side, and no mean is over more than one of them."
    ]


def _tabulated(report: EvaluationSection) -> Tabulated:
    merged = report.merged
    return Tabulated(
        report.summary, merged.contender_curves, merged.config, merged.seeds, report.comparisons
    )


def _films(report: EvaluationSection) -> dict[str, bytes]:
    """Return the films of an evaluation by file name."""
    films = [film for found in report.pictures.films.values() for film in found]
    return {x.file: file_access.read_bytes(x.source, file_access.MOST_DATA) for x in films}

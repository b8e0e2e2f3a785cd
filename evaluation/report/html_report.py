"""The report of finished runs: a page, and the numbers and pictures in it as files.

    index.html                     the page; needs no network
    scores.csv, aggregates.csv, …  the numbers as tables (`evaluation.report.csv_tables`)
    reproduced.csv                 the papers' own aggregates over the tasks of an evaluation,
                                   reproduced from their scores; if there are any
    <evaluation>_*.png, .svg       the plots
    films/                         the films that the page plays

Evaluations of different tasks, budgets or score definitions are shown side by side. No mean is
taken over more than one of them.
"""

import pathlib
from collections.abc import Sequence

from disco_common import files
from disco_common.atomic import write_atomically
from evaluation.published.aggregates import reproductions, to_csv
from evaluation.report import comparison_plots, page, static_plots
from evaluation.report.csv_tables import Aggregated, Tabulated, comparisons, csv_files
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.evaluation_report import EvaluationReport, compute_report
from evaluation.report.merging import MergedEvaluation
from evaluation.report.probe_baselines import probe_baselines
from evaluation.report.sections import (
    FilesSection,
    discovery_section,
    evaluation_section,
    published_aggregates_section,
)
from evaluation.report.texts import file_name
from evaluation.scoring.curves import normalized_curves


def write_report(
    output: pathlib.Path,
    evaluations: Sequence[MergedEvaluation],
    discoveries: Sequence[Discovery] = (),
    title: str = "Report",
    first: Sequence[page.Section] = (),
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
    names, tasks = _distinct_names(evaluations), [one.tasks for one in evaluations]
    reports = [compute_report(*x) for x in zip(names, evaluations, strict=True)]
    beside = [(one, probe_baselines(one, evaluations)) for one in discoveries]
    sections = [
        *first,
        *map(evaluation_section, reports),
        *(discovery_section(one, baselines) for one, baselines in beside),
    ]
    files: dict[str, str | bytes] = {}
    for report in reports:
        files |= _plots(report) | _films(report)
    for one, baselines in beside:
        drawn = static_plots.discovery_curves(one.metrics, baselines)
        files |= drawn.files(f"{file_name(one.name)}_discovery")
    if found := [x for x in reproductions() if any(set(x.tasks) <= set(own) for own in tasks)]:
        sections.append(published_aggregates_section(found))
        files["reproduced.csv"] = to_csv(found)
    files |= csv_files({report.name: _tabulated(report) for report in reports})
    if reports:
        sections.append(FilesSection.of(files))
    files["index.html"] = page.render(title, sections, _remarks(names))
    for file, content in files.items():
        (output / file).parent.mkdir(exist_ok=True)
        write_atomically(output / file, content)
    return [output / file for file in files]


def _distinct_names(evaluations: Sequence[MergedEvaluation]) -> list[str]:
    """Return the evaluations' names, with numbers where they are equal."""
    plain = [one.name for one in evaluations]
    return [
        f"{name} ({plain[: i + 1].count(name)})" if plain.count(name) > 1 else name
        for i, name in enumerate(plain)
    ]


def _remarks(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they are shown"
        " side by side, and no mean is over more than one of them."
    ]


def _plots(report: EvaluationReport) -> dict[str, bytes]:
    """Return the plots of an evaluation by file name."""
    merged, summary, shown = report.merged, report.summary, report.shown
    name, curves, config = file_name(report.name), merged.contender_curves, merged.config
    learning_curves = static_plots.learning_curves(summary, shown, curves, config)
    files = learning_curves.files(f"{name}_learning_curves")
    if config.seeds == 1:
        return files
    if summary.aggregates:
        drawn = {contender.name: curves[contender.name] for contender in shown}
        mean_curves = normalized_curves(summary, drawn, config)
        aggregate = static_plots.mean_curves(summary, shown, mean_curves, config)
        files |= aggregate.files(f"{name}_aggregate")
    for comparison in report.comparisons:
        scale = file_name(comparison.scale.name.lower())
        for plot, drawing in comparison_plots.draw(comparison, shown).items():
            files |= drawing.files(f"{name}_{scale}_{plot}")
    return files


def _films(report: EvaluationReport) -> dict[str, bytes]:
    """Return the films of an evaluation by file name."""
    films = [film for found in report.pictures.films.values() for film in found]
    return {film.file: files.read_bytes(film.source, files.MOST_DATA) for film in films}


def _tabulated(report: EvaluationReport) -> Tabulated:
    """Return an evaluation for the tables."""
    merged = report.merged
    return Tabulated(
        report.summary,
        merged.contender_curves,
        merged.config,
        merged.seeds,
        [x.scale for x in report.comparisons],
        [
            Aggregated(x.scale, x.aggregates, comparisons(x.improvement, x.differences))
            for x in report.comparisons
        ],
    )

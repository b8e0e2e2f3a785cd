"""The report of finished runs: a page, and the numbers and pictures in it as files.

    index.html               the page; needs no network
    scores.csv               each contender's and each paper's score on each task
    aggregates.csv           means, medians, IQMs, optimality gaps and their intervals, by scale
    improvement.csv          probabilities of improvement
    curves.csv               learning curves: mean return over seeds, and its standard error
    reproduced.csv           the papers' own aggregates, reproduced from their scores
    <evaluation>_*.png       learning curves, aggregate curves

Evaluations of different tasks, budgets or score definitions are shown side by side. No mean is
taken over more than one of them.
"""

import pathlib
from collections.abc import Sequence

from disco_common.atomic import write_atomically
from evaluation.published.aggregates import reproductions, to_csv
from evaluation.report import page, png_plots
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.evaluation_report import EvaluationReport, compute_report
from evaluation.report.merging import MergedEvaluation
from evaluation.report.report_csv import csv_files
from evaluation.report.sections import (
    discovery_section,
    evaluation_section,
    published_aggregates_section,
)
from evaluation.scoring.curves import normalized_curves


def write_report(
    output: pathlib.Path,
    evaluations: Sequence[MergedEvaluation],
    discoveries: Sequence[Discovery] = (),
    title: str = "Report",
    first: Sequence[page.Section] = (),
    *,
    with_published_aggregates: bool = True,
) -> list[pathlib.Path]:
    """Write a report; return its files.

    Args:
      output: folder; created if necessary.
      evaluations: with at least one run each.
      discoveries: whose metrics to show, too.
      title: of the page.
      first: sections before all others.
      with_published_aggregates: add the papers' own aggregates, reproduced from their scores.

    Raises:
      OSError: if a file cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = _distinct_names(evaluations)
    reports = [compute_report(*x) for x in zip(names, evaluations, strict=True)]
    sections = [*first, *map(evaluation_section, reports), *map(discovery_section, discoveries)]
    files: dict[str, str | bytes] = {}
    for report in reports:
        files |= _pictures(report)
    for one in discoveries:
        files[f"{_file_name(one.name)}_discovery.png"] = png_plots.discovery_curves(one.metrics)
    if with_published_aggregates:
        found = reproductions()
        sections.append(published_aggregates_section(found))
        files["reproduced.csv"] = to_csv(found)
    files["index.html"] = page.render(title, sections, _remarks(names))
    files |= csv_files(reports)
    for file, content in files.items():
        write_atomically(output / file, content)
    return [output / file for file in files]


def _distinct_names(evaluations: Sequence[MergedEvaluation]) -> list[str]:
    """Return the evaluations' names, with numbers where they are equal."""
    plain = [one.name for one in evaluations]
    return [
        f"{name} ({plain[: i + 1].count(name)})" if plain.count(name) > 1 else name
        for i, name in enumerate(plain)
    ]


def _file_name(name: str) -> str:
    return "".join(x if x.isalnum() or x in "-_." else "_" for x in name)


def _remarks(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they are shown"
        " side by side, and no mean is over more than one of them."
    ]


def _pictures(report: EvaluationReport) -> dict[str, bytes]:
    """Return the plots of an evaluation (PNG) by file name."""
    merged, summary, shown = report.merged, report.summary, report.shown
    name, curves, config = _file_name(report.name), merged.contender_curves, merged.config
    learning_curves = png_plots.learning_curves(summary, shown, curves, config)
    files = {f"{name}_learning_curves.png": learning_curves}
    if summary.aggregates:
        drawn = {contender.name: curves[contender.name] for contender in shown}
        mean_curves = normalized_curves(summary, drawn, config)
        files[f"{name}_aggregate.png"] = png_plots.mean_curves(summary, shown, mean_curves, config)
    return files

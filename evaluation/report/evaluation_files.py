"""The files that an evaluation writes when its runs are finished.

results.json        the main result, and every number: curves and scores of each run, settings,
                    provenance
scores.csv, episode_means.csv, curves.csv, aggregates.csv, comparisons.csv, published.csv
                    the same as tables, as far as there are any (`evaluation.report.csv_tables`)
curves.png          learning curves, one panel per task
aggregate.png       the mean normalised score along the budget; not with one seed

Each plot is also an SVG file.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from disco_common import json_lines
from disco_common.atomic import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.published.scores import published_scores
from evaluation.report import csv_tables, static_plots
from evaluation.report.csv_tables import Aggregated, Tabulated, comparisons
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.results_json import to_json
from evaluation.report.score_table import ScoreTable, remarks, score_table
from evaluation.results import LearningCurves
from evaluation.scoring.comparison import scales
from evaluation.scoring.curves import normalized_curves
from evaluation.scoring.summary import Summary, in_order


@dataclasses.dataclass(frozen=True)
class WrittenEvaluation:
    """A finished evaluation, its files, and remarks for the user.

    Attributes:
      summary: of its runs.
      result: the main result.
      table: scores of the shown contenders.
      remarks: sentences on what the table leaves out.
      files: that were written.
    """

    summary: Summary
    result: MainResult
    table: ScoreTable
    remarks: tuple[str, ...]
    files: tuple[pathlib.Path, ...]


def write_evaluation(
    folder: pathlib.Path,
    summary: Summary,
    contenders: Sequence[Contender],
    contender_curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> WrittenEvaluation:
    """Write all files.

    Args:
      folder: to write to.
      summary: of the curves.
      contenders: all of them.
      contender_curves: the learning curves of each contender, by name.
      config: of the evaluation.
      descriptions: of each contender, by name; JSON values.
      provenance: of the results; JSON values.

    Raises:
      OSError: if a file cannot be written.
    """
    shown = in_order(contenders)
    mean_curves = None
    if summary.aggregates:
        mean_curves = normalized_curves(summary, contender_curves, config)
    defined = scales(summary)
    result = main_result(summary, shown, config, next(iter(defined), None))
    results = to_json(
        summary, result, contender_curves, mean_curves, config, descriptions, provenance
    )
    tables = Tabulated(
        summary, contender_curves, config, config.all_seeds, defined, _aggregated(summary)
    )
    drawn = static_plots.learning_curves(summary, shown, contender_curves, config)
    files: dict[str, str | bytes] = {
        "results.json": json_lines.dumps(results, indent=1),
        **csv_tables.csv_files({"": tables}),
        **drawn.files("curves"),
    }
    if mean_curves is not None and config.seeds > 1:
        files |= static_plots.mean_curves(summary, shown, mean_curves, config).files("aggregate")
    for name, content in files.items():
        write_atomically(folder / name, content)
    return WrittenEvaluation(
        summary=summary,
        result=result,
        table=score_table(summary, shown, config),
        remarks=(
            *_remark_on_papers(sum(len(published_scores(task)) for task in summary.tasks)),
            *remarks(summary, contender_curves),
        ),
        files=tuple(folder / name for name in files),
    )


def _aggregated(summary: Summary) -> list[Aggregated]:
    """Return the summary's statistics over tasks, if any task counts."""
    if not summary.aggregates:
        return []
    compared = comparisons(summary.improvement, summary.differences)
    return [Aggregated(summary.scale, summary.aggregates, compared)]


def _remark_on_papers(number: int) -> list[str]:
    if not number:
        return []
    return [
        f"{number} scores that papers report on these tasks are in published.csv, with their"
        " budgets and protocols, which differ from ours and from one another."
    ]

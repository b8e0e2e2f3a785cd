"""The files that an evaluation writes when its runs are finished.

results.json        every number: curves and scores of each run, settings, provenance
table.csv           scores of every contender on every task, and the means over tasks
episode_means.csv   means over the scored episodes: length, and the suite's other results
published.csv       our scores and those that papers report, if any, with their budgets
curves.png          learning curves, one panel per task
aggregate.png       the mean normalised score along the budget
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from disco_common.atomic import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.published.scores import published_scores
from evaluation.report import csv_tables, png_plots
from evaluation.report.results_json import to_json
from evaluation.report.score_table import ScoreTable, remarks, score_table
from evaluation.results import LearningCurves
from evaluation.scoring.curves import normalized_curves
from evaluation.scoring.summary import Summary, in_order


@dataclasses.dataclass(frozen=True)
class WrittenEvaluation:
    """A finished evaluation, its files, and remarks for the user.

    Attributes:
      summary: of its runs.
      table: scores of the shown contenders.
      remarks: sentences on what the table leaves out.
      files: that were written.
    """

    summary: Summary
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
    results = to_json(summary, contender_curves, mean_curves, config, descriptions, provenance)
    files = {
        "results.json": json.dumps(results, allow_nan=False, indent=1),
        "table.csv": csv_tables.scores_to_csv(summary, config),
        "episode_means.csv": csv_tables.episode_means_to_csv(summary, contender_curves),
        "curves.png": png_plots.learning_curves(summary, shown, contender_curves, config),
    }
    published = {task: scores for task in summary.tasks if (scores := published_scores(task))}
    if published:
        files["published.csv"] = csv_tables.published_to_csv(published, summary, config)
    if mean_curves is not None:
        files["aggregate.png"] = png_plots.mean_curves(summary, shown, mean_curves, config)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return WrittenEvaluation(
        summary=summary,
        table=score_table(summary, shown, config),
        remarks=(
            *_remark_on_papers(sum(map(len, published.values()))),
            *remarks(summary, contender_curves),
        ),
        files=tuple(folder / name for name in files),
    )


def _remark_on_papers(number: int) -> list[str]:
    if not number:
        return []
    return [
        f"{number} scores that papers report on these tasks are in published.csv, with their"
        " budgets and protocols, which differ from ours and from one another."
    ]

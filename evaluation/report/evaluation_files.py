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

import numpy as np
from jaxtyping import Float

from disco_common import json_lines
from disco_common.files import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.published import published_scores
from evaluation.report import plots
from evaluation.report.csv_tables import Tabulated, csv_files
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.score_table import ScoreTable, remarks, score_table
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.comparison import scales
from evaluation.scoring.curves import Curves, normalized_curves
from evaluation.scoring.statistics import Estimate
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
    results = _to_json(
        summary, result, contender_curves, mean_curves, config, descriptions, provenance
    )
    aggregated = [summary] if summary.aggregates else []
    tables = Tabulated(summary, contender_curves, config, config.all_seeds, aggregated)
    drawn = plots.learning_curves(summary, shown, contender_curves, config)
    files: dict[str, str | bytes] = {
        "results.json": json_lines.dumps(results, indent=1),
        **csv_files({"": tables}),
        **drawn.files("curves"),
    }
    if mean_curves is not None and config.seeds > 1:
        files |= plots.mean_curves(summary, shown, mean_curves, config).files("aggregate")
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


def _remark_on_papers(number: int) -> list[str]:
    if not number:
        return []
    return [
        f"{number} scores that papers report on these tasks are in published.csv, with their"
        " budgets and protocols, which differ from ours and from one another."
    ]


def _to_json(
    summary: Summary,
    result: MainResult,
    contender_curves: Mapping[str, LearningCurves],
    mean_curves: Curves | None,
    config: EvaluationConfig,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Return the contents of `results.json`.

    Missing numbers are null. Nested lists are indexed in the order that their names say. A learning
    rate that no agent used is null: those of the settings if every rule, or every baseline, has its
    own, and that of a contender that has none. A contender's `start_seconds` and `train_seconds`
    are sums of wall times over its jobs (`evaluation.results.LearningCurves`); `start_seconds` of
    runs in host environments is 0.

    Args:
      summary: of the curves.
      result: the main one, as `result`.
      contender_curves: the learning curves of each contender, by name.
      mean_curves: each contender's mean normalised return over tasks; None if no task counts.
      config: of the evaluation.
      descriptions: of each contender, by name; JSON values.
      provenance: of the results; JSON values.
    """
    curve_steps, curves = ([], {}) if mean_curves is None else mean_curves
    contenders = {
        name: description
        | _contender_to_json(name, summary, contender_curves[name], config, curves)
        for name, description in descriptions.items()
    }
    return json_lines.plain(
        {
            "result": dataclasses.asdict(result),
            "score": config.score_definition,
            "normalized_score": "(score - random policy's) / (reference - random policy's), both of"
            " which are constants (references)",
            "config": _settings(config, descriptions),
            "seeds": config.all_seeds,
            "environment_steps_per_run": config.num_steps,
            "provenance": provenance,
            "tasks": summary.tasks,
            "best_baseline_score": dict(zip(summary.tasks, summary.baseline, strict=True)),
            "references": {name: dataclasses.asdict(x) for name, x in summary.references.items()},
            "discoveries": {
                several: {"rules": names, "normalized_score": _aggregates(several, summary)}
                for several, names in summary.discoveries.items()
            },
            "left_out_of_means": summary.left_out,
            "probability_of_improvement": _pairs_to_json(summary.improvement),
            "differences_of_mean_normalized_score": _pairs_to_json(summary.differences),
            "normalized_curve_environment_steps": list(map(int, curve_steps)),
            "contenders": contenders,
        }
    )


def _settings(
    config: EvaluationConfig, descriptions: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the settings, without the learning rates by which nobody learned."""
    settings = dataclasses.asdict(config)
    origins = {x["source"].get("learning_rate_from") for x in descriptions.values()}
    if "config.agent.learning_rate" not in origins:
        settings["agent"]["learning_rate"] = None
    return settings


def _contender_to_json(
    name: str,
    summary: Summary,
    own: LearningCurves,
    config: EvaluationConfig,
    curves: Mapping[str, Float[np.ndarray, "3 points"]],
) -> dict[str, Any]:
    curve = dict(zip(("mean", "low", "high"), curves[name], strict=True)) if curves else None
    return {
        "normalized_score": _aggregates(name, summary),
        "tasks_above_random": summary.above_random.get(name),
        "normalized_curve": curve,
        "curve_environment_steps": own.updates * config.agent.steps_per_update,
        "tasks": _tasks_to_json(summary, summary.scores[name], own),
    }


def _pairs_to_json(pairs: Mapping[tuple[str, str], Estimate]) -> list[dict[str, Any]]:
    return [
        {"rule": rule, "baseline": baseline, **estimate._asdict()}
        for (rule, baseline), estimate in pairs.items()
    ]


def _aggregates(name: str, summary: Summary) -> dict[str, Any]:
    return {label: x._asdict() for label, x in summary.aggregates.get(name, {}).items()}


def _tasks_to_json(
    summary: Summary, scores: Float[np.ndarray, "tasks seeds"], own: LearningCurves
) -> dict[str, Any]:
    columns = {
        "score_mean": statistics.mean(scores),
        "score_standard_error": statistics.standard_error(scores),
        "score_by_seed": scores,
        "is_finite_by_seed": own.is_finite,
        "curve_by_seed_and_point": own.curve.mean_return,
        "episodes_by_seed_and_point": own.curve.count,
        **{f"{name}_by_seed": values for name, values in own.results.items()},
    }
    return {
        task: {name: values[i] for name, values in columns.items()}
        for i, task in enumerate(summary.tasks)
    }

"""All numbers and pictures that a report shows of an evaluation, computed from its runs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from evaluation.contenders import AlgorithmContender, Contender
from evaluation.report.agent_metrics import AgentMetrics, agent_metrics
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.merging import MergedEvaluation
from evaluation.report.paper_scores import paper_rows
from evaluation.report.pictures_of_runs import Pictures, find_pictures
from evaluation.report.score_table import ScoreTable, score_table
from evaluation.scoring import bsuite
from evaluation.scoring.bsuite import BsuiteScores
from evaluation.scoring.comparison import Comparison, compare, scales
from evaluation.scoring.crafter import CrafterScores, score_achievements
from evaluation.scoring.curves import task_curves
from evaluation.scoring.summary import Summary, in_order


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """What a report shows of an evaluation.

    Attributes:
      name: of the evaluation, unique in the report.
      merged: the evaluation's runs.
      summary: of all contenders.
      shown: contenders with at least one score.
      comparisons: of the shown contenders, on each scale that is defined.
      result: the main result, on the first scale.
      table: scores by task and contender.
      paper_scores: rows of a table of the papers' scores on the tasks.
      curves: by task, environment steps, and each shown contender's learning curve
        (`evaluation.scoring.curves.task_curves`).
      pictures: of the shown contenders.
      metrics: that shown agents with losses of their own logged, by contender, if any did.
      achievements: by Crafter task, the scores of the shown contenders that have any.
      bsuite: bsuite's scores of the shown contenders' seeds.
      bsuite_errors: by contender and seed, why bsuite's scores leave it out.
    """

    name: str
    merged: MergedEvaluation
    summary: Summary
    shown: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]
    result: MainResult
    table: ScoreTable
    paper_scores: list[dict[str, Any]]
    curves: dict[str, tuple[Int[np.ndarray, "_"], dict[str, Float[np.ndarray, "3 _"]]]]
    pictures: Pictures
    metrics: dict[str, AgentMetrics]
    achievements: dict[str, dict[str, CrafterScores]]
    bsuite: dict[str, list[BsuiteScores]]
    bsuite_errors: Mapping[tuple[str, int], ValueError]


def compute_report(name: str, merged: MergedEvaluation) -> EvaluationReport:
    """Return what a report shows of an evaluation.

    Args:
      name: for the evaluation.
      merged: its runs, at least one.
    """
    config, contender_curves, tasks = merged.config, merged.contender_curves, merged.tasks
    summary = merged.summary()
    shown = [
        contender
        for contender in in_order(merged.contenders)
        if np.isfinite(summary.scores[contender.name]).any()
    ]
    own = {contender.name: contender_curves[contender.name] for contender in shown}
    defined = scales(summary)
    achievements = {task: score_achievements(own, i) for i, task in enumerate(tasks)}
    metrics = {
        contender.name: agent_metrics(merged, contender.name)
        for contender in shown
        if isinstance(contender, AlgorithmContender) and not contender.is_random
    }
    bsuite_scores, bsuite_errors = _bsuite_scores(merged, shown)
    return EvaluationReport(
        name=name,
        merged=merged,
        summary=summary,
        shown=tuple(shown),
        comparisons=tuple(compare(x, summary, contender_curves, config, shown) for x in defined),
        result=main_result(summary, shown, config, next(iter(defined), None)),
        table=score_table(summary, shown, config),
        paper_scores=paper_rows(summary, defined),
        curves={task: task_curves(own, i, len(tasks), config) for i, task in enumerate(tasks)},
        pictures=find_pictures(name, merged, shown),
        metrics={name: found for name, found in metrics.items() if found.tasks},
        achievements={task: scores for task, scores in achievements.items() if scores},
        bsuite=bsuite_scores,
        bsuite_errors=bsuite_errors,
    )


def _bsuite_scores(
    merged: MergedEvaluation, shown: Sequence[Contender]
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    settings = bsuite.settings_of(merged.tasks)
    if not settings:
        return {}, {}
    names = [contender.name for contender in shown if contender.num_environments == 1]
    return bsuite.score_contenders(names, settings, merged.seeds, merged.episodes)

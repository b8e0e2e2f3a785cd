"""All numbers and pictures that a report shows of an evaluation, computed from its runs."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from evaluation.contenders import AGENT, Contender
from evaluation.report.agent_metrics import AgentMetrics, agent_metrics
from evaluation.report.merging import MergedEvaluation
from evaluation.report.score_rows import score_rows
from evaluation.scoring import bsuite
from evaluation.scoring.bsuite import BsuiteScores
from evaluation.scoring.comparison import Comparison, compare, scales
from evaluation.scoring.crafter import CrafterScores, score_achievements
from evaluation.scoring.curves import task_curves
from evaluation.scoring.summary import Summary, in_order

_MAX_PICTURE_BYTES = 2_000_000  # Of an evaluation, in the page.


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Pictures of what final agents do.

    Attributes:
      by_task: captions and pictures (PNG).
      left_out: the number of pictures for which there was no space.
    """

    by_task: dict[str, list[tuple[str, bytes]]]
    left_out: int


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """What a report shows of an evaluation.

    Attributes:
      name: of the evaluation, unique in the report.
      merged: the evaluation's runs.
      summary: of all contenders.
      shown: contenders with at least one score.
      comparisons: of the shown contenders, on each scale that is defined.
      scores: rows of a table, by task and agent, ours and the papers'.
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
    scores: list[dict[str, Any]]
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
        if contender.kind == AGENT
    }
    bsuite_scores, bsuite_errors = _bsuite_scores(merged, shown)
    return EvaluationReport(
        name=name,
        merged=merged,
        summary=summary,
        shown=tuple(shown),
        comparisons=tuple(compare(x, summary, contender_curves, config, shown) for x in defined),
        scores=score_rows(config, summary, defined),
        curves={task: task_curves(own, i, len(tasks), config) for i, task in enumerate(tasks)},
        pictures=_pictures(merged, shown),
        metrics={name: found for name, found in metrics.items() if found.tasks},
        achievements={task: scores for task, scores in achievements.items() if scores},
        bsuite=bsuite_scores,
        bsuite_errors=bsuite_errors,
    )


def _bsuite_scores(
    merged: MergedEvaluation, shown: Sequence[Contender]
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    settings = bsuite.settings_of(merged.tasks)
    if not settings or not bsuite.is_scored(merged.config):
        return {}, {}
    names = [contender.name for contender in shown]
    return bsuite.score_contenders(names, settings, merged.seeds, merged.episodes)


def _pictures(merged: MergedEvaluation, shown: Sequence[Contender]) -> Pictures:
    """Return the pictures of each contender's first run on each task that has any."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    left_out, size = 0, 0
    for task, contender in itertools.product(merged.tasks, shown):
        by_seed = (merged.pictures(contender.name, task, seed) for seed in merged.seeds)
        for caption, picture in next(filter(None, by_seed), []):
            if size + len(picture) > _MAX_PICTURE_BYTES:
                left_out += 1
                continue
            size += len(picture)
            found.setdefault(task, []).append((f"{contender.name}, {caption}", picture))
    return Pictures(found, left_out)

"""The scores that papers report on an evaluation's tasks, with their budgets and protocols."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluation.published.scores import (
    CRAFTER_SCORE,
    METRICS,
    RETURN,
    PublishedScore,
    published_scores,
    published_tables,
)
from evaluation.report.texts import format_number
from evaluation.scoring.normalization import Scale
from evaluation.scoring.summary import Summary


def paper_rows(summary: Summary, scales: Sequence[Scale]) -> list[dict[str, Any]]:
    """Return a row for each score that a paper reports on an evaluation's tasks.

    Args:
      summary: of the evaluation.
      scales: a column each.
    """
    return [
        _row(task, score) | _normalized(scales, i, score.score if metric == RETURN else np.nan)
        for i, task in enumerate(summary.tasks)
        for metric in (RETURN, CRAFTER_SCORE)
        for score in published_scores(task, metric)
    ]


def protocols(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Return source and protocol of each paper's table that has scores on some of the tasks."""
    used = {
        score.source
        for task in tasks
        for metric in METRICS
        for score in published_scores(task, metric)
    }
    return [(x.source, x.protocol) for x in published_tables() if x.source in used]


def _normalized(scales: Sequence[Scale], task: int, score: float) -> dict[str, str]:
    """Return a score on each scale; empty where it is not defined."""
    is_known = np.isfinite(score)
    return {
        scale.name: format_number(scale.normalize_one(score, task)) if is_known else ""
        for scale in scales
    }


def _row(task: str, score: PublishedScore) -> dict[str, Any]:
    budget = "" if score.budget is None else f"{score.budget:,} {score.budget_unit}"
    protocol = "the paper's" + (f", {score.scored_on}" if score.scored_on else "")
    protocol += f", measured on {score.task}" if score.task != task else ""
    if score.metric != RETURN:
        protocol += f"; a {score.metric.replace('_', ' ')}"
    return {
        "task": task,
        "agent": score.agent,
        "score": f"{score.score:.12g}",
        "±": "" if score.plus_minus is None else f"{score.plus_minus:g}",
        "runs": len(score.runs) or "",
        "budget": budget,
        "protocol": protocol,
        "source": score.source + (f" ({score.note})" if score.note else ""),
    }

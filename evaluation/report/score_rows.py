"""The table of all scores on an evaluation's tasks: ours, and those that papers report."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluation.config import EvaluationConfig
from evaluation.published.scores import (
    CRAFTER_SCORE,
    METRICS,
    RETURN,
    PublishedScore,
    published_scores,
    published_tables,
)
from evaluation.scoring import statistics
from evaluation.scoring.normalization import Scale
from evaluation.scoring.summary import Summary


def score_rows(
    config: EvaluationConfig, summary: Summary, scales: Sequence[Scale]
) -> list[dict[str, Any]]:
    """Return a row for each task and agent.

    Args:
      config: of the evaluation.
      summary: our scores.
      scales: a column each.
    """
    rows = []
    for i, task in enumerate(summary.tasks):
        for name, scores in summary.scores.items():
            value = statistics.mean(scores)[i]
            error = statistics.standard_error(scores)[i]
            row = {
                "task": task,
                "agent": name,
                "score": format_number(value),
                "±": format_number(error),
                "runs": int(np.isfinite(scores[i]).sum()),
                "budget": f"{config.num_steps:,} steps",
                "protocol": "this report, training episodes",
                "source": "ours",
            }
            rows.append(row | _normalized(scales, i, value))
        for metric in (RETURN, CRAFTER_SCORE):
            for score in published_scores(task, metric):
                own_scales = _normalized(scales, i, score.score if metric == RETURN else np.nan)
                rows.append(_published_row(task, score) | own_scales)
    return rows


def protocols(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Return source and protocol of each paper's table that has scores on some of the tasks."""
    used = {
        score.source
        for task in tasks
        for metric in METRICS
        for score in published_scores(task, metric)
    }
    return [(x.source, x.protocol) for x in published_tables() if x.source in used]


def format_number(value: float) -> str:
    """Return a number with four significant digits; empty if it is not finite."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _normalized(scales: Sequence[Scale], task: int, score: float) -> dict[str, str]:
    """Return a score on each scale; empty where it is not defined."""
    is_known = np.isfinite(score)
    return {
        scale.name: format_number(scale.normalize_one(score, task)) if is_known else ""
        for scale in scales
    }


def _published_row(task: str, score: PublishedScore) -> dict[str, Any]:
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

"""The CSV tables of evaluations: long and tidy, one fact a row, only numbers in number columns.

`launch.evaluate` writes those of its evaluation, and `launch.report` those of all its evaluations,
with the column `evaluation` before the others. `TABLES` names the files and describes their
columns. Unknown numbers are empty. In pandas the scores of `launch.evaluate`, task by contender:

    scores = pd.read_csv("runs/mine/scores.csv")
    returns = scores[scores["scale"] == "return"]
    returns.pivot_table("score", index="task", columns="contender")
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evaluation.config import EvaluationConfig
from evaluation.published import METRICS, RETURN, PublishedScore, published_scores
from evaluation.results import LearningCurves
from evaluation.scoring.comparison import Comparison, scales
from evaluation.scoring.normalization import Scale
from evaluation.scoring.over_tasks import FEWEST_TASKS
from evaluation.scoring.statistics import Estimate
from evaluation.scoring.summary import Summary

Row = dict[str, Any]

_ENDS = {
    "low": "end of its interval over seeds, or discoveries, with these tasks; empty if no task has"
    " two runs",
    "high": "the other end",
    "low_over_tasks": "end of its interval over tasks and seeds, and discoveries; empty with fewer"
    f" than {FEWEST_TASKS} tasks",
    "high_over_tasks": "the other end",
    "confidence": "of the intervals",
}

_RUN = {"task": "name", "contender": "name", "seed": "of the run"}

TABLES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "scores.csv": (
        "a row for each run and scale",
        {
            **_RUN,
            "environment_steps": "of the run",
            "scale": "'return', or the name of a normalisation",
            "score": "of the run's last episodes, on this scale",
        },
    ),
    "episode_means.csv": (
        "a row for each run and result of its scored episodes",
        {
            **_RUN,
            "result": "'length', or a result of the suite's own",
            "mean": "over the episodes",
        },
    ),
    "curves.csv": (
        "a row for each run and point of its learning curve at which an episode ended",
        {
            **_RUN,
            "environment_steps": "at the end of the point's interval",
            "episodes": "number that ended in the interval",
            "mean_return": "of these episodes, not discounted",
        },
    ),
    "aggregates.csv": (
        "a row for each scale, contender and aggregate over tasks",
        {
            "scale": "name of the normalisation",
            "tasks": "number that the aggregate is over",
            "contender": "name",
            "aggregate": "IQM, median, mean capped at 1, optimality gap or mean",
            "value": "the aggregate",
            **_ENDS,
        },
    ),
    "comparisons.csv": (
        "a row for each scale, pair of contenders and statistic",
        {
            "scale": "name of the normalisation",
            "tasks": "number that the statistic is over",
            "contender": "name",
            "other": "the contender that it is compared with",
            "statistic": "probability of improvement, or difference of means",
            "value": "the statistic",
            **_ENDS,
        },
    ),
    "published.csv": (
        "a row for each score that a paper reports on a task of the evaluation, and scale",
        {
            "task": "name, of the evaluation",
            "agent": "the paper's name of it",
            "metric": "that is scored, for example 'return'",
            "scale": "'return', or the name of a normalisation",
            "score": "on this scale",
            "plus_minus": "the paper's uncertainty, whatever it is; of returns only",
            "runs": "number whose scores the paper reports one by one",
            "budget": "of a run",
            "budget_unit": "of the budget",
            "scored_on": "the episodes that are scored",
            "measured_on": "task of the paper",
            "source": "paper and table",
            "note": "on the score",
        },
    ),
}
"""By file name, what a row is, and the columns."""


class Tabulated(NamedTuple):
    """An evaluation, as far as tables show it.

    Attributes:
      summary: of its scores.
      contender_curves: learning curves by contender.
      config: of the evaluation.
      seeds: of the second axis of scores.
      aggregated: what has the statistics over tasks, on a scale each.
    """

    summary: Summary
    contender_curves: Mapping[str, LearningCurves]
    config: EvaluationConfig
    seeds: Sequence[int]
    aggregated: Sequence[Summary | Comparison]


def csv_files(evaluations: Mapping[str, Tabulated]) -> dict[str, str]:
    """Return the contents of each table that has rows, by file name.

    Args:
      evaluations: by name; the column `evaluation` is left out if the only one has an empty name.
    """
    makers = {
        "scores.csv": _scores,
        "episode_means.csv": _episode_means,
        "curves.csv": _curves,
        "aggregates.csv": _aggregates,
        "comparisons.csv": _comparisons,
        "published.csv": lambda one: published_rows(one.summary),
    }
    files = {}
    for file, make in makers.items():
        rows: list[Row] = []
        for name, one in evaluations.items():
            own = {"evaluation": name} if name else {}
            rows += [own | row for row in make(one)]
        if rows:
            files[file] = to_csv(rows)
    return files


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table, with the rows' keys as its header."""
    # As objects: whole numbers stay whole beside unknown ones.
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def _scores(one: Tabulated) -> Iterator[Row]:
    defined = scales(one.summary)
    for name, scores in one.summary.scores.items():
        for i, task in enumerate(one.summary.tasks):
            for seed, score in zip(one.seeds, scores[i], strict=True):
                run = {
                    "task": task,
                    "contender": name,
                    "seed": seed,
                    "environment_steps": one.config.num_steps,
                }
                for scale, value in _on_scales(score, i, defined):
                    yield {**run, "scale": scale, "score": _number(value)}


def _on_scales(score: float, task: int, defined: Sequence[Scale]) -> Iterator[tuple[str, float]]:
    """Yield the name of each scale that a task has, and a return on it; nothing for no return."""
    if not math.isfinite(score):
        return
    yield RETURN, score
    for scale in defined:
        if scale.counted[task]:
            yield scale.name, scale.normalize_one(score, task)


def _episode_means(one: Tabulated) -> Iterator[Row]:
    for contender, curves in one.contender_curves.items():
        for name, values in curves.results.items():
            for i, task in enumerate(one.summary.tasks):
                for seed, value in zip(one.seeds, values[i], strict=True):
                    if math.isfinite(value):
                        yield {
                            "task": task,
                            "contender": contender,
                            "seed": seed,
                            "result": name,
                            "mean": _number(value),
                        }


def _curves(one: Tabulated) -> Iterator[Row]:
    for contender, curves in one.contender_curves.items():
        steps = curves.updates * one.config.agent.steps_per_update
        counts, means = curves.curve.count, curves.curve.mean_return
        for i, j, point in np.argwhere(counts > 0):
            yield {
                "task": one.summary.tasks[i],
                "contender": contender,
                "seed": one.seeds[j],
                "environment_steps": int(steps[point]),
                "episodes": int(counts[i, j, point]),
                "mean_return": _number(float(means[i, j, point])),
            }


def _aggregates(one: Tabulated) -> Iterator[Row]:
    for found in one.aggregated:
        for contender, aggregates in found.aggregates.items():
            for label, estimate in aggregates.items():
                who = {"contender": contender, "aggregate": label}
                yield _estimated(found.scale, who, estimate, one.config)


def _comparisons(one: Tabulated) -> Iterator[Row]:
    for found in one.aggregated:
        compared = {
            "probability of improvement": found.improvement,
            "difference of means": found.differences,
        }
        for statistic, pairs in compared.items():
            for (contender, other), estimate in pairs.items():
                who = {"contender": contender, "other": other, "statistic": statistic}
                yield _estimated(found.scale, who, estimate, one.config)


def _estimated(
    scale: Scale, who: Mapping[str, str], estimate: Estimate, config: EvaluationConfig
) -> Row:
    return {
        "scale": scale.name,
        "tasks": int(scale.counted.sum()),
        **who,
        **{part: _number(x) for part, x in estimate._asdict().items()},
        "confidence": config.confidence,
    }


def published_rows(summary: Summary) -> Iterator[Row]:
    """Yield the rows of `published.csv`."""
    defined = scales(summary)
    for i, task in enumerate(summary.tasks):
        for metric in METRICS:
            for score in published_scores(task, metric):
                yield from _published_rows(score, metric, i, task, defined)


def _published_rows(
    score: PublishedScore, metric: str, i: int, task: str, defined: Sequence[Scale]
) -> Iterator[Row]:
    on_scales = [(metric, score.score)]
    if metric == RETURN:
        on_scales = list(_on_scales(score.score, i, defined))
    for scale, value in on_scales:
        has_error = scale == metric and score.plus_minus is not None
        yield {
            "task": task,
            "agent": score.agent,
            "metric": metric,
            "scale": scale,
            "score": _number(value),
            "plus_minus": score.plus_minus if has_error else None,
            "runs": len(score.runs) or None,
            "budget": score.budget,
            "budget_unit": score.budget_unit if score.budget is not None else "",
            "scored_on": score.scored_on,
            "measured_on": score.task,
            "source": score.source,
            "note": score.note,
        }


def _number(value: float) -> float | None:
    """Return a number with six significant digits; None if it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None

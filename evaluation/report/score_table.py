"""The score table of an evaluation as plain data, for a terminal."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender
from evaluation.report.texts import interval_legend, over_seeds
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.statistics import Estimate
from evaluation.scoring.summary import Summary


@dataclasses.dataclass(frozen=True)
class Cell:
    """A contender's score on a task.

    Attributes:
      text: mean and standard error.
      is_best: whether no shown contender has a higher mean, and the random policy a lower one.
    """

    text: str
    is_best: bool


@dataclasses.dataclass(frozen=True)
class ScoreTable:
    """Scores of contenders on tasks, and their aggregates. Names are not escaped.

    Attributes:
      title: defines the score.
      caption: defines the rows of `aggregates`, or says why there is none; may be empty.
      contenders: names of the columns: contenders, then several discoveries together, whose errors
        are of the mean over discoveries.
      scores: a row for each task, with its name.
      aggregates: rows over all tasks, with labels; none with one seed, as means without intervals
        are no result.
    """

    title: str
    caption: str
    contenders: tuple[str, ...]
    scores: tuple[tuple[str, tuple[Cell, ...]], ...]
    aggregates: tuple[tuple[str, tuple[str, ...]], ...]


def score_table(
    summary: Summary, shown: Sequence[Contender], config: EvaluationConfig
) -> ScoreTable:
    """Return the score table of some contenders.

    Args:
      summary: of the evaluation.
      shown: contenders, a column each.
      config: of the evaluation.
    """
    return ScoreTable(
        title=f"Score: {config.score_definition}.\nMean{over_seeds(config.seeds)}.",
        caption=_caption(summary, config),
        contenders=(*(contender.name for contender in shown), *summary.discoveries),
        scores=tuple(_score_rows(summary, shown)),
        aggregates=tuple(_aggregate_rows(summary, shown) if config.seeds > 1 else ()),
    )


def remarks(summary: Summary, contender_curves: Mapping[str, LearningCurves]) -> list[str]:
    """Return a sentence for each reason to leave out tasks, and each contender's failed runs."""
    by_reason: dict[str, list[str]] = {}
    for task, reason in summary.left_out.items():
        by_reason.setdefault(reason, []).append(task)
    what = "Left out of the means over tasks" if len(summary.tasks) > 1 else "Not normalised"
    found = [
        f"{what}: {', '.join(tasks)}, because {reason}." for reason, tasks in by_reason.items()
    ]
    return found + non_finite_runs(contender_curves)


def non_finite_runs(contender_curves: Mapping[str, LearningCurves]) -> list[str]:
    """Return a sentence for each contender with runs that ended with non-finite numbers."""
    return [
        f"{name}: {np.sum(runs)} runs {what}."
        for name, curves in contender_curves.items()
        for what, runs in (
            ("ended with non-finite numbers", ~curves.is_finite),
            ("with returns that are not finite, which have no score", curves.window.is_not_finite),
        )
        if runs.any()
    ]


def _caption(summary: Summary, config: EvaluationConfig) -> str:
    sentences = []
    if summary.aggregates and config.seeds == 1:
        sentences.append("One seed: no intervals, and no means over tasks.")
    elif summary.aggregates:
        tasks, several = int(summary.counted.sum()), bool(summary.discoveries)
        legend = interval_legend(tasks, config.confidence, "over tasks", several)
        sentences.append(f"{summary.scale.definition} In brackets: {legend}.")
    if summary.above_random:
        sentences.append("Tasks above random: by mean score, without a significance test.")
    return " ".join(sentences)


def _score_rows(
    summary: Summary, shown: Sequence[Contender]
) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    own = [summary.scores[c.name] for c in shown]
    scores = [*own, *summary.scores_over_discoveries.values()]
    learns = [*(c.kind != RANDOM for c in shown), *[True] * len(summary.discoveries)]
    names = [*(c.name for c in shown), *summary.discoveries]
    means = [statistics.mean(x) for x in scores]
    nobody = np.full((len(summary.tasks), 1), np.nan)
    chance = statistics.mean(summary.scores.get(RANDOM, nobody))
    errors = [statistics.standard_error(x) for x in scores]
    for i, task in enumerate(summary.tasks):
        learned = [x[i] for x, is_one in zip(means, learns, strict=True) if is_one]
        best = max(filter(math.isfinite, learned), default=None)
        best = best if best is not None and not best <= chance[i] else None
        yield (
            task,
            tuple(
                Cell(
                    _with_error(mean[i], error[i]) or summary.missing(name, i),
                    is_one and bool(mean[i] == best),
                )
                for name, mean, error, is_one in zip(names, means, errors, learns, strict=True)
            ),
        )


def _aggregate_rows(
    summary: Summary, shown: Sequence[Contender]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = [*(c.name for c in shown), *summary.discoveries]
    for label in statistics.AGGREGATES if summary.aggregates else ():
        yield from _with_intervals(label, [summary.aggregates[name][label] for name in names])
    for baseline in dict.fromkeys(baseline for _, baseline in summary.improvement):
        found = [summary.improvement.get((name, baseline)) for name in names]
        yield from _with_intervals(f"P(better than {baseline})", found)
    if summary.above_random:
        cells = (
            "" if c.kind == RANDOM else f"{len(summary.above_random[c.name])}/{len(summary.tasks)}"
            for c in shown
        )
        yield "tasks above random", (*cells, *[""] * len(summary.discoveries))


def _with_error(mean: float, error: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def _with_intervals(
    label: str, estimates: Sequence[Estimate | None]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a row of statistics and, if they are known, one of the intervals over tasks."""
    yield label, tuple("" if x is None else x.text_over_seeds(2) for x in estimates)
    wide = tuple("" if x is None else x.text_over_tasks(2) for x in estimates)
    if any(wide):
        yield "  over tasks", wide

"""Tables of an evaluation for a terminal, a page and a rule's card, and the words in them."""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.contenders import (
    GRADIENT_STEPS,
    PARAMETERS,
    RANDOM,
    TUNED_SETTINGS,
    AlgorithmContender,
    Contender,
    RuleContender,
    settings_of_agent,
)
from evaluation.report.stored import MergedEvaluation
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.over_tasks import FEWEST_TASKS, Estimate


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


def score_table(evaluation: Evaluation, shown: Sequence[Contender]) -> ScoreTable:
    """Return the scores of some contenders, a column each."""
    config = evaluation.config
    return ScoreTable(
        title=f"Score: {config.score_definition}.\nMean{over_seeds(config.seeds)}.",
        caption=_caption(evaluation),
        contenders=(*(contender.name for contender in shown), *evaluation.discoveries),
        scores=tuple(_score_rows(evaluation, shown)),
        aggregates=tuple(_aggregates_by_label(evaluation, shown) if config.seeds > 1 else ()),
    )


def remarks(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each reason to leave out tasks, and each contender's failed runs."""
    by_reason: dict[str, list[str]] = {}
    for task, reason in evaluation.left_out.items():
        by_reason.setdefault(reason, []).append(task)
    several = len(evaluation.tasks) > 1
    what = "Left out of the means over tasks" if several else "Not normalised"
    found = [
        f"{what}: {', '.join(tasks)}, because {reason}." for reason, tasks in by_reason.items()
    ]
    return found + non_finite_runs(evaluation)


def non_finite_runs(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each contender with runs that ended with non-finite numbers."""
    return [
        f"{name}: {np.sum(runs)} runs {what}."
        for name, curves in evaluation.contender_curves.items()
        for what, runs in (
            ("ended with non-finite numbers", ~curves.is_finite),
            ("with returns that are not finite, which have no score", curves.window.is_not_finite),
        )
        if runs.any()
    ]


def _caption(evaluation: Evaluation) -> str:
    sentences, config = [], evaluation.config
    if (compared := evaluation.by_references) is not None:
        legend = intervals_of(compared, "over tasks")
        sentences.append(
            "One seed: no intervals, and no means over tasks."
            if config.seeds == 1
            else f"{compared.scale.definition} In brackets: {legend}."
        )
    if evaluation.above_random:
        sentences.append("Tasks above random: by mean score, without a significance test.")
    return " ".join(sentences)


def intervals_of(comparison: Comparison, mark: str) -> str:
    """Return what a comparison's intervals are over; see `interval_legend`."""
    tasks, several = int(comparison.scale.counted.sum()), bool(comparison.discoveries)
    return interval_legend(tasks, comparison.config.confidence, mark, several)


def _score_rows(
    evaluation: Evaluation, shown: Sequence[Contender]
) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    scores = {x.name: evaluation.scores[x.name] for x in shown}
    scores |= evaluation.scores_over_discoveries
    means = {name: statistics.mean(x) for name, x in scores.items()}
    errors = {name: statistics.standard_error(x) for name, x in scores.items()}
    nobody = np.full(len(evaluation.tasks), np.nan)
    for i, task in enumerate(evaluation.tasks):
        learned = [x[i] for name, x in means.items() if name != RANDOM]
        best = max(filter(math.isfinite, learned), default=np.nan)
        if best <= means.get(RANDOM, nobody)[i]:
            best = np.nan
        cells = [
            Cell(
                with_error(means[name][i], errors[name][i]) or evaluation.missing_score(name, i),
                name != RANDOM and bool(means[name][i] == best),
            )
            for name in scores
        ]
        yield task, tuple(cells)


def _aggregates_by_label(
    evaluation: Evaluation, shown: Sequence[Contender]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = [*(c.name for c in shown), *evaluation.discoveries]
    if (compared := evaluation.by_references) is not None:
        for label in statistics.AGGREGATES:
            yield from _with_intervals(label, [compared.aggregates[x][label] for x in names])
        pairs = evaluation.rules_and_baselines
        for baseline in dict.fromkeys(baseline for _, baseline in pairs):
            known = [(x, baseline) for x in names]
            found = [compared.improvement[x] if x in pairs else None for x in known]
            yield from _with_intervals(f"P(better than {baseline})", found)
    if above := evaluation.above_random:
        cells = {name: f"{len(tasks)}/{len(evaluation.tasks)}" for name, tasks in above.items()}
        yield "tasks above random", tuple("" if x == RANDOM else cells.get(x, "") for x in names)


def _with_intervals(
    label: str, estimates: Sequence[Estimate | None]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a row of statistics and, if they are known, one of the intervals over tasks."""
    yield label, tuple("" if x is None else x.text_over_seeds(2) for x in estimates)
    wide = tuple("" if x is None else x.text_over_tasks(2) for x in estimates)
    if any(wide):
        yield "  over tasks", wide


def with_error(mean: float, error: float, decimals: int = 3) -> str:
    """Return a mean and its standard error, if that is known; empty if the mean is not."""
    if math.isnan(mean):
        return ""
    plus_minus = "" if math.isnan(error) else f" ± {error:.{decimals}f}"
    return f"{mean:.{decimals}f}{plus_minus}"


def aggregate_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a table of a comparison's aggregates: a row for each contender."""
    num_tasks, areas = comparison.scale.counted.sum(), comparison.areas
    above_one = {k: f"{x} of {num_tasks}" for k, x in comparison.above_one.items()}
    return [
        {
            "contender": name,
            **{label: estimate.text(3) for label, estimate in aggregates.items()},
            "IQM of the curve's area": areas[name].text(3) if name in areas else "",
            "best on tasks": comparison.best.get(name, ""),
            "tasks above 1": above_one.get(name, ""),
        }
        for name, aggregates in comparison.aggregates.items()
    ]


def contender_row(contender: Contender, merged: MergedEvaluation) -> dict[str, Any]:
    """Return a contender's row in a table of runs: settings as used, compute, speed."""
    curves, config = merged.contender_curves[contender.name], merged.config
    runs = sum(name == contender.name for name, _, _ in merged.folders)
    steps = contender.num_steps(config)
    rate = runs * steps / curves.train_seconds if curves.train_seconds else 0.0
    return {
        "contender": contender.name,
        "kind": contender.kind,
        "runs": runs,
        "seeds": len(merged.seeds),
        "steps of a run": f"{steps:,}",
        "learning rate": learning_rate(contender),
        **_settings(contender),
        **compute(contender, steps),
        "training": str(datetime.timedelta(seconds=round(curves.train_seconds))),
        "steps/s": f"{rate:,.0f}",
        "devices": ", ".join(curves.devices),
    }


def compute(contender: Contender, num_steps: int) -> dict[str, str]:
    """Return the gradient steps of a run, and the parameters, of which tasks may differ."""
    per_step = contender.source.get(GRADIENT_STEPS)
    counts = dict.fromkeys(contender.source.get(PARAMETERS, ()))
    return {
        "gradient steps": "" if per_step is None else f"{per_step * num_steps:,.0f}",
        "parameters": " to ".join(f"{count:,}" for count in counts),
    }


def learning_rate(contender: Contender) -> str:
    """Return the learning rate by which a contender learned, and where it comes from.

    Of one that falls it is the first and, if it is known, the last.
    """
    tuned = contender.source.get(TUNED_SETTINGS)
    if isinstance(contender, RuleContender):
        agent = contender.agent
        shown = _falling(agent.learning_rate, agent.learning_rate * agent.end_learning_rate)
        is_tuned = "learning_rate" in (tuned or {})
        origin = "tuned" if is_tuned else contender.source.get("learning_rate_from")
        return shown + (f" ({origin})" if origin else "")
    assert isinstance(contender, AlgorithmContender)
    own = contender.settings
    shown, on_images = _of_algorithm(own), own.get("by_task", {}).get("images")
    if shown and tuned is not None:
        return f"{shown} (tuned)"
    return shown + (f" (on images {_of_algorithm(on_images)})" if on_images else "")


def _of_algorithm(settings: Mapping[str, Any]) -> str:
    """Return the learning rate in an algorithm's settings; empty if there is none."""
    settings = settings_of_agent(settings)
    first, end = settings.get("learning_rate"), settings.get("end_learning_rate", 1.0)
    if not isinstance(first, int | float):
        return ""
    last = 0.0 if settings.get("total_steps") or not isinstance(end, int | float) else first * end
    return _falling(first, last)


def _falling(first: float, last: float) -> str:
    return f"{first:g}" + f" to {last:g}" * (last != first)


def _settings(contender: Contender) -> dict[str, str]:
    tuned = contender.source.get(TUNED_SETTINGS)
    own = "" if tuned is None else ", ".join(f"{k} {x:g}" for k, x in tuned.items()) or "as set"
    if isinstance(contender, RuleContender):
        agent, network = contender.agent, contender.agent.network
        return {
            "batch": f"{agent.batch_size} x {agent.unroll_length}",
            "replayed": f"{agent.replay_ratio:.0%}",
            "settings": f"torso {network.torso}, model {network.model}, heads {network.head}",
            "tuned": own,
        }
    assert isinstance(contender, AlgorithmContender)
    settings = ", ".join(f"{name} {value}" for name, value in contender.settings.items())
    return {"batch": "", "replayed": "", "settings": settings, "tuned": own}


def format_number(value: float) -> str:
    """Return a number with four significant digits; empty if it is not finite."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def file_name(name: str) -> str:
    """Return a name with underscores for characters that not every file name may have."""
    return "".join(x if x.isalnum() or x in "-_." else "_" for x in name)


def number_of(what: str, count: int) -> str:
    """Return "one seed", or "5 seeds"."""
    return f"one {what}" if count == 1 else f"{count} {what}s"


def over_seeds(seeds: int) -> str:
    """Return what follows "mean" where means over seeds are shown, with errors if there are any."""
    return f"{' of' if seeds == 1 else ' ± standard error over'} {number_of('seed', seeds)}"


def interval_legend(tasks: int, confidence: float, mark: str, discoveries: bool) -> str:
    """Return what intervals are over.

    Args:
      tasks: number that the statistics are over.
      confidence: of the intervals.
      mark: by which a reader finds the intervals over tasks.
      discoveries: whether some contender is several discoveries.
    """
    nested = "seeds (of several discoveries, over discoveries)" if discoveries else "seeds"
    found = f"{confidence:.0%} intervals over {nested} with these tasks"
    if tasks < FEWEST_TASKS:
        return f"{found}; {number_of('task', tasks)}: too few for an interval over tasks"
    return f'{found}; after "{mark}": over tasks and seeds'

"""Tables of an evaluation for a terminal, a page and a rule's card, and the words in them."""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluation.contenders import (
    GRADIENT_STEPS,
    PARAMETERS,
    RANDOM,
    TUNED_SETTINGS,
    Contender,
    settings_of_agent,
)
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.over_tasks import FEWEST_TASKS


class Cell(NamedTuple):
    """A contender's score on a task: mean and standard error.

    It is best if no shown contender has a higher mean, and the random policy a lower one.
    """

    text: str
    is_best: bool


@dataclasses.dataclass(frozen=True)
class ScoreTable:
    """Scores of contenders on tasks. Names are not escaped.

    Attributes:
      title: defines the score.
      caption: defines the aggregates, or says why there is none; may be empty.
      contenders: names of the columns: contenders, then several discoveries together, whose errors
        are of the mean over discoveries.
      scores: a row for each task, with its name.
    """

    title: str
    caption: str
    contenders: tuple[str, ...]
    scores: tuple[tuple[str, tuple[Cell, ...]], ...]


def score_table(evaluation: Evaluation, shown: Sequence[Contender]) -> ScoreTable:
    """Return the scores of some contenders, a column each."""
    config, caption, compared = evaluation.config, [], evaluation.by_references
    if compared is not None:
        caption.append(
            "One seed: no intervals, and no means over tasks."
            if config.seeds == 1
            else f"{compared.scale.definition} In brackets: {intervals_of(compared)}."
        )
    if above := _tasks_above_random(evaluation):
        caption.append("Tasks above random: by mean score, without a significance test.")
        if compared is None:
            caption.append(f"{', '.join(f'{name} {number}' for name, number in above.items())}.")
    return ScoreTable(
        title=f"Score: {config.score_definition}.\nMean{over_seeds(config.seeds)}.",
        caption=" ".join(caption),
        contenders=(*(contender.name for contender in shown), *evaluation.discoveries),
        scores=tuple(_score_rows(evaluation, shown)),
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


def intervals_of(comparison: Comparison) -> str:
    """Return what a comparison's intervals are over; see `interval_legend`."""
    tasks, several = int(comparison.scale.counted.sum()), bool(comparison.discoveries)
    return interval_legend(tasks, comparison.config.confidence, several)


def _score_rows(
    evaluation: Evaluation, shown: Sequence[Contender]
) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    scores = {x.name: evaluation.scores[x.name] for x in shown}
    for several, names in evaluation.discoveries.items():  # Of which each rule is a run.
        own = [statistics.mean(evaluation.scores[name]) for name in names]
        scores[several] = np.stack(own, axis=-1)
    means = {name: statistics.mean(x) for name, x in scores.items()}
    errors = {name: statistics.standard_error(x) for name, x in scores.items()}
    for i, task in enumerate(evaluation.tasks):
        learned = [x[i] for name, x in means.items() if name != RANDOM]
        best = max(filter(math.isfinite, learned), default=np.nan)
        if RANDOM in means and best <= means[RANDOM][i]:
            best = np.nan
        cells = []
        for name in scores:
            is_infinite = name in evaluation.not_finite and evaluation.not_finite[name][i]
            missing = "not finite" if is_infinite else "no episode"
            text = with_error(means[name][i], errors[name][i]) or missing
            cells.append(Cell(text, name != RANDOM and bool(means[name][i] == best)))
        yield task, tuple(cells)


def _tasks_above_random(evaluation: Evaluation) -> dict[str, str]:
    """Return on how many tasks each contender that learns is above random; none with one seed."""
    above, number = evaluation.above_random, len(evaluation.tasks)
    return {name: f"{len(tasks)} of {number}" for name, tasks in above.items() if name != RANDOM}


def with_error(mean: float, error: float, decimals: int = 3) -> str:
    """Return a mean and its standard error, if that is known; empty if the mean is not."""
    if math.isnan(mean):
        return ""
    plus_minus = "" if math.isnan(error) else f" ± {error:.{decimals}f}"
    return f"{mean:.{decimals}f}{plus_minus}"


def aggregate_rows(evaluation: Evaluation, comparison: Comparison) -> list[dict[str, str]]:
    """Return a table of a comparison's aggregates: a row for each contender.

    Best is whose mean on a task is the highest, and above the random policy's.
    """
    num_tasks, areas = comparison.scale.counted.sum(), comparison.areas
    means = {name: statistics.mean(x) for name, x in comparison.scores.items()}
    above_one = {name: f"{np.sum(x > 1.0)} of {num_tasks}" for name, x in means.items()}
    chance = means.pop(RANDOM, -np.inf)
    highest = np.max([*means.values(), np.full(num_tasks, -np.inf)], axis=0)
    best = {name: str(np.sum((x >= highest) & (x > chance))) for name, x in means.items()}
    above_random, no_rules = _tasks_above_random(evaluation), {RANDOM, *evaluation.baselines}
    baselines = [name for name in evaluation.baselines if name in comparison.scores]
    return [
        {
            "contender": name,
            **{label: estimate.text(2) for label, estimate in aggregates.items()},
            "IQM of the curve's area": areas[name].text(2) if name in areas else "",
            **{
                f"P(better than {x})": ""
                if name in no_rules
                else comparison.improvement[name, x].text(2)
                for x in baselines
            },
            "best on tasks": best.get(name, ""),
            "tasks above 1": above_one.get(name, ""),
            "tasks above random": above_random.get(name, ""),
        }
        for name, aggregates in comparison.aggregates.items()
    ]


def contender_rows(merged: Evaluation) -> list[dict[str, Any]]:
    """Return a row for each contender in a table of runs: settings as used, compute, speed."""
    rows = []
    for contender in merged.contenders:
        curves = merged.contender_curves[contender.name]
        runs = merged.num_runs(contender.name)
        steps = contender.num_steps(merged.config)
        rate = runs * steps / curves.train_seconds if curves.train_seconds else 0.0
        row = {
            "contender": contender.name,
            "kind": contender.kind,
            "runs": runs,
            "seeds": len(merged.seeds),
            "steps of a run": f"{steps:,}",
            **settings_as_used(contender),
            **compute(contender, steps),
            "training": str(datetime.timedelta(seconds=round(curves.train_seconds))),
            "steps/s": f"{rate:,.0f}",
            "devices": ", ".join(curves.devices),
        }
        rows.append(row)
    return rows


def settings_as_used(contender: Contender) -> dict[str, str]:
    """Return the settings by which a contender learned, and where they come from."""
    tuned = contender.source.get(TUNED_SETTINGS)
    rate = settings_of_agent(contender.settings).get("learning_rate")
    is_tuned = "learning_rate" in (tuned or {})
    origin = "tuned" if is_tuned else contender.source.get("learning_rate_from")
    shown = f"{rate:g}" if isinstance(rate, int | float) else ""
    own = "" if tuned is None else ", ".join(f"{k} {x:g}" for k, x in tuned.items()) or "as set"
    return {
        "learning rate": shown + (f" ({origin})" if shown and origin else ""),
        "settings": ", ".join(f"{name} {value}" for name, value in contender.settings.items()),
        "tuned": own,
    }


def compute(contender: Contender, num_steps: int) -> dict[str, str]:
    """Return the gradient steps of a run, and the parameters, of which tasks may differ."""
    per_step = contender.source.get(GRADIENT_STEPS)
    counts = dict.fromkeys(contender.source.get(PARAMETERS, ()))
    return {
        "gradient steps": "" if per_step is None else f"{per_step * num_steps:,.0f}",
        "parameters": " to ".join(f"{count:,}" for count in counts),
    }


def source_rows(merged: Evaluation) -> list[dict[str, Any]]:
    """Return a row for each folder of an evaluation."""
    known = "code_version jax_version machine processors started".split()
    return [
        {
            "folder": source.folder,
            **{name.removesuffix("_version"): source.provenance.get(name, "") for name in known},
            "first seed": source.config.seed,
        }
        for source in merged.sources
    ]


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


def interval_legend(tasks: int, confidence: float, discoveries: bool) -> str:
    """Return what intervals are over, of statistics over a number of tasks.

    `discoveries` says whether some contender is several.
    """
    nested = "seeds (of several discoveries, over discoveries)" if discoveries else "seeds"
    found = f"{confidence:.0%} intervals over {nested} with these tasks"
    if tasks < FEWEST_TASKS:
        return f"{found}; {number_of('task', tasks)}: too few for an interval over tasks"
    return f'{found}; after "tasks": over tasks and seeds'

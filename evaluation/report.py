"""What an evaluation writes.

    results.json        every number: curves and scores of each run, settings, provenance
    table.csv           scores of every contender on every task, and the means over tasks
    episode_means.csv   means over the scored episodes: length, and what suites tell of an episode
    published.csv       our scores and those of the papers, if there are any, with their budgets
    curves.png          learning curves, one panel per task
    aggregate.png       the mean normalised score along the budget

and, on the terminal, the table of the contenders that matter.
"""

import csv
import dataclasses
import io
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.table import Table
from rich.text import Text

from common.atomic import write_atomically
from common.terminal import console, printable
from evaluation import plots, statistics
from evaluation.config import EvaluationConfig
from evaluation.contenders import AGENT, RANDOM, Contender
from evaluation.published_scores import PublishedScore, published
from evaluation.results import History
from evaluation.scores import Summary, normalized_curves
from evaluation.statistics import Estimate


def write(
    folder: pathlib.Path,
    summary: Summary,
    contenders: Sequence[Contender],
    histories: Mapping[str, History],
    config: EvaluationConfig,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> None:
    """Writes and prints everything.

    Args:
      folder: to write to.
      summary: of the histories.
      contenders: all of them.
      histories: theirs, by name.
      config: of the evaluation.
      descriptions: of each contender, by name; JSON values.
      provenance: of the results; JSON values.

    Raises:
      OSError: if a file cannot be written.
    """
    shown = shown_contenders(summary, contenders)
    results = to_json(summary, histories, config, descriptions, provenance)
    files = {
        "results.json": json.dumps(results, allow_nan=False, indent=1),
        "table.csv": to_csv(summary, config),
        "episode_means.csv": episode_means_to_csv(summary, histories),
        "curves.png": plots.learning_curves(summary, shown, histories, config),
    }
    scores_of_papers = {task: published(task) for task in summary.tasks if published(task)}
    if scores_of_papers:
        files["published.csv"] = published_to_csv(scores_of_papers, summary, config)
    if summary.aggregate:
        files["aggregate.png"] = plots.aggregate(summary, shown, histories, config)
    for name, content in files.items():
        write_atomically(folder / name, content)
    print_table(summary, shown, config)
    if scores_of_papers:
        number = sum(map(len, scores_of_papers.values()))
        print(
            f"{number} scores of papers on these tasks are in published.csv, with their budgets and"
            " protocols, which differ from ours and from one another."
        )
    by_reason: dict[str, list[str]] = {}
    for task, reason in summary.left_out.items():
        by_reason.setdefault(printable(reason), []).append(printable(task))
    for reason, tasks in by_reason.items():
        print(f"Left out of the means over tasks: {', '.join(tasks)}, because {reason}.")
    for name, history in histories.items():
        if not history.is_finite.all():
            number = np.sum(~history.is_finite)
            print(f"{printable(name)}: {number} runs ended with non-finite numbers.")
    print("Written: " + ", ".join(printable(folder / name) for name in files))


def shown_contenders(summary: Summary, contenders: Sequence[Contender]) -> list[Contender]:
    """The rules, other agents, each baseline at its tuned learning rate, the random policy."""
    order = {"discovered": 0, "random": 2}
    shown = [
        c for c in contenders if c.kind in order or summary.tuned.get(c.kind, c.name) == c.name
    ]
    return sorted(shown, key=lambda c: order.get(c.kind, 1))


def to_json(
    summary: Summary,
    histories: Mapping[str, History],
    config: EvaluationConfig,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Every number. Missing ones are null; nested lists are indexed as their names say.

    A learning rate that no agent used is null, too: that of the settings where each rule has its
    own, and that of a contender that does not learn by one.
    """
    curve_updates, curves = [], {}
    if summary.aggregate:
        curve_updates, curves = normalized_curves(summary, histories, config)
    contenders = {}
    for name, description in descriptions.items():
        aggregate = summary.aggregate.get(name)
        contenders[name] = _described(description) | {
            "mean_normalized_score": aggregate._asdict() if aggregate else None,
            "tasks_above_random": summary.above_random.get(name),
            "normalized_curve": dict(zip(("mean", "low", "high"), curves[name], strict=True))
            if curves
            else None,
            "curve_environment_steps": histories[name].updates * config.agent.steps_per_update,
            "tasks": _tasks_to_json(summary, summary.scores[name], histories[name]),
        }
    return _plain(
        {
            "score": config.score_definition,
            "normalized_score": "(score - random policy's) / (best baseline's - random policy's),"
            " by mean scores on each task",
            "config": _settings(config, descriptions),
            "seeds": config.all_seeds,
            "environment_steps_per_run": config.num_updates * config.agent.steps_per_update,
            "provenance": provenance,
            "tasks": summary.tasks,
            "best_baseline_score": dict(zip(summary.tasks, summary.baseline, strict=True)),
            "left_out_of_means": summary.left_out,
            "tuned": summary.tuned,
            "differences_of_mean_normalized_score": [
                {"rule": rule, "baseline": summary.tuned[kind], **difference._asdict()}
                for (rule, kind), difference in summary.differences.items()
            ],
            "normalized_curve_environment_steps": [
                int(n) * config.agent.steps_per_update for n in curve_updates
            ],
            "contenders": contenders,
        }
    )


def _settings(
    config: EvaluationConfig, descriptions: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Of an evaluation, with `agent.learning_rate` only if a rule learned by it."""
    settings = dataclasses.asdict(config)
    origins = {x["source"].get("learning_rate_from") for x in descriptions.values()}
    if "config.agent.learning_rate" not in origins:
        settings["agent"]["learning_rate"] = None
    return settings


def _described(description: dict[str, Any]) -> dict[str, Any]:
    """A contender, with `agent.learning_rate` only if it learns by it."""
    if description["kind"] not in (RANDOM, AGENT):
        return description
    return description | {"agent": description["agent"] | {"learning_rate": None}}


def _tasks_to_json(
    summary: Summary, scores: Float[np.ndarray, "tasks seeds"], history: History
) -> dict[str, Any]:
    columns = {
        "score_mean": statistics.mean(scores),
        "score_standard_error": statistics.standard_error(scores),
        "score_by_seed": scores,
        "is_finite_by_seed": history.is_finite,
        "curve_by_seed_and_point": history.curve.mean_return,
        "episodes_by_seed_and_point": history.curve.count,
        **{f"{name}_by_seed": values for name, values in history.results.items()},
    }
    return {
        task: {name: values[i] for name, values in columns.items()}
        for i, task in enumerate(summary.tasks)
    }


def to_csv(summary: Summary, config: EvaluationConfig) -> str:
    """A row per task and per mean over tasks; two columns per contender."""
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    names = list(summary.scores)
    rows.writerow(
        [f"task (score: {config.score_definition}; {config.seeds} seeds)"]
        + [column for name in names for column in (name, f"{name} standard error")]
    )
    means = {name: statistics.mean(x) for name, x in summary.scores.items()}
    errors = {name: statistics.standard_error(x) for name, x in summary.scores.items()}
    for i, task in enumerate(summary.tasks):
        cells = [_number(x) for name in names for x in (means[name][i], errors[name][i])]
        rows.writerow([task, *cells])

    def add(label, values: Mapping[str, Any]):
        rows.writerow([label, *(x for name in names for x in (values.get(name, ""), ""))])

    for part, label in _interval_labels(config):
        estimates = {n: _number(getattr(e, part)) for n, e in summary.aggregate.items()}
        add(f"normalised score, mean over {summary.counted.sum()} tasks: {label}", estimates)
    for kind, contender in summary.tuned.items():
        for part, label in _interval_labels(config):
            values = {
                rule: _number(getattr(estimate, part))
                for (rule, other), estimate in summary.differences.items()
                if other == kind
            }
            add(f"the same minus {contender}'s: {label}", values)
    add(
        f"tasks above random, of {len(summary.tasks)}",
        {name: len(above) for name, above in summary.above_random.items()},
    )
    return buffer.getvalue()


def episode_means_to_csv(summary: Summary, histories: Mapping[str, History]) -> str:
    """A row per task, contender and thing that is told of its scored episodes."""
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(["task", "contender", "result", "mean over episodes", "standard error", "seeds"])
    for i, task in enumerate(summary.tasks):
        for contender, history in histories.items():
            for name, values in history.results.items():
                told = values[i][np.isfinite(values[i])]
                if told.size:
                    mean = statistics.mean(told[None])[0]
                    error = statistics.standard_error(told[None])[0]
                    numbers = [_number(mean), _number(error), told.size]
                    rows.writerow([task, contender, name, *numbers])
    return buffer.getvalue()


def published_to_csv(
    scores_of_papers: Mapping[str, Sequence[PublishedScore]],
    summary: Summary,
    config: EvaluationConfig,
) -> str:
    """A row per task and agent, ours and the papers', each with its budget."""
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(
        ["task", "agent", "score", "standard error", "seeds", "budget", "unit", "source", "note"]
    )
    budget = config.num_updates * config.agent.steps_per_update
    for i, task in enumerate(summary.tasks):
        for name, scores in summary.scores.items():
            mean, error = statistics.mean(scores)[i], statistics.standard_error(scores)[i]
            numbers = [_number(mean), _number(error), config.seeds, budget, "steps"]
            rows.writerow([task, name, *numbers, "this run", config.score_definition])
        for score in scores_of_papers.get(task, ()):
            budget_of_paper = "" if score.budget is None else score.budget
            numbers = [_number(score.score), "", "", budget_of_paper, score.budget_unit]
            rows.writerow([task, score.agent, *numbers, score.source, _note(score, task)])
    return buffer.getvalue()


def _note(score: PublishedScore, task: str) -> str:
    elsewhere = f"measured on {score.task}" if score.task != task else ""
    return "; ".join(filter(None, (elsewhere, score.note)))


def _interval_labels(config: EvaluationConfig) -> list[tuple[str, str]]:
    percent = f"{config.confidence:.0%} interval"
    return [("value", "mean"), ("low", f"{percent}, low"), ("high", f"{percent}, high")]


def print_table(summary: Summary, shown: Sequence[Contender], config: EvaluationConfig) -> None:
    """The table for a terminal."""
    table = Table(
        title=f"Score: {config.score_definition}.\n"
        f"Mean ± standard error over {config.seeds} seeds.",
        caption=_caption(summary, config),
    )
    table.add_column("task", no_wrap=True)
    for contender in shown:
        table.add_column(printable(contender.name), justify="right")
    means = {c.name: statistics.mean(summary.scores[c.name]) for c in shown}
    errors = {c.name: statistics.standard_error(summary.scores[c.name]) for c in shown}
    for i, task in enumerate(summary.tasks):
        best = max((m[i] for m in means.values() if math.isfinite(m[i])), default=None)
        cells = []
        for c in shown:
            cell = _with_error(means[c.name][i], errors[c.name][i])
            cells.append(Text(cell, "bold" if means[c.name][i] == best else ""))
        table.add_row(printable(task), *cells)
    table.add_section()
    if summary.aggregate:
        table.add_row("normalised", *(_with_interval(summary.aggregate.get(c.name)) for c in shown))
    for kind in summary.tuned:
        if summary.differences:
            cells = (_with_interval(summary.differences.get((c.name, kind))) for c in shown)
            table.add_row(f"minus {kind}", *cells)
    if summary.above_random:
        cells = (
            "" if c.kind == RANDOM else f"{len(summary.above_random[c.name])}/{len(summary.tasks)}"
            for c in shown
        )
        table.add_row("tasks above random", *cells)
    console(log_width=44 + 26 * len(shown)).print(table)


def _caption(summary: Summary, config: EvaluationConfig) -> str | None:
    """What normalised scores are, where there are some."""
    if not summary.aggregate:
        return None
    return (
        "Normalised: 0 is the random policy, 1 the best baseline on each task; mean over"
        f" {summary.counted.sum()} of {len(summary.tasks)} tasks,"
        f" [{config.confidence:.0%} interval]."
    )


def _with_error(mean: float, error: float) -> str:
    if math.isnan(mean):
        return "no episode"
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def _with_interval(estimate: Estimate | None) -> str:
    return "" if estimate is None else estimate.text(2)


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _plain(value: Any) -> Any:
    """JSON values; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""The files that an evaluation writes when its runs are finished, and the CSV tables of a report.

results.json        the main result, and every number: curves and scores of each run, settings,
                    provenance
scores.csv, episode_means.csv, curves.csv, aggregates.csv, comparisons.csv, published.csv
                    the same as tables, as far as there are any
curves.png          learning curves, one panel per task
aggregate.png       the mean normalised score along the budget; not with one seed

Each plot is also an SVG file.

The tables are long and tidy, one fact a row, only numbers in number columns; unknown numbers are
empty. `templates/files.html` describes the columns; those of `launch.report` have the column
`evaluation` before the others. In pandas the scores of `launch.evaluate`, task by contender:

    scores = pd.read_csv("runs/mine/scores.csv")
    returns = scores[scores["scale"] == "return"]
    returns.pivot_table("score", index="task", columns="contender")
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from disco_common import json_lines
from disco_common.files import write_atomically
from evaluation.published import METRICS, RETURN, published_scores
from evaluation.report import plots
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.tables import ScoreTable, remarks, score_table
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.over_tasks import Estimate

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WrittenEvaluation:
    """A finished evaluation, its files, and remarks for the user.

    Attributes:
      evaluation: its runs.
      result: the main result.
      table: scores of all contenders.
      remarks: sentences on what the table leaves out.
      files: that were written.
    """

    evaluation: Evaluation
    result: MainResult
    table: ScoreTable
    remarks: tuple[str, ...]
    files: tuple[pathlib.Path, ...]


def write_evaluation(
    folder: pathlib.Path,
    evaluation: Evaluation,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> WrittenEvaluation:
    """Write all files.

    Args:
      folder: to write to.
      evaluation: its runs.
      descriptions: of each contender, by name; JSON values.
      provenance: of the results; JSON values.

    Raises:
      OSError: if a file cannot be written.
    """
    shown, result = evaluation.ordered, main_result(evaluation)
    files: dict[str, str | bytes] = {
        "results.json": json_lines.dumps(
            _to_json(evaluation, result, descriptions, provenance), indent=1
        ),
        **csv_files({"": evaluation}),
        **plots.learning_curves(evaluation, shown).files("curves"),
    }
    if evaluation.by_references is not None and evaluation.config.seeds > 1:
        drawn = plots.mean_curves(evaluation.by_references, shown)
        files |= drawn.files("aggregate")
    for name, content in files.items():
        write_atomically(folder / name, content)
    return WrittenEvaluation(
        evaluation=evaluation,
        result=result,
        table=score_table(evaluation, shown),
        remarks=(
            *_remark_on_papers(sum(len(published_scores(task)) for task in evaluation.tasks)),
            *remarks(evaluation),
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
    evaluation: Evaluation,
    result: MainResult,
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Return the contents of `results.json`.

    Missing numbers are null. Nested lists are indexed in the order that their names say. A learning
    rate that no agent used is null: those of the settings if every rule, or every baseline, has its
    own, and that of a contender that has none. A contender's `start_seconds` and `train_seconds`
    are sums of wall times over its jobs (`evaluation.results.LearningCurves`); `start_seconds` of
    runs in host environments is 0.
    """
    config, compared = evaluation.config, evaluation.by_references
    curve_steps, curves = [], {}
    if compared is not None:
        curve_steps, curves = compared.curves(statistics.mean_over_tasks)
    aggregates = {} if compared is None else compared.aggregates
    contenders = {}
    for name, description in descriptions.items():
        ends = zip(("mean", "low", "high"), curves.get(name, ()), strict=bool(curves))
        steps = evaluation.contender_curves[name].updates * config.agent.steps_per_update
        contenders[name] = {
            **description,
            "normalized_score": _by_label(aggregates, name),
            "tasks_above_random": evaluation.above_random.get(name),
            "normalized_curve": dict(ends) if curves else None,
            "curve_environment_steps": steps,
            "tasks": _tasks_to_json(evaluation, name),
        }
    return {
        "result": dataclasses.asdict(result),
        "score": config.score_definition,
        "normalized_score": "(score - random policy's) / (reference - random policy's), both of"
        " which are constants (references)",
        "config": _settings(evaluation, descriptions),
        "seeds": config.all_seeds,
        "environment_steps_per_run": config.num_steps,
        "provenance": provenance,
        "tasks": evaluation.tasks,
        "best_baseline_score": dict(zip(evaluation.tasks, evaluation.best_baseline, strict=True)),
        "references": {name: dataclasses.asdict(x) for name, x in evaluation.references.items()},
        "discoveries": {
            several: {"rules": names, "normalized_score": _by_label(aggregates, several)}
            for several, names in evaluation.discoveries.items()
        },
        "left_out_of_means": evaluation.left_out,
        "probability_of_improvement": _pairs(evaluation, "improvement"),
        "differences_of_mean_normalized_score": _pairs(evaluation, "differences"),
        "normalized_curve_environment_steps": list(map(int, curve_steps)),
        "contenders": contenders,
    }


def _settings(evaluation: Evaluation, descriptions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings, without the learning rates by which nobody learned."""
    settings = dataclasses.asdict(evaluation.config)
    origins = {x["source"].get("learning_rate_from") for x in descriptions.values()}
    if "config.agent.learning_rate" not in origins:
        settings["agent"]["learning_rate"] = None
    return settings


def _pairs(evaluation: Evaluation, statistic: str) -> list[dict[str, Any]]:
    """Return a statistic of each pair of a rule and a baseline, a property of the comparison."""
    if (compared := evaluation.by_references) is None:
        return []
    found = getattr(compared, statistic)
    return [
        {"rule": rule, "baseline": baseline, **found[rule, baseline]._asdict()}
        for rule, baseline in evaluation.rules_and_baselines
    ]


def _by_label(aggregates: Mapping[str, Mapping[str, Estimate]], name: str) -> dict[str, Any]:
    return {label: x._asdict() for label, x in aggregates.get(name, {}).items()}


def _tasks_to_json(evaluation: Evaluation, name: str) -> dict[str, Any]:
    own, scores = evaluation.contender_curves[name], evaluation.scores[name]
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
        for i, task in enumerate(evaluation.tasks)
    }


def csv_files(evaluations: Mapping[str, Evaluation]) -> dict[str, str]:
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
        "published.csv": published_rows,
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


def _scores(one: Evaluation) -> Iterator[Row]:
    steps = one.config.num_steps
    for run, i, score in _by_run(one, one.scores):
        for scale, value in _on_scales(one, score, i):
            yield {**run, "environment_steps": steps, "scale": scale, "score": _number(value)}


def _by_run(one: Evaluation, values: Mapping[str, np.ndarray]) -> Iterator[tuple[Row, int, float]]:
    """Yield the run, its task's index and the value of each number of `[tasks, seeds]`."""
    for contender, by_task in values.items():
        for (i, task), (j, seed) in itertools.product(enumerate(one.tasks), enumerate(one.seeds)):
            run = {"task": task, "contender": contender, "seed": seed}
            yield run, i, float(by_task[i, j])


def _on_scales(one: Evaluation, score: float, task: int) -> Iterator[tuple[str, float]]:
    """Yield the name of each scale that a task has, and a return on it; nothing for no return."""
    if math.isfinite(score):
        yield RETURN, score
        for scale in one.scales:
            if scale.counted[task]:
                yield scale.name, scale.normalize_one(score, task)


def _episode_means(one: Evaluation) -> Iterator[Row]:
    for contender, curves in one.contender_curves.items():
        for name, values in curves.results.items():
            for run, _, value in _by_run(one, {contender: values}):
                if math.isfinite(value):
                    yield {**run, "result": name, "mean": _number(value)}


def _curves(one: Evaluation) -> Iterator[Row]:
    for contender, curves in one.contender_curves.items():
        steps = curves.updates * one.config.agent.steps_per_update
        counts, means = curves.curve.count, curves.curve.mean_return
        for i, j, point in np.argwhere(counts > 0):
            yield {
                "task": one.tasks[i],
                "contender": contender,
                "seed": one.seeds[j],
                "environment_steps": int(steps[point]),
                "episodes": int(counts[i, j, point]),
                "mean_return": _number(float(means[i, j, point])),
            }


def _aggregates(one: Evaluation) -> Iterator[Row]:
    for found in one.comparisons:
        for contender, aggregates in found.aggregates.items():
            for label, estimate in aggregates.items():
                yield _estimated(found, {"contender": contender, "aggregate": label}, estimate)


def _comparisons(one: Evaluation) -> Iterator[Row]:
    for found in one.comparisons:
        for statistic, pairs in (
            ("probability of improvement", found.improvement),
            ("difference of means", found.differences),
        ):
            for (contender, other), estimate in pairs.items():
                who = {"contender": contender, "other": other, "statistic": statistic}
                yield _estimated(found, who, estimate)


def _estimated(comparison: Comparison, who: Mapping[str, str], estimate: Estimate) -> Row:
    return {
        "scale": comparison.scale.name,
        "tasks": int(comparison.scale.counted.sum()),
        **who,
        **{part: _number(x) for part, x in estimate._asdict().items()},
        "confidence": comparison.config.confidence,
    }


def published_rows(one: Evaluation) -> Iterator[Row]:
    """Yield the rows of `published.csv`."""
    for (i, task), metric in itertools.product(enumerate(one.tasks), METRICS):
        for score in published_scores(task, metric):
            on_scales = [(metric, score.score)]
            if metric == RETURN:
                on_scales = [*_on_scales(one, score.score, i)]
            for scale, value in on_scales:
                yield {
                    "task": task,
                    "agent": score.agent,
                    "metric": metric,
                    "scale": scale,
                    "score": _number(value),
                    "plus_minus": score.plus_minus if scale == metric else None,
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

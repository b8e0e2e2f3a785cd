"""The files that an evaluation writes when its runs are finished, and the CSV tables of a report.

results.json        the main result, each contender's settings and times, provenance, and the mean
                    normalised score along the budget
scores.csv, episode_means.csv, curves.csv, aggregates.csv, comparisons.csv, published.csv,
bsuite.csv          all other numbers as tables, as far as there are any
curves.png, .svg    learning curves, one panel per task
aggregate.png, .svg the IQM of normalised scores along the budget; not with one seed

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
from evaluation.published import published_scores
from evaluation.report import plots
from evaluation.report.main_result import main_result
from evaluation.report.paper_tables import on_scales, published_rows, rounded
from evaluation.report.tables import ScoreTable, remarks, score_table
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.over_tasks import Estimate
from evaluation.scoring.suite_scores import BsuiteScores, score_bsuite

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WrittenEvaluation:
    """A finished evaluation, its main result, the scores of all contenders, and its files.

    The remarks say what the table leaves out.
    """

    evaluation: Evaluation
    result: tuple[str, ...]
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
      folder: to write to; it has the runs, too.
      evaluation: its runs, with their folders.
      descriptions: of each contender, by name; JSON values.
      provenance: of the results; JSON values.

    Raises:
      OSError: if a file cannot be written.
      ValueError: if episodes that bsuite would score are damaged.
    """
    shown, result = evaluation.ordered, main_result(evaluation)
    bsuite, errors = score_bsuite(evaluation)
    results = _to_json(evaluation, result, descriptions, provenance)
    files: dict[str, str | bytes] = {
        "results.json": json_lines.dumps(results, indent=1),
        **csv_files({"": evaluation}, {"": bsuite}),
        **plots.learning_curves(evaluation, shown).files("curves"),
    }
    if evaluation.by_references is not None and evaluation.config.seeds > 1:
        files |= plots.efficiency(evaluation.by_references, shown).files("aggregate")
    for name, content in files.items():
        write_atomically(folder / name, content)
    for error in errors.values():
        raise error
    return WrittenEvaluation(
        evaluation=evaluation,
        result=result,
        table=score_table(evaluation, shown),
        remarks=(*_remarks(evaluation, "bsuite.csv" in files), *remarks(evaluation)),
        files=tuple(folder / name for name in files),
    )


def _remarks(evaluation: Evaluation, has_bsuite: bool) -> Iterator[str]:
    """Yield sentences on the scores of papers and on bsuite's."""
    if number := sum(len(published_scores(task)) for task in evaluation.tasks):
        yield (
            f"{number} scores that papers report on these tasks are in published.csv, with their"
            " budgets and protocols, which differ from ours and from one another."
        )
    others = [x.name for x in evaluation.contenders if x.num_environments != 1]
    if others and any(task.startswith("bsuite/") for task in evaluation.tasks):
        yield f"bsuite's scores are of runs in one environment: {', '.join(others)} have none."
    if has_bsuite:
        yield "bsuite's own scores, by experiment and tag, are in bsuite.csv."


def _to_json(
    evaluation: Evaluation,
    result: tuple[str, ...],
    descriptions: Mapping[str, dict[str, Any]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Return the contents of `results.json`.

    A number that a table or `references.json` has is not repeated. Missing numbers are null. A
    contender's `start_seconds` and `train_seconds` are sums of wall times over its jobs
    (`evaluation.results.LearningCurves`); `start_seconds` of runs in host environments is 0.
    """
    compared, curve_steps, curves = evaluation.by_references, [], {}
    if compared is not None:
        curve_steps, curves = compared.curves(statistics.mean_over_tasks)
    contenders = {}
    for name, description in descriptions.items():
        ends = zip(("mean", "low", "high"), curves.get(name, ()), strict=bool(curves))
        contenders[name] = {
            **description,
            "tasks_above_random": evaluation.above_random.get(name),
            "normalized_curve": dict(ends) if curves else None,
        }
    return {
        "result": {"sentences": result},
        "score": evaluation.config.score_definition,
        "seeds": evaluation.config.all_seeds,
        "environment_steps_per_run": evaluation.config.num_steps,
        "provenance": provenance,
        "tasks": evaluation.tasks,
        "discoveries": evaluation.discoveries,
        "left_out_of_means": evaluation.left_out,
        "normalized_curve_environment_steps": list(map(int, curve_steps)),
        "contenders": contenders,
    }


def csv_files(
    evaluations: Mapping[str, Evaluation],
    bsuite: Mapping[str, Mapping[str, Sequence[BsuiteScores]]],
) -> dict[str, str]:
    """Return the contents of each table that has rows, by file name.

    Args:
      evaluations: by name; the column `evaluation` is left out if the only one has an empty name.
      bsuite: by evaluation and contender, the scores of its seeds.
    """
    found: dict[str, list[Row]] = {}
    for name, one in evaluations.items():
        rows_by_file = {
            "scores.csv": _scores(one),
            "episode_means.csv": _episode_means(one),
            "curves.csv": _curves(one),
            "aggregates.csv": _aggregates(one),
            "comparisons.csv": _comparisons(one),
            "published.csv": published_rows(one),
            "bsuite.csv": _bsuite(bsuite[name]),
        }
        own = {"evaluation": name} if name else {}
        for file, rows in rows_by_file.items():
            found.setdefault(file, []).extend(own | row for row in rows)
    return {file: to_csv(rows) for file, rows in found.items() if rows}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table, with the rows' keys as its header."""
    # As objects: whole numbers stay whole beside unknown ones.
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def _scores(one: Evaluation) -> Iterator[Row]:
    steps = one.config.num_steps
    for contender, scores in one.scores.items():
        for run, i, score in _by_run(one, contender, scores):
            for scale, value in on_scales(one, score, i).items():
                yield {**run, "environment_steps": steps, "scale": scale, "score": rounded(value)}


def _by_run(
    one: Evaluation, contender: str, values: np.ndarray
) -> Iterator[tuple[Row, int, float]]:
    """Yield the run, its task's index and the value of each number of `[tasks, seeds]`."""
    for (i, task), (j, seed) in itertools.product(enumerate(one.tasks), enumerate(one.seeds)):
        yield {"task": task, "contender": contender, "seed": seed}, i, float(values[i, j])


def _episode_means(one: Evaluation) -> Iterator[Row]:
    for contender, curves in one.contender_curves.items():
        for name, values in curves.results.items():
            for run, _, value in _by_run(one, contender, values):
                if math.isfinite(value):
                    yield {**run, "result": name, "mean": rounded(value)}


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
                "mean_return": rounded(float(means[i, j, point])),
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
        **{part: rounded(x) for part, x in estimate._asdict().items()},
        "confidence": comparison.config.confidence,
    }


def _bsuite(scores: Mapping[str, Sequence[BsuiteScores]]) -> Iterator[Row]:
    for contender, seeds in scores.items():
        for kind, field in (("experiment", "experiments"), ("tag", "tags")):
            for name in getattr(seeds[0], field):
                values = np.array([getattr(one, field)[name] for one in seeds])
                yield {
                    "contender": contender,
                    "of": kind,
                    "name": name,
                    "score": rounded(float(statistics.mean(values))),
                    "standard error": rounded(float(statistics.standard_error(values))),
                    "seeds": len(seeds),
                    "unfinished": sum(name in one.unfinished for one in seeds),
                }

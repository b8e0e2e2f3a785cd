"""The CSV files of a report: scores, aggregates, probabilities of improvement, curves."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from evaluation.report.evaluation_report import EvaluationReport
from evaluation.report.score_rows import format_number
from evaluation.scoring.statistics import Estimate


def csv_files(reports: Sequence[EvaluationReport]) -> dict[str, str]:
    """Return the contents of each file that has at least one row, by file name."""
    tables = {
        "scores.csv": _score_rows,
        "aggregates.csv": _aggregate_rows,
        "improvement.csv": _improvement_rows,
        "curves.csv": _curve_rows,
    }
    rows = {name: [x for report in reports for x in make(report)] for name, make in tables.items()}
    return {name: to_csv(found) for name, found in rows.items() if found}


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table, with the rows' keys as its header."""
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _score_rows(report: EvaluationReport) -> Iterator[dict[str, Any]]:
    for row in report.scores:
        yield {"evaluation": report.name, **row}


def _aggregate_rows(report: EvaluationReport) -> Iterator[dict[str, Any]]:
    for comparison in report.comparisons:
        for contender, aggregates in comparison.aggregates.items():
            for label, estimate in aggregates.items():
                yield {
                    "evaluation": report.name,
                    "scale": comparison.scale.name,
                    "tasks": int(comparison.scale.counted.sum()),
                    "contender": contender,
                    "aggregate": label,
                    **_numbers(estimate),
                }


def _improvement_rows(report: EvaluationReport) -> Iterator[dict[str, Any]]:
    for comparison in report.comparisons:
        for (contender, other), estimate in comparison.improvement.items():
            yield {
                "evaluation": report.name,
                "scale": comparison.scale.name,
                "contender": contender,
                "other": other,
                **_numbers(estimate),
            }


def _curve_rows(report: EvaluationReport) -> Iterator[dict[str, Any]]:
    for task, (steps, curves) in report.curves.items():
        for contender, curve in curves.items():
            for step, mean, _, high in zip(steps, *curve, strict=True):
                yield {
                    "evaluation": report.name,
                    "task": task,
                    "contender": contender,
                    "environment steps": int(step),
                    "mean return": format_number(mean),
                    "standard error": format_number(high - mean),
                }


def _numbers(estimate: Estimate) -> dict[str, str]:
    return {part: format_number(x) for part, x in estimate._asdict().items()}

"""The sections of a report page: an evaluation, a discovery, the papers' aggregates."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from evaluation.contenders import Contender
from evaluation.published.aggregates import Reproduction
from evaluation.published.scores import BSUITE_SCORE, CRAFTER_SCORE, published_scores
from evaluation.report import plotly_figures, probe_scores
from evaluation.report.agent_metrics import AgentMetrics
from evaluation.report.contender_table import contender_row
from evaluation.report.csv_tables import TABLES
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.evaluation_report import EvaluationReport
from evaluation.report.manifest import StoredEvaluation
from evaluation.report.paper_scores import protocols
from evaluation.report.probe_scores import Probe
from evaluation.report.score_table import non_finite_runs
from evaluation.report.task_table import TaskTable, task_table
from evaluation.scoring import statistics
from evaluation.scoring.comparison import Comparison
from evaluation.scoring.crafter import CrafterScores

Row = Mapping[str, Any]
"""A row of a table. The keys of the first row are the table's header."""


@dataclasses.dataclass(frozen=True)
class ComparisonPlots:
    """A comparison on a scale, with its table and plots.

    Attributes:
      comparison: the numbers.
      rows: a table of the aggregates; empty, as the plots are absent, if no contender has any.
      aggregates: a plot for each aggregate.
      curves, profiles: of all contenders.
      improvement: of all pairs; None if there is no pair.
    """

    comparison: Comparison
    rows: Sequence[Row]
    aggregates: Sequence[go.Figure]
    curves: go.Figure | None
    profiles: go.Figure | None
    improvement: go.Figure | None


@dataclasses.dataclass(frozen=True)
class AchievementsPart:
    """Crafter's achievements on a task.

    Attributes:
      task: name.
      rows: a table of Crafter scores, ours and the papers'.
      success_rates: a bar for each achievement and contender.
    """

    task: str
    rows: Sequence[Row]
    success_rates: go.Figure


@dataclasses.dataclass(frozen=True)
class BsuitePart:
    """bsuite's scores.

    Attributes:
      errors: by contender and seed, why the seed is left out.
      num_unfinished: experiments with fewer episodes or settings than bsuite asks for.
      rows: a table of experiments; empty, as the plot is absent, if there is no score.
      radar: the scores by tag.
    """

    errors: Mapping[tuple[str, int], ValueError]
    num_unfinished: int
    rows: Sequence[Row]
    radar: go.Figure | None


@dataclasses.dataclass(frozen=True)
class EvaluationSection:
    """The section of an evaluation.

    Attributes:
      report: all numbers.
      num_runs: that the evaluation should have.
      non_finite: sentences on runs that ended with non-finite numbers.
      contenders: a table of the contenders.
      sources: a table of the evaluation's folders.
      comparisons: on each scale; none with one seed.
      by_task: our scores and the papers' on each task; None if no paper has any.
      protocols: source and protocol of the papers' scores.
      learning_curves: by task.
      metrics: by contender, what its agent logged, and its plot.
      achievements: on each task that has any.
      bsuite: None if bsuite has no score and no error.
    """

    template: ClassVar[str] = "evaluation.html"
    report: EvaluationReport
    num_runs: int
    non_finite: list[str]
    contenders: Sequence[Row]
    sources: Sequence[Row]
    comparisons: list[ComparisonPlots]
    by_task: TaskTable | None
    protocols: list[tuple[str, str]]
    learning_curves: go.Figure
    metrics: Mapping[str, tuple[AgentMetrics, go.Figure]]
    achievements: list[AchievementsPart]
    bsuite: BsuitePart | None

    @property
    def heading(self) -> str:
        """The evaluation's name."""
        return self.report.name


@dataclasses.dataclass(frozen=True)
class DiscoverySection:
    """The section of a discovery.

    Attributes:
      heading: for the section.
      totals: a table of one row.
      problems: sentences on metrics that are ignored.
      scores: a table of the scores of fresh agents and of others; empty without probes.
      probes: the same by meta-step; None without probes.
      probe_command: arguments of launch.evaluate that evaluate baselines on the probes' tasks;
        empty if some are shown, or without probes.
      metrics: by meta-step.
    """

    template: ClassVar[str] = "discovery.html"
    heading: str
    totals: Sequence[Row]
    problems: Sequence[str]
    scores: Sequence[Row]
    probes: go.Figure | None
    probe_command: str
    metrics: go.Figure


@dataclasses.dataclass(frozen=True)
class PublishedAggregatesSection:
    """The section of the papers' own aggregates.

    Attributes:
      rows: a table of all of them.
      num_equal: how many are reproduced to the last printed digit.
    """

    template: ClassVar[str] = "published_aggregates.html"
    rows: Sequence[Row]
    num_equal: int
    heading: str = "Published aggregates, reproduced"


@dataclasses.dataclass(frozen=True)
class FilesSection:
    """The section on the files beside the page.

    Attributes:
      tables: by file name, what a row of a table is, and its columns.
    """

    template: ClassVar[str] = "files.html"
    tables: Mapping[str, tuple[str, Mapping[str, str]]]
    heading: str = "Files"

    @classmethod
    def of(cls, written: Collection[str]) -> "FilesSection":
        """Return the section on the tables among the written files."""
        return cls({name: x for name, x in TABLES.items() if name in written})


def evaluation_section(report: EvaluationReport) -> EvaluationSection:
    """Return the section of an evaluation."""
    merged, shown = report.merged, report.shown
    return EvaluationSection(
        report=report,
        num_runs=len(merged.contenders) * len(merged.tasks) * len(merged.seeds),
        non_finite=non_finite_runs(merged.contender_curves),
        contenders=[contender_row(contender, merged) for contender in merged.contenders],
        sources=[_source_row(source) for source in merged.sources],
        comparisons=[
            _comparison_plots(x, shown) for x in report.comparisons if merged.config.seeds > 1
        ],
        by_task=task_table(report.summary, [x.scale for x in report.comparisons]),
        protocols=protocols(report.summary.tasks),
        learning_curves=plotly_figures.task_curves(report.curves, shown),
        metrics={
            name: (x, plotly_figures.agent_metrics(x.tasks)) for name, x in report.metrics.items()
        },
        achievements=[_achievements(*x, shown) for x in report.achievements.items()],
        bsuite=_bsuite(report) if report.bsuite or report.bsuite_errors else None,
    )


def discovery_section(
    discovery: Discovery, baselines: Mapping[str, float] | None = None
) -> DiscoverySection:
    """Return the section of a discovery.

    Args:
      discovery: on disk.
      baselines: scores of other contenders on the tasks of its probes, by name.
    """
    found, baselines = discovery.probes, baselines or {}
    command = ""
    if found and not baselines:
        command = f"--suite={','.join(found[0].tasks)} --config.budget={discovery.probe_budget}"
    metrics, last = discovery.metrics, discovery.metrics[-1]
    totals = {
        "meta-steps": f"{last['meta_step']:,}",
        "environment steps": f"{last.get('environment_steps') or 0:,}",
        "agents": len(last["agents"]["task"]),
        "suite": discovery.config.get("suite", ""),
        "seed": discovery.config.get("seed", ""),
        "agent resets": sum(record.get("num_resets") or 0 for record in metrics),
        "non-finite": sum(record.get("non_finite_agents") or 0 for record in metrics),
    }
    return DiscoverySection(
        heading=f"Discovery: {discovery.name}",
        totals=[totals],
        problems=discovery.problems,
        scores=_probe_rows(found, baselines),
        probes=plotly_figures.probes(found, baselines) if found else None,
        probe_command=command,
        metrics=plotly_figures.discovery(metrics),
    )


def _probe_rows(found: Sequence[Probe], baselines: Mapping[str, float]) -> list[Row]:
    """Return the scores of the newest and the best probe, and of others, the best first."""
    if not found:
        return []
    best, newest = probe_scores.best(found), found[-1]
    scores = {f"fresh agents, meta-step {newest.meta_step:,} (newest)": newest.score}
    if best is not None and best.meta_step != newest.meta_step:
        scores[f"fresh agents, meta-step {best.meta_step:,} (best)"] = best.score
    ranked = sorted((scores | dict(baselines)).items(), key=lambda pair: -pair[1])
    number = len(newest.tasks)
    return [
        {"agents that learn by": name, f"mean score on {number} tasks": f"{score:.2f}"}
        for name, score in ranked
    ]


def published_aggregates_section(found: Sequence[Reproduction]) -> PublishedAggregatesSection:
    """Return the section of the papers' own aggregates."""
    rows = [
        {
            "agent": row.aggregate.agent,
            "statistic": row.aggregate.statistic.replace("_", " "),
            "tasks": len(row.tasks),
            "printed": row.aggregate.printed,
            "computed": row.computed,
            "source": row.source,
            "why they differ": "" if row.agrees else row.aggregate.explanation,
        }
        for row in found
    ]
    return PublishedAggregatesSection(rows, sum(row.agrees for row in found))


def _source_row(source: StoredEvaluation) -> Row:
    known = source.provenance
    return {
        "folder": source.folder,
        "code": known.get("code_version", ""),
        "jax": known.get("jax_version", ""),
        "machine": known.get("machine", ""),
        "processors": known.get("processors", ""),
        "started": known.get("started", ""),
        "first seed": source.config.seed,
    }


def _comparison_plots(comparison: Comparison, shown: Sequence[Contender]) -> ComparisonPlots:
    if not comparison.aggregates:
        return ComparisonPlots(comparison, [], [], None, None, None)
    return ComparisonPlots(
        comparison=comparison,
        rows=_aggregate_rows(comparison),
        aggregates=plotly_figures.aggregates(comparison, shown),
        curves=plotly_figures.curves(comparison, shown),
        profiles=plotly_figures.profiles(comparison, shown),
        improvement=plotly_figures.improvement(comparison, shown),
    )


def _aggregate_rows(comparison: Comparison) -> Sequence[Row]:
    num_tasks = comparison.scale.counted.sum()
    return [
        {
            "contender": name,
            **{label: estimate.text(3) for label, estimate in aggregates.items()},
            "IQM of the curve's area": comparison.areas[name].text(3)
            if name in comparison.areas
            else "",
            "best on tasks": comparison.best.get(name, ""),
            "tasks above 1": f"{comparison.above_one[name]} of {num_tasks}"
            if name in comparison.above_one
            else "",
        }
        for name, aggregates in comparison.aggregates.items()
    ]


def _achievements(
    task: str, scores: Mapping[str, CrafterScores], shown: Sequence[Contender]
) -> AchievementsPart:
    column = "Crafter score (%)"
    ours = [
        {"contender": name, column: _with_error(x.scores), "runs": len(x.scores), "source": "ours"}
        for name, x in scores.items()
    ]
    papers = [
        {
            "contender": score.agent,
            column: f"{score.score} ± {score.plus_minus}",
            "runs": "",
            "source": score.source,
        }
        for score in published_scores(task, CRAFTER_SCORE)
    ]
    rates = {name: x.success_rates for name, x in scores.items()}
    return AchievementsPart(task, ours + papers, plotly_figures.success_rates(rates, shown))


def _with_error(values: np.ndarray) -> str:
    error = statistics.standard_error(values[None])[0]
    return f"{np.mean(values):.2f}" + ("" if np.isnan(error) else f" ± {error:.2f}")


def _bsuite(report: EvaluationReport) -> BsuitePart:
    scores, errors = report.bsuite, report.bsuite_errors
    if not scores:
        return BsuitePart(errors, 0, [], None)
    tags = {name: _mean_by_name([x.tags for x in seeds]) for name, seeds in scores.items()}
    experiments = {
        name: _mean_by_name([x.experiments for x in seeds]) for name, seeds in scores.items()
    }
    unfinished = {x for seeds in scores.values() for one in seeds for x in one.unfinished}
    rows: list[dict[str, str]] = []
    for experiment in next(iter(experiments.values())):
        ours = {name: f"{means[experiment]:.3f}" for name, means in experiments.items()}
        papers = {
            f"{x.agent} (paper)": f"{x.score:.3f}"
            for x in published_scores(f"bsuite/{experiment}", BSUITE_SCORE)
        }
        rows.append({"experiment": experiment, **ours, **papers})
    return BsuitePart(
        errors=errors,
        num_unfinished=len(unfinished),
        rows=[{name: row.get(name, "") for name in rows[0]} for row in rows],
        radar=plotly_figures.radar(tags, report.shown),
    )


def _mean_by_name(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([x[name] for x in seeds])) for name in seeds[0]}

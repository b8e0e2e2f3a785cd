"""The section of an evaluation on a report's page: all numbers and figures, from its runs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from evaluation.contenders import AlgorithmContender, Contender
from evaluation.published import BSUITE_SCORE, CRAFTER_SCORE, published_scores
from evaluation.report import csv_tables, page, paper_tables, plots, score_table
from evaluation.report.agent_metrics import AgentMetrics, agent_metrics
from evaluation.report.contender_table import contender_row
from evaluation.report.drawing import Drawing
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.merging import MergedEvaluation
from evaluation.report.page import Row
from evaluation.report.paper_tables import TaskTable
from evaluation.report.pictures_of_runs import Pictures, find_pictures
from evaluation.report.score_table import ScoreTable
from evaluation.report.texts import file_name
from evaluation.scoring import bsuite, statistics
from evaluation.scoring.bsuite import BsuiteScores
from evaluation.scoring.comparison import Comparison, compare, scales
from evaluation.scoring.crafter import CrafterScores, score_achievements
from evaluation.scoring.curves import normalized_curves
from evaluation.scoring.normalization import Scale
from evaluation.scoring.summary import Summary, in_order


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSection(page.Section):
    """The section of an evaluation; its tables are properties.

    Attributes:
      merged: the evaluation's runs.
      summary: of all contenders.
      shown: contenders with at least one score.
      comparisons: of the shown contenders, on each scale that is defined.
      result: the main result, on the first scale.
      pictures: of the shown contenders.
      metrics: that shown agents with losses of their own logged, by contender, if any did.
      achievements: by Crafter task, the scores of the shown contenders that have any.
      bsuite: bsuite's scores of the shown contenders' seeds.
      bsuite_errors: by contender and seed, why bsuite's scores leave it out.
    """

    template: ClassVar[str] = "evaluation.html"
    merged: MergedEvaluation
    summary: Summary
    shown: Sequence[Contender]
    comparisons: Sequence[Comparison]
    result: MainResult
    pictures: Pictures
    metrics: Mapping[str, AgentMetrics]
    achievements: Mapping[str, Mapping[str, CrafterScores]]
    bsuite: Mapping[str, Sequence[BsuiteScores]]
    bsuite_errors: Mapping[tuple[str, int], ValueError]

    @property
    def num_runs(self) -> int:
        """The number of runs that the evaluation should have."""
        return len(self.merged.contenders) * len(self.merged.tasks) * len(self.merged.seeds)

    @property
    def non_finite(self) -> list[str]:
        """Sentences on runs that ended with non-finite numbers."""
        return score_table.non_finite_runs(self.merged.contender_curves)

    @property
    def table(self) -> ScoreTable:
        """Scores by task and contender."""
        return score_table.score_table(self.summary, self.shown, self.merged.config)

    @property
    def contender_rows(self) -> list[Row]:
        """A table of the contenders."""
        return [contender_row(contender, self.merged) for contender in self.merged.contenders]

    @property
    def source_rows(self) -> list[Row]:
        """A table of the evaluation's folders."""
        known = "code_version jax_version machine processors started".split()
        names = dict(zip(known, ("code", "jax", *known[2:]), strict=True))
        return [
            {
                "folder": source.folder,
                **{name: source.provenance.get(key, "") for key, name in names.items()},
                "first seed": source.config.seed,
            }
            for source in self.merged.sources
        ]

    @property
    def by_task(self) -> TaskTable | None:
        """Our scores and the papers' on each task; None if no paper has any."""
        return paper_tables.task_table(self.summary, [x.scale for x in self.comparisons])

    @property
    def paper_rows(self) -> list[Row]:
        """A table of the papers' scores, that of `published.csv`."""
        rows = csv_tables.published_rows(self.summary)
        return [{k: "" if x is None else x for k, x in row.items()} for row in rows]

    @property
    def protocols(self) -> list[tuple[str, str]]:
        """Source and protocol of the papers' scores."""
        return paper_tables.protocols(self.summary.tasks)

    def plot_of(self, comparison: Comparison, plot: str) -> str:
        """Return the name of a comparison's figure."""
        return f"{_file_name(comparison.scale)}_{plot}"

    def plot_of_agent(self, contender: str) -> str:
        """Return the name of the figure of what an agent logged."""
        number = list(self.metrics).index(contender) + 1  # File names may be equal.
        return f"metrics_{number}_{file_name(contender)}"

    def plot_of_task(self, task: str) -> str:
        """Return the name of the figure of the achievements on a task."""
        return f"achievements_{file_name(task)}"

    def aggregate_rows(self, comparison: Comparison) -> list[Row]:
        """Return a table of a comparison's aggregates."""
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

    def achievement_rows(self, task: str) -> list[Row]:
        """Return a table of Crafter scores, ours and the papers'."""
        names = ("contender", "Crafter score (%)", "runs", "source")
        ours = [
            (name, _with_error(x.scores), len(x.scores), "ours")
            for name, x in self.achievements[task].items()
        ]
        papers = [
            (x.agent, f"{x.score} ± {x.plus_minus}", "", x.source)
            for x in published_scores(task, CRAFTER_SCORE)
        ]
        return [dict(zip(names, row, strict=True)) for row in (*ours, *papers)]

    @property
    def bsuite_rows(self) -> list[Row]:
        """A table of bsuite's experiments, ours and the papers'; empty without a score."""
        means = {k: _means([x.experiments for x in seeds]) for k, seeds in self.bsuite.items()}
        rows: list[dict[str, str]] = []
        for experiment in next(iter(means.values()), {}):
            ours = {name: f"{x[experiment]:.3f}" for name, x in means.items()}
            papers = {
                f"{x.agent} (paper)": f"{x.score:.3f}"
                for x in published_scores(f"bsuite/{experiment}", BSUITE_SCORE)
            }
            rows.append({"experiment": experiment, **ours, **papers})
        return [{name: row.get(name, "") for name in rows[0]} for row in rows]

    @property
    def num_unfinished(self) -> int:
        """The number of bsuite's experiments with fewer episodes or settings than it asks for."""
        return len({x for seeds in self.bsuite.values() for one in seeds for x in one.unfinished})


def evaluation_section(name: str, merged: MergedEvaluation) -> EvaluationSection:
    """Return the section of an evaluation.

    Args:
      name: for the evaluation.
      merged: its runs, at least one.
    """
    section = without_plots(name, merged)
    return dataclasses.replace(section, plots=_plots(section))


def without_plots(name: str, merged: MergedEvaluation) -> EvaluationSection:
    """Return the section of an evaluation (see `evaluation_section`) without its figures."""
    config, curves = merged.config, merged.contender_curves
    summary = merged.summary()
    shown = [x for x in in_order(merged.contenders) if np.isfinite(summary.scores[x.name]).any()]
    own = {contender.name: curves[contender.name] for contender in shown}
    defined = scales(summary)
    achievements = {task: score_achievements(own, i) for i, task in enumerate(merged.tasks)}
    metrics = {
        x.name: agent_metrics(merged, x.name)
        for x in shown
        if isinstance(x, AlgorithmContender) and not x.is_random
    }
    bsuite_scores, bsuite_errors = _bsuite_scores(merged, shown)
    return EvaluationSection(
        name=name,
        merged=merged,
        summary=summary,
        shown=shown,
        comparisons=[compare(x, summary, curves, config, shown) for x in defined],
        result=main_result(summary, shown, config, next(iter(defined), None)),
        pictures=find_pictures(name, merged, shown),
        metrics={name: found for name, found in metrics.items() if found.tasks},
        achievements={task: scores for task, scores in achievements.items() if scores},
        bsuite=bsuite_scores,
        bsuite_errors=bsuite_errors,
    )


def _plots(section: EvaluationSection) -> dict[str, Drawing]:
    merged, summary, shown = section.merged, section.summary, section.shown
    config, curves = merged.config, merged.contender_curves
    found = {"learning_curves": plots.learning_curves(summary, shown, curves, config)}
    if config.seeds > 1 and summary.aggregates:
        drawn = {contender.name: curves[contender.name] for contender in shown}
        over_tasks = normalized_curves(summary, drawn, config)
        found["aggregate"] = plots.mean_curves(summary, shown, over_tasks, config)
    for comparison in section.comparisons if config.seeds > 1 else ():
        for name, drawing in plots.compared(comparison, shown).items():
            found[section.plot_of(comparison, name)] = drawing
    for name, metrics in section.metrics.items():
        found[section.plot_of_agent(name)] = plots.agent_metrics(metrics.tasks)
    for task, scores in section.achievements.items():
        rates = {name: x.success_rates for name, x in scores.items()}
        found[section.plot_of_task(task)] = plots.success_rates(rates, shown)
    if section.bsuite:
        tags = {name: _means([x.tags for x in seeds]) for name, seeds in section.bsuite.items()}
        found["bsuite"] = plots.radar(tags, shown)
    return found


def _bsuite_scores(
    merged: MergedEvaluation, shown: Sequence[Contender]
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    settings = bsuite.settings_of(merged.tasks)
    if not settings:
        return {}, {}
    names = [contender.name for contender in shown if contender.num_environments == 1]
    return bsuite.score_contenders(names, settings, merged.seeds, merged.episodes)


def _file_name(scale: Scale) -> str:
    return file_name(scale.name.lower())


def _with_error(values: np.ndarray) -> str:
    error = statistics.standard_error(values[None])[0]
    return f"{np.mean(values):.2f}" + ("" if np.isnan(error) else f" ± {error:.2f}")


def _means(seeds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean over seeds by name."""
    return {name: float(np.mean([x[name] for x in seeds])) for name in seeds[0]}

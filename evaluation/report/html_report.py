"""The report of finished runs: a page, and the numbers and figures in it as files.

    index.html                     the page; needs no network
    scores.csv, aggregates.csv, …  the numbers as tables (`evaluation.report.evaluation_files`)
    <section>_*.png, .svg          the figures
    films/                         the films that the page plays

Evaluations of different tasks, budgets or score definitions are shown side by side. No mean is
taken over more than one of them.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from disco_common import files as file_access
from disco_common.files import write_atomically
from evaluation.contenders import AlgorithmContender
from evaluation.published import BSUITE_SCORE, CRAFTER_SCORE, published_scores
from evaluation.report import evaluation_files, page, paper_tables, plots, run_files, tables
from evaluation.report.discoveries import Discovery
from evaluation.report.discovery_section import discovery_section
from evaluation.report.drawing import Drawing
from evaluation.report.main_result import MainResult, main_result
from evaluation.report.page import Row, Section
from evaluation.report.paper_tables import TaskTable
from evaluation.report.run_files import AgentMetrics, Pictures, agent_metrics, find_pictures
from evaluation.report.stored import MergedEvaluation
from evaluation.report.tables import ScoreTable, file_name
from evaluation.scoring import statistics, suite_scores
from evaluation.scoring.evaluation import Comparison
from evaluation.scoring.suite_scores import BsuiteScores, CrafterScores


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSection(Section):
    """The section of an evaluation; its tables are properties.

    Attributes:
      merged: the evaluation's runs.
      result: the main result, on the first scale.
      pictures: of the shown contenders.
      metrics: that shown agents with losses of their own logged, by contender, if any did.
      achievements: by Crafter task, the scores of the shown contenders that have any.
      bsuite: bsuite's scores of the shown contenders' seeds.
      bsuite_errors: by contender and seed, why bsuite's scores leave it out.
    """

    template: ClassVar[str] = "evaluation.html"
    merged: MergedEvaluation
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
        return tables.non_finite_runs(self.merged)

    @property
    def table(self) -> ScoreTable:
        """Scores by task and contender."""
        return tables.score_table(self.merged, self.merged.shown)

    @property
    def contender_rows(self) -> list[Row]:
        """A table of the contenders."""
        return [tables.contender_row(x, self.merged) for x in self.merged.contenders]

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
        return paper_tables.task_table(self.merged)

    @property
    def paper_rows(self) -> list[Row]:
        """A table of the papers' scores, that of `published.csv`."""
        rows = evaluation_files.published_rows(self.merged)
        return [{k: "" if x is None else x for k, x in row.items()} for row in rows]

    @property
    def protocols(self) -> list[tuple[str, str]]:
        """Source and protocol of the papers' scores."""
        return paper_tables.protocols(self.merged.tasks)

    def plot_of(self, comparison: Comparison, plot: str) -> str:
        """Return the name of a comparison's figure."""
        return f"{file_name(comparison.scale.name.lower())}_{plot}"

    def plot_of_agent(self, contender: str) -> str:
        """Return the name of the figure of what an agent logged."""
        number = list(self.metrics).index(contender) + 1  # File names may be equal.
        return f"metrics_{number}_{file_name(contender)}"

    def plot_of_task(self, task: str) -> str:
        """Return the name of the figure of the achievements on a task."""
        return f"achievements_{file_name(task)}"

    def aggregate_rows(self, comparison: Comparison) -> list[Row]:
        """Return a table of a comparison's aggregates."""
        return [*tables.aggregate_rows(comparison)]

    def intervals(self, comparison: Comparison) -> str:
        """Return what a comparison's intervals are over."""
        return tables.intervals_of(comparison, "tasks")

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
    """Return the section of an evaluation, which has at least one run."""
    section = without_plots(name, merged)
    return dataclasses.replace(section, plots=_plots(section))


def without_plots(name: str, merged: MergedEvaluation) -> EvaluationSection:
    """Return the section of an evaluation (see `evaluation_section`) without its figures."""
    own = {contender.name: merged.contender_curves[contender.name] for contender in merged.shown}
    achievements = {
        task: suite_scores.score_achievements(own, i) for i, task in enumerate(merged.tasks)
    }
    metrics = {
        x.name: agent_metrics(merged, x.name)
        for x in merged.shown
        if isinstance(x, AlgorithmContender) and not x.is_random
    }
    bsuite_scores, bsuite_errors = _bsuite_scores(merged)
    return EvaluationSection(
        name=name,
        merged=merged,
        result=main_result(merged),
        pictures=find_pictures(name, merged),
        metrics={name: found for name, found in metrics.items() if found.tasks},
        achievements={task: scores for task, scores in achievements.items() if scores},
        bsuite=bsuite_scores,
        bsuite_errors=bsuite_errors,
    )


def _plots(section: EvaluationSection) -> dict[str, Drawing]:
    merged, shown = section.merged, section.merged.shown
    found = {"learning_curves": plots.learning_curves(merged, shown)}
    if merged.config.seeds > 1:
        if merged.by_references is not None:
            found["aggregate"] = plots.mean_curves(merged.by_references, shown)
        for comparison in merged.comparisons:
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
    merged: MergedEvaluation,
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    settings = suite_scores.settings_of(merged.tasks)
    if not settings:
        return {}, {}
    names = [contender.name for contender in merged.shown if contender.num_environments == 1]

    def read(contender: str, task: str, seed: int) -> Sequence[Any]:
        return run_files.read_episodes(merged, contender, task, seed)

    return suite_scores.score_contenders(names, settings, merged.seeds, read)


def _with_error(values: np.ndarray) -> str:
    error = float(statistics.standard_error(values))
    return tables.with_error(float(np.mean(values)), error, 2)


def _means(seeds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean over seeds by name."""
    return {name: float(np.mean([x[name] for x in seeds])) for name in seeds[0]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSection(Section):
    """The section on the files beside the page.

    Attributes:
      files: names of those that there are.
    """

    template: ClassVar[str] = "files.html"
    name: str = "Files"
    files: Collection[str]


def write_report(
    output: pathlib.Path,
    evaluations: Sequence[MergedEvaluation],
    discoveries: Sequence[Discovery] = (),
    title: str = "Report",
    first: Sequence[Section] = (),
) -> list[pathlib.Path]:
    """Write a report; return its files.

    Args:
      output: folder; created if necessary.
      evaluations: with at least one run each.
      discoveries: whose metrics to show, too.
      title: of the page.
      first: sections before all others.

    Raises:
      OSError: if a file cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = _distinct([one.name for one in evaluations])
    reports = [evaluation_section(*x) for x in zip(names, evaluations, strict=True)]
    named = zip(discoveries, _distinct([one.name for one in discoveries]), strict=True)
    found = [discovery_section(one._replace(name=name), evaluations) for one, name in named]
    sections: list[Section] = [*first, *reports, *found]
    files: dict[str, str | bytes] = {}
    for section in sections:
        for plot, drawing in section.plots.items():
            files |= drawing.files(section.stem(plot))
    for report in reports:
        for film in (film for films in report.pictures.films.values() for film in films):
            files[film.file] = file_access.read_bytes(film.source, file_access.MOST_DATA)
    files |= evaluation_files.csv_files({report.name: report.merged for report in reports})
    if reports:
        sections.append(FilesSection(files=list(files)))
    files["index.html"] = page.render(title, sections, _remarks(names))
    for file, content in files.items():
        (output / file).parent.mkdir(exist_ok=True)
        write_atomically(output / file, content)
    return [output / file for file in files]


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names, with numbers where they are equal."""
    return [
        f"{name} ({[*names[: i + 1]].count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _remarks(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they are shown"
        " side by side, and no mean is over more than one of them."
    ]

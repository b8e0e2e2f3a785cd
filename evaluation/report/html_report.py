"""The report of finished runs: a page, and the numbers and figures in it as files.

    index.html                     the page; needs no network
    scores.csv, aggregates.csv, …  the numbers as tables (`evaluation.report.evaluation_files`)
    <section>_*.png, .svg          the figures
    pictures/                      pictures and films of agents, which the page shows

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
from evaluation.published import BSUITE_SCORE, CRAFTER_SCORE, published_scores
from evaluation.report import evaluation_files, page, plots
from evaluation.report.discoveries import Discovery
from evaluation.report.discovery_section import discovery_section
from evaluation.report.drawing import Drawing, draw_line_panels
from evaluation.report.main_result import main_result
from evaluation.report.page import Row, Section
from evaluation.report.run_files import AgentMetrics, Picture, agent_metrics, find_pictures
from evaluation.report.tables import file_name, with_error
from evaluation.scoring import statistics, suite_scores
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.suite_scores import BsuiteScores, CrafterScores


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSection(Section):
    """The section of an evaluation.

    Attributes:
      merged: the evaluation's runs.
      result: the main result, on the first scale.
      pictures: of the shown contenders' final agents, and films, by task.
      metrics: that shown agents with losses of their own logged, by contender, if any did.
      achievements: by Crafter task, the scores of the shown contenders that have any.
      bsuite: bsuite's scores of the shown contenders' seeds.
      bsuite_errors: by contender and seed, why bsuite's scores leave it out.
    """

    template: ClassVar[str] = "evaluation.html"
    merged: Evaluation
    result: tuple[str, ...]
    pictures: Mapping[str, Sequence[Picture]]
    metrics: Mapping[str, AgentMetrics]
    achievements: Mapping[str, Mapping[str, CrafterScores]]
    bsuite: Mapping[str, Sequence[BsuiteScores]]
    bsuite_errors: Mapping[tuple[str, int], ValueError]

    def achievement_rows(self, task: str) -> list[Row]:
        """Return a table of Crafter scores, ours and the papers'."""
        names = ("contender", "Crafter score (%)", "runs", "source")
        rows = []
        for name, own in self.achievements[task].items():
            error = float(statistics.standard_error(own.scores))
            score = with_error(float(np.mean(own.scores)), error, 2)
            rows.append((name, score, len(own.scores), "ours"))
        for x in published_scores(task, CRAFTER_SCORE):
            rows.append((x.agent, f"{x.score} ± {x.plus_minus}", "", x.source))
        return [dict(zip(names, row, strict=True)) for row in rows]

    def bsuite_rows(self) -> list[Row]:
        """Return a table of bsuite's experiments, ours and the papers'; empty without a score."""
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

    def num_unfinished(self) -> int:
        """Return how many of bsuite's experiments have too few episodes or settings."""
        return len({x for seeds in self.bsuite.values() for one in seeds for x in one.unfinished})


def evaluation_section(name: str, merged: Evaluation) -> EvaluationSection:
    """Return the section of an evaluation, which has at least one run."""
    section = without_plots(name, merged)
    return dataclasses.replace(section, plots=_plots(section))


def without_plots(name: str, merged: Evaluation) -> EvaluationSection:
    """Return the section of an evaluation (see `evaluation_section`) without its figures."""
    achievements = {
        task: suite_scores.score_achievements(merged, i) for i, task in enumerate(merged.tasks)
    }
    metrics = {x.name: agent_metrics(merged, x.name) for x in merged.shown if x.is_baseline}
    bsuite, errors = suite_scores.score_bsuite(merged)
    return EvaluationSection(
        name=name,
        merged=merged,
        result=main_result(merged),
        pictures=find_pictures(name, merged),
        metrics={name: found for name, found in metrics.items() if found.curves},
        achievements={task: scores for task, scores in achievements.items() if scores},
        bsuite=bsuite,
        bsuite_errors=errors,
    )


def _plots(section: EvaluationSection) -> dict[str, Drawing]:
    merged, shown = section.merged, section.merged.shown
    found = {"learning_curves": plots.learning_curves(merged, shown)}
    if merged.config.seeds > 1:
        for comparison in merged.comparisons:
            for name, drawing in plots.compared(comparison, shown).items():
                found[f"{file_name(comparison.scale.name.lower())}_{name}"] = drawing
    for number, (name, metrics) in enumerate(section.metrics.items(), 1):
        # File names may be equal.
        found[f"metrics_{number}_{file_name(name)}"] = draw_line_panels(
            metrics.curves, xlabel="environment steps"
        )
    for task, scores in section.achievements.items():
        rates = {name: x.success_rates for name, x in scores.items()}
        found[f"achievements_{file_name(task)}"] = plots.success_rates(rates, shown)
    if section.bsuite:
        tags = {name: _means([x.tags for x in seeds]) for name, seeds in section.bsuite.items()}
        found["bsuite"] = plots.radar(tags, shown)
    return found


def _means(seeds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean over seeds by name."""
    return {name: float(np.mean([x[name] for x in seeds])) for name in seeds[0]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSection(Section):
    """The section on the files beside the page, of which it has the names."""

    template: ClassVar[str] = "files.html"
    name: str = "Files"
    files: Collection[str]


def write_report(
    output: pathlib.Path,
    evaluations: Sequence[Evaluation],
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
    found = [discovery_section(one._replace(name=name)) for one, name in named]
    sections: list[Section] = [*first, *reports, *found]
    files: dict[str, str | bytes] = {}
    for section in sections:
        for plot, drawing in section.plots.items():
            files |= drawing.files(section.stem(plot))
    for picture in (x for one in reports for of_task in one.pictures.values() for x in of_task):
        files[picture.file] = file_access.read_bytes(picture.source, file_access.MOST_DATA)
    files |= evaluation_files.csv_files(
        {one.name: one.merged for one in reports}, {one.name: one.bsuite for one in reports}
    )
    if reports:
        sections.append(FilesSection(files=list(files)))
    remark = (
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they are shown"
        " side by side, and no mean is over more than one of them."
    )
    files["index.html"] = page.render(title, sections, [remark] if len(names) > 1 else [])
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

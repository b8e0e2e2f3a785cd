"""A report of finished runs: one HTML file, and the numbers and pictures in it as files.

    index.html               everything; needs no network
    scores.csv               each contender's and each paper's score on each task
    aggregates.csv           means, medians, IQMs, optimality gaps and their intervals, by scale
    improvement.csv          probabilities of improvement
    curves.csv               learning curves: mean return over seeds, and its standard error
    reproduced.csv           the papers' own aggregates, computed again
    <evaluation>_*.png       learning curves, aggregate curves

Evaluations of other tasks, budgets or score definitions stand side by side and are never put
together in one mean.
"""

import datetime
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common.atomic import write_atomically
from environments.episodes import Episode
from environments.suites import crafter
from evaluation import bsuite_scores, page, plots, published_aggregates, statistics
from evaluation.archive import Gathered
from evaluation.comparison import Comparison, Scale, compare, scales
from evaluation.contenders import AGENT, RANDOM, Contender
from evaluation.published_scores import (
    BSUITE_SCORE,
    CRAFTER_SCORE,
    METRICS,
    RETURN,
    PublishedScore,
    published,
    tables,
)
from evaluation.report import shown_contenders
from evaluation.scores import Summary, coarsen, summarize

_MOST_STRIP_BYTES = 2_000_000  # Of an evaluation.


class Discovery(NamedTuple):
    """A discovery run.

    Attributes:
      name: for a heading.
      config: its settings, JSON values.
      reports: as `evaluation.discovery_reports` reads them; at least one.
      problems: lines of its reports that are left out, and why.
    """

    name: str
    config: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    problems: Sequence[str] = ()


def write(
    output: pathlib.Path,
    evaluations: Sequence[Gathered],
    discoveries: Sequence[Discovery] = (),
    title: str = "Report",
    first: Sequence[tuple[str, str]] = (),
    *,
    reproduced: bool = True,
) -> list[pathlib.Path]:
    """Writes a report; returns its files.

    Args:
      output: folder, made if need be.
      evaluations: with at least one run each.
      discoveries: whose curves to show besides.
      title: of the page.
      first: sections to stand before all others, heading and HTML of each.
      reproduced: show the papers' own aggregates, computed again.

    Raises:
      OSError: if a file cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    tables = _Tables()
    files: dict[str, str | bytes] = {}
    sections = list(first)
    names = _names(evaluations)
    for name, gathered in zip(names, evaluations, strict=True):
        content, pictures = _evaluation(name, gathered, tables)
        sections.append((name, content))
        files |= {f"{_file_name(name)}_{kind}.png": data for kind, data in pictures.items()}
    for one in discoveries:
        sections.append((f"Discovery: {one.name}", _discovery(one)))
        files[f"{_file_name(one.name)}_discovery.png"] = plots.discovery_curves(one.reports)
    if reproduced:
        found = published_aggregates.reproductions()
        sections.append(("Published aggregates, computed again", _reproduced(found)))
        files["reproduced.csv"] = published_aggregates.to_csv(found)
    head = page.notes(_apart(names))
    files["index.html"] = page.page(title, head, sections)
    files |= tables.files()
    for file, content in files.items():
        write_atomically(output / file, content)
    return [output / file for file in files]


class _Tables:
    """The rows of the CSV files."""

    def __init__(self):
        self.scores: list[dict[str, Any]] = []
        self.aggregates: list[dict[str, Any]] = []
        self.improvement: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []

    def files(self) -> dict[str, str]:
        return {
            f"{name}.csv": pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
            for name, rows in vars(self).items()
            if rows
        }


def _names(evaluations: Sequence[Gathered]) -> list[str]:
    """The folders' names, numbered where they are equal."""
    plain = [one.name for one in evaluations]
    return [
        f"{name} ({plain[: i + 1].count(name)})" if plain.count(name) > 1 else name
        for i, name in enumerate(plain)
    ]


def _file_name(name: str) -> str:
    return "".join(x if x.isalnum() or x in "-_." else "_" for x in name)


def _apart(names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    return [
        f"{', '.join(names)} are of different tasks, budgets or score definitions: they stand side"
        " by side, and no mean is over more than one of them."
    ]


def _evaluation(name: str, gathered: Gathered, tables: _Tables) -> tuple[str, dict[str, bytes]]:
    """The section of an evaluation, and its pictures; adds to the tables."""
    config = gathered.config
    summary = summarize(gathered.tasks, gathered.contenders, gathered.histories, config)
    shown = shown_contenders(summary, gathered.contenders)
    shown = [x for x in shown if np.isfinite(summary.scores[x.name]).any()]
    parts = [
        page.paragraph(f"Score: {config.score_definition}."),
        _remarks(gathered, summary),
        "<h3>What was run</h3>",
        page.plain_table([_described(x, gathered) for x in gathered.contenders]),
        page.plain_table([_provenance(x) for x in gathered.sources]),
    ]
    pictures = {
        "learning_curves": plots.learning_curves(summary, shown, gathered.histories, config)
    }
    found = scales(summary)
    if not found:
        parts.append(
            page.paragraph("There is no scale on which these tasks could be put together.", "quiet")
        )
    for scale in found:
        comparison = compare(gathered, summary, scale, shown)
        parts.append(_compared(comparison, shown, gathered))
        _add_aggregates(tables, name, comparison)
    if summary.aggregate:
        pictures["aggregate"] = plots.aggregate(summary, shown, gathered.histories, config)
    rows = _score_rows(gathered, summary, found)
    tables.scores += [{"evaluation": name, **row} for row in rows]
    curves = _task_curves(gathered, shown)
    tables.curves += [
        {
            "evaluation": name,
            "task": task,
            "contender": contender,
            "environment steps": int(step),
            "mean return": _number(mean),
            "standard error": _number(high - mean),
        }
        for task, by_contender in curves.items()
        for contender, (steps, curve) in by_contender.items()
        for step, mean, _, high in zip(steps, *curve, strict=True)
    ]
    parts += [
        "<h3>Scores by task</h3>",
        page.paragraph(
            "Ours, and those of papers on the same tasks, whose budgets and protocols are their"
            " own. The boxes below the columns filter; headings sort.",
            "quiet",
        ),
        page.data_table(pd.DataFrame(rows)),
        page.notes([], {"How the papers trained and scored": _protocols(summary.tasks)}),
        "<h3>Learning curves</h3>",
        page.paragraph("Mean over seeds, with a band of a standard error.", "quiet"),
        page.task_curves(curves, shown),
        _strips(gathered, shown),
        _achievements(gathered, shown),
        _capabilities(gathered, shown),
    ]
    return "".join(parts), pictures


def _remarks(gathered: Gathered, summary: Summary) -> str:
    """What is missing, left out, or went wrong."""
    remarks = [
        f"{name}: {np.sum(~history.is_finite)} runs ended with non-finite numbers."
        for name, history in gathered.histories.items()
        if not history.is_finite.all()
    ]
    total = len(gathered.contenders) * len(gathered.tasks) * len(gathered.seeds)
    lists = {
        f"{len(gathered.problems)} results are left out.": gathered.problems,
        f"{len(gathered.missing)} of {total} runs are missing; nothing stands in for them.": [
            f"{name} on {task}, seed {seed}" for name, task, seed in gathered.missing
        ],
        f"{len(summary.left_out)} of {len(summary.tasks)} tasks are not in the means normalised by"
        " the best baseline.": [f"{task}: {why}" for task, why in summary.left_out.items()],
    }
    return page.notes(remarks, lists)


def _described(contender: Contender, gathered: Gathered) -> dict[str, Any]:
    """A row on who a contender is."""
    history, config = gathered.histories[contender.name], gathered.config
    runs = sum(name == contender.name for name, _, _ in gathered.folders)
    agent, network = contender.agent, contender.agent.network
    steps = config.num_updates * config.agent.steps_per_update
    rate = runs * steps / history.train_seconds if history.train_seconds else 0.0
    learning = {
        "learning rate": "" if contender.kind == RANDOM else f"{agent.learning_rate:g}",
        "batch": f"{agent.batch_size} x {agent.unroll_length}",
        "replayed": f"{agent.replay_ratio:.0%}",
        "settings": f"torso {network.torso}, model {network.model}, heads {network.head}",
    }
    if contender.kind == AGENT:
        own = contender.source["hyper_parameters"]
        described = ", ".join(f"{name} {value}" for name, value in own.items())
        learning = dict.fromkeys(learning, "") | {"settings": described}
    return {
        "contender": contender.name,
        "kind": contender.kind,
        "runs": runs,
        "seeds": len(gathered.seeds),
        "steps of a run": f"{steps:,}",
        **learning,
        "training": str(datetime.timedelta(seconds=round(history.train_seconds))),
        "steps/s": f"{rate:,.0f}",
        "devices": ", ".join(history.devices),
    }


def _provenance(source: Any) -> dict[str, Any]:
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


def _compared(comparison: Comparison, shown: Sequence[Contender], gathered: Gathered) -> str:
    """A scale's aggregates and plots."""
    scale, config = comparison.scale, gathered.config
    without = [
        f"{name} has no run on {', '.join(tasks)}, and no aggregate here."
        for name, tasks in comparison.left_out.items()
    ]
    parts = [
        f"<h3>{scale.name}</h3>",
        page.paragraph(scale.definition),
        page.notes(without),
    ]
    if not comparison.aggregates:
        return "".join(parts)
    interval = f"{config.confidence:.0%} stratified bootstrap intervals over runs"
    parts += [
        page.paragraph(
            f"Aggregates, with {interval}. IQM: mean of the middle half of all runs. Optimality"
            " gap: how far runs stay below 1; less is better.",
            "quiet",
        ),
        page.aggregates(comparison, shown),
        page.plain_table(
            [
                {
                    "contender": name,
                    **{label: x.text(3) for label, x in found.items()},
                    "best on tasks": comparison.best[name],
                    "tasks above 1": f"{comparison.above_one[name]} of {scale.counted.sum()}",
                }
                for name, found in comparison.aggregates.items()
            ]
        ),
        "<h4>Sample efficiency</h4>",
        page.paragraph(f"IQM along the budget, with {interval}.", "quiet"),
        page.curves(comparison, shown),
        "<h4>Performance profiles</h4>",
        page.paragraph("How many runs score more than τ; higher is better.", "quiet"),
        page.profiles(comparison, shown),
    ]
    if improved := page.improvement(comparison, shown):
        parts += [
            "<h4>Probability of improvement</h4>",
            page.paragraph(
                "That a run of the first is better than one of the second, on a task drawn at"
                " random.",
                "quiet",
            ),
            improved,
        ]
    return "".join(parts)


def _add_aggregates(tables: _Tables, name: str, comparison: Comparison) -> None:
    for contender, found in comparison.aggregates.items():
        for label, estimate in found.items():
            tables.aggregates.append(
                {
                    "evaluation": name,
                    "scale": comparison.scale.name,
                    "tasks": int(comparison.scale.counted.sum()),
                    "contender": contender,
                    "aggregate": label,
                    **_numbers(estimate),
                }
            )
    for (contender, other), estimate in comparison.improvement.items():
        tables.improvement.append(
            {
                "evaluation": name,
                "scale": comparison.scale.name,
                "contender": contender,
                "other": other,
                **_numbers(estimate),
            }
        )


def _numbers(estimate: statistics.Estimate) -> dict[str, str]:
    return {part: _number(x) for part, x in estimate._asdict().items()}


def _number(value: float) -> str:
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _score_rows(
    gathered: Gathered, summary: Summary, found: Sequence[Scale]
) -> list[dict[str, Any]]:
    """A row for each task and agent, ours and the papers'."""
    config, rows = gathered.config, []
    steps = config.num_updates * config.agent.steps_per_update
    for i, task in enumerate(summary.tasks):
        for name, scores in summary.scores.items():
            value = statistics.mean(scores)[i]
            error = statistics.standard_error(scores)[i]
            row = {
                "task": task,
                "agent": name,
                "score": _number(value),
                "±": _number(error),
                "runs": int(np.isfinite(scores[i]).sum()),
                "budget": f"{steps:,} steps",
                "protocol": "this report",
                "source": "ours",
            }
            rows.append(row | _scaled(found, i, value))
        for metric in (RETURN, CRAFTER_SCORE):
            for score in published(task, metric):
                rows.append(_published_row(task, score) | _scaled(found, i, score.score, metric))
    return rows


def _scaled(
    found: Sequence[Scale], task: int, score: float, metric: str = RETURN
) -> dict[str, str]:
    """A score on each scale; empty where it has none."""
    row = {}
    for scale in found:
        value = np.nan
        if metric == RETURN and scale.counted[task] and np.isfinite(score):
            place = int(np.sum(scale.counted[:task]))
            low, high = scale.low[place], scale.high[place]
            value = min((score - low) / (high - low), scale.cap)
        row[scale.name] = _number(value)
    return row


def _protocols(tasks: Sequence[str]) -> list[str]:
    """Of the papers' tables that have scores on tasks."""
    used = {x.source for task in tasks for metric in METRICS for x in published(task, metric)}
    return [f"{x.source}: {x.protocol}" for x in tables() if x.source in used]


def _published_row(task: str, score: PublishedScore) -> dict[str, Any]:
    budget = "" if score.budget is None else f"{score.budget:,} {score.budget_unit}"
    differs = "the paper's" + (f", measured on {score.task}" if score.task != task else "")
    if score.metric != RETURN:
        differs += f"; a {score.metric.replace('_', ' ')}"
    return {
        "task": task,
        "agent": score.agent,
        "score": f"{score.score:.12g}",
        "±": "" if score.plus_minus is None else f"{score.plus_minus:g}",
        "runs": len(score.runs) or "",
        "budget": budget,
        "protocol": differs,
        "source": score.source + (f" ({score.note})" if score.note else ""),
    }


def _task_curves(gathered: Gathered, shown: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    """By task and contender: environment steps, and mean, low and high."""
    found: dict[str, dict[str, Any]] = {}
    histories = [gathered.histories[contender.name] for contender in shown]
    for i, task in enumerate(gathered.tasks):
        updates, joined = coarsen(histories, np.arange(len(gathered.tasks)) == i)
        steps = updates * gathered.config.agent.steps_per_update
        found[task] = {}
        for contender, episodes in zip(shown, joined, strict=True):
            returns = episodes.mean_return[0].T
            middle, error = statistics.mean(returns), statistics.standard_error(returns)
            found[task][contender.name] = (
                steps,
                np.stack([middle, middle - error, middle + error]),
            )
    return found


def _strips(gathered: Gathered, shown: Sequence[Contender]) -> str:
    """What agents did at their runs' ends, as far as pictures of it were kept."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    left_out, size = 0, 0
    for task, contender in itertools.product(gathered.tasks, shown):
        kept = (gathered.pictures(contender.name, task, seed) for seed in gathered.seeds)
        for caption, picture in next(filter(None, kept), []):
            if size + len(picture) > _MOST_STRIP_BYTES:
                left_out += 1
                continue
            size += len(picture)
            found.setdefault(task, []).append((f"{contender.name}, {caption}", picture))
    if not found:
        return ""
    remark = f"{left_out} more are in the runs' folders: the page would be too large."
    return "".join(
        [
            "<h3>What agents do</h3>",
            page.paragraph(
                "An episode of an agent at the end of a run, evenly spaced; and what agents that"
                " have a model of the world expect.",
                "quiet",
            ),
            page.notes([remark] if left_out else []),
            page.strips(found),
        ]
    )


def _achievements(gathered: Gathered, shown: Sequence[Contender]) -> str:
    """Crafter's success rates and scores; empty without them."""
    parts = []
    for i, task in enumerate(gathered.tasks):
        rates, rows = {}, []
        for contender in shown:
            results = gathered.histories[contender.name].results
            if not set(crafter.ACHIEVEMENTS) <= set(results):
                continue
            by_seed = np.stack([results[name][i] for name in crafter.ACHIEVEMENTS], axis=-1)
            by_seed = by_seed[np.isfinite(by_seed).all(axis=-1)]
            if not len(by_seed):
                continue
            rates[contender.name] = dict(
                zip(crafter.ACHIEVEMENTS, 100.0 * by_seed.mean(axis=0), strict=True)
            )
            scores = statistics.crafter_score(by_seed)
            rows.append(
                {
                    "contender": contender.name,
                    "Crafter score (%)": _with_error(scores),
                    "runs": len(scores),
                    "source": "ours",
                }
            )
        if rates:
            rows += [
                {
                    "contender": score.agent,
                    "Crafter score (%)": f"{score.score} ± {score.plus_minus}",
                    "runs": "",
                    "source": score.source,
                }
                for score in published(task, CRAFTER_SCORE)
            ]
            parts += [
                f"<h3>Achievements in {task}</h3>",
                page.paragraph(
                    "Success rates in the episodes of the score's window, and their geometric mean"
                    " with an offset of 1% (the Crafter score), of each run, ± standard error. The"
                    " papers' are of 1M steps.",
                    "quiet",
                ),
                page.plain_table(rows),
                page.success_rates(rates, shown),
            ]
    return "".join(parts)


def _with_error(values: np.ndarray) -> str:
    error = statistics.standard_error(values[None])[0]
    return f"{np.mean(values):.2f}" + ("" if np.isnan(error) else f" ± {error:.2f}")


def _capabilities(gathered: Gathered, shown: Sequence[Contender]) -> str:
    """bsuite's scores by capability; empty without them."""
    settings = [task for task in gathered.tasks if task.startswith("bsuite/")]
    if not settings or gathered.config.agent.num_environments != 1:
        return ""
    by_contender: dict[str, list[bsuite_scores.Scores]] = {}
    problems = []
    for contender, seed in itertools.product(shown, gathered.seeds):
        try:
            runs = {task: _episodes(gathered, contender.name, task, seed) for task in settings}
        except ValueError as error:
            problems.append(f"{contender.name} with seed {seed} is left out. {error}")
            continue
        if all(runs.values()):
            by_contender.setdefault(contender.name, []).append(bsuite_scores.score(runs))
    if not by_contender:
        return page.notes(problems)
    tags = {
        name: {tag: float(np.mean([x.tags[tag] for x in seeds])) for tag in seeds[0].tags}
        for name, seeds in by_contender.items()
    }
    experiments = {
        name: {e: float(np.mean([x.experiments[e] for x in seeds])) for e in seeds[0].experiments}
        for name, seeds in by_contender.items()
    }
    rows = []
    for experiment in next(iter(experiments.values())):
        papers = {
            f"{x.agent} (paper)": f"{x.score:.3f}"
            for x in published(f"bsuite/{experiment}", BSUITE_SCORE)
        }
        ours = {name: f"{scores[experiment]:.3f}" for name, scores in experiments.items()}
        rows.append({"experiment": experiment, **ours, **papers})
    unfinished = sorted(
        {x for seeds in by_contender.values() for one in seeds for x in one.unfinished}
    )
    remark = (
        [
            f"Fewer episodes than bsuite asks for, or not all settings, in {len(unfinished)}"
            " experiments: their scores are of what there is."
        ]
        if unfinished
        else []
    )
    return "".join(
        [
            "<h3>Capabilities (bsuite)</h3>",
            page.notes([*problems, *remark]),
            page.radar(tags, shown),
            page.plain_table([{k: row.get(k, "") for k in rows[0]} for row in rows]),
        ]
    )


def _episodes(gathered: Gathered, contender: str, task: str, seed: int) -> list[Episode]:
    """Of a run; none where they were not kept.

    Raises:
      ValueError: saying what is damaged, if they cannot be read.
    """
    try:
        episodes = gathered.episodes(contender, task, seed)
        for one in episodes:
            numbers = (one.episode_return, one.length, *one.results.values())
            if not all(isinstance(x, int | float) for x in numbers):
                raise TypeError(f"expected numbers, found {one}")
        return episodes
    except (AttributeError, KeyError, TypeError) as error:
        folder = gathered.folders[contender, task, seed]
        raise ValueError(f"The episodes in {folder} are damaged ({error!r}).") from error


def _discovery(one: Discovery) -> str:
    last = one.reports[-1]
    row = {
        "meta-steps": f"{last['meta_step']:,}",
        "environment steps": f"{last.get('environment_steps') or 0:,}",
        "agents": len(last["agents"]["task"]),
        "suite": one.config.get("suite", ""),
        "seed": one.config.get("seed", ""),
        "rebirths": sum(report.get("reborn_agents") or 0 for report in one.reports),
        "non-finite": sum(report.get("non_finite_agents") or 0 for report in one.reports),
    }
    left_out = page.notes([], {f"{len(one.problems)} reports are left out.": one.problems})
    return left_out + page.plain_table([row]) + page.discovery(one.reports)


def _reproduced(found: Sequence[published_aggregates.Reproduction]) -> str:
    rows = [
        {
            "agent": row.aggregate.agent,
            "statistic": row.aggregate.statistic.replace("_", " "),
            "tasks": row.tasks,
            "printed": row.aggregate.printed,
            "computed": row.computed,
            "source": row.source,
            "why they differ": "" if row.agrees else row.aggregate.explanation,
        }
        for row in found
    ]
    agree = sum(row.agrees for row in found)
    return page.paragraph(
        f"What papers print over all tasks, and what our statistics make of the scores that they"
        f" print: {agree} of {len(found)} agree to the last digit."
    ) + page.data_table(pd.DataFrame(rows))

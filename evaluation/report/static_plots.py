"""Plots as files (Matplotlib): learning curves of evaluations, of discoveries, and of sweeps.

Names of rules, tasks and sweep points are drawn literally, never as mathematical text.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from disco_common.terminal import printable
from evaluation.config import EvaluationConfig
from evaluation.contenders import DISCOVERED, RANDOM, Contender
from evaluation.report.drawing import Drawing, plot_style
from evaluation.report.texts import number_of, over_seeds
from evaluation.results import LearningCurves
from evaluation.scoring.curves import Curves, task_curves
from evaluation.scoring.summary import Summary

# Okabe and Ito's colours, safe for colour-blind readers; some more so that all baselines differ,
# legible on white and on black. Discovered rules have the warm ones.
_RULE_COLOURS = ("#D55E00", "#CC79A7", "#E69F00", "#F0E442")
_BASELINE_COLOURS = (
    *("#0072B2", "#009E73", "#56B4E9", "#9467BD"),
    *("#999933", "#8C564B", "#8BC34A", "#4B5FE0", "#00A8A8"),
)
_RANDOM_COLOUR = "#888888"


def learning_curves(
    summary: Summary,
    contenders: Sequence[Contender],
    contender_curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
) -> Drawing:
    """Return a plot with a panel per task: each contender's mean return ± standard error."""
    num_tasks = len(summary.tasks)
    columns = min(num_tasks, max(2, math.ceil(math.sqrt(num_tasks))))
    rows = math.ceil(num_tasks / columns)
    with plot_style():
        size = (max(5.5, 2.5 * columns), 1.8 * rows + 1.1)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for panel in panels[num_tasks:]:
            panel.set_visible(False)
        prefix, colours = _common_prefix(summary.tasks), colours_of(contenders)
        shown = {contender.name: contender_curves[contender.name] for contender in contenders}
        lines = []  # Of the last panel; all have the same.
        for i, (task, panel) in enumerate(zip(summary.tasks, panels, strict=False)):
            panel.set_title(printable(task.removeprefix(prefix)))
            steps, curves = task_curves(shown, i, num_tasks, config)
            lines = [
                draw_curve(panel, contender, steps, curves[contender.name], colour)
                for contender, colour in zip(contenders, colours, strict=True)
            ]
            _format(panel)
            if i + columns >= num_tasks:
                panel.xaxis.set_tick_params(labelbottom=True)
                panel.set_xlabel("environment steps")
        figure.supylabel("mean episode return", fontsize=9)
        title = printable(prefix.rstrip("/")) or "Learning curves"
        figure.suptitle(f"{title}: mean{over_seeds(config.seeds)}")
        add_legend(figure, lines, [contender.name for contender in contenders])
        return Drawing.of(figure)


def mean_curves(
    summary: Summary,
    contenders: Sequence[Contender],
    curves_over_tasks: Curves,
    config: EvaluationConfig,
) -> Drawing:
    """Return a plot of the mean normalised return over tasks, with bootstrap intervals."""
    with plot_style():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        panel = figure.subplots()
        steps, curves = curves_over_tasks
        lines = [
            draw_curve(panel, contender, steps, curves[contender.name], colour)
            for contender, colour in zip(contenders, colours_of(contenders), strict=True)
        ]
        panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        panel.axhline(0.0, color="black", linewidth=0.8, linestyle=":")
        _format(panel)
        panel.set_xlabel("environment steps")
        panel.set_ylabel("normalised return (0 random, 1 reference)")
        panel.set_title(
            f"Mean over {number_of('task', int(summary.counted.sum()))},"
            f" {number_of('seed', config.seeds)}, {config.confidence:.0%} bootstrap interval"
        )
        add_legend(figure, lines, [contender.name for contender in contenders])
        return Drawing.of(figure)


# Fields of a discovery's metrics (see `meta.run.summarize`), with the panels' titles.
DISCOVERY_PANELS = {
    "validation_reward": "meta-return: reward per validation step",
    "policy_entropy": "entropy of the agents' policies (nats)",
    "target_kl": "KL(target network || policy target)",
    "meta_gradient_norm": "norm of the agents' meta-gradients",
}
PROBE = "probe_score"
PROBE_PANEL = "score of fresh agents on discovery tasks (0: random policy, 1: reference)"


def discovery_curves(
    metrics: Sequence[Mapping[str, Any]], baselines: Mapping[str, float] | None = None
) -> Drawing:
    """Return a plot of a discovery's metrics by meta-step, as means over the population.

    Probes have the first panel. That of the meta-return has a band from the lower to the upper
    quartile of the agents.

    Args:
      metrics: the records of the discovery (`evaluation.report.discovery_metrics`).
      baselines: scores of other contenders on the probes' tasks, by name.
    """
    probes = {x["meta_step"]: x[PROBE] for x in metrics if PROBE in x}
    steps = [record["meta_step"] for record in metrics]
    by_agent = [record["agents"]["validation_reward"] for record in metrics]
    finite = [[x for x in returns if x is not None] or [np.nan] for returns in by_agent]
    with plot_style():
        figure = Figure(figsize=(8.0, 7.0 if probes else 5.0), layout="constrained")
        by_name = figure.subplot_mosaic("ee;ab;cd" if probes else "ab;cd", sharex=True)
        panels = [by_name[name] for name in "abcd"]
        for panel, (name, title) in zip(panels, DISCOVERY_PANELS.items(), strict=True):
            values = [np.nan if record[name] is None else record[name] for record in metrics]
            marker = "." if len(steps) == 1 else None
            panel.plot(steps, values, color=_RULE_COLOURS[0], linewidth=1.3, marker=marker)
            panel.set_title(title)
            _format(panel)
        low, high = (np.array([np.quantile(x, q) for x in finite]) for q in (0.25, 0.75))
        panels[0].fill_between(steps, low, high, color=_RULE_COLOURS[0], alpha=0.18, linewidth=0)
        if probes:
            _draw_probes(by_name["e"], probes, baselines or {})
        for panel in panels[2:]:
            panel.set_xlabel("meta-steps")
        figure.suptitle("Discovery: mean over the agents; band: their middle half")
        return Drawing.of(figure)


def _draw_probes(panel: Axes, probes: Mapping[int, float], baselines: Mapping[str, float]) -> None:
    """Draw the scores of fresh agents by meta-step, beside those of others."""
    panel.plot(list(probes), list(probes.values()), color=_RULE_COLOURS[0], marker="o")
    for height in (0.0, 1.0):
        panel.axhline(height, color="black", linewidth=0.8, linestyle=":")
    for (name, score), colour in zip(
        baselines.items(), itertools.cycle(_BASELINE_COLOURS), strict=False
    ):
        panel.axhline(score, color=colour, linewidth=1.0, linestyle="--")
        place = (1.0, score), panel.get_yaxis_transform()
        panel.annotate(printable(name), place[0], xycoords=place[1], color=colour, va="center")
    panel.set_title(PROBE_PANEL)
    panel.xaxis.set_tick_params(labelbottom=True)
    _format(panel)


def sweep_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> Drawing:
    """Return a plot of the population's mean reward by meta-step, a line per sweep point.

    Args:
      points: the metrics (see `discovery_curves`) of each point's discovery, by name. More than 20
        records are reduced to 20 means over neighbouring ones.
    """
    colours = (*_BASELINE_COLOURS, *_RULE_COLOURS)
    styles = ("-", "--", ":", "-.")
    with plot_style():
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        panel, drawn = figure.subplots(), []
        for i, metrics in enumerate(points.values()):
            known = [x for x in metrics if x["validation_reward"] is not None]
            parts = np.array_split(np.arange(len(known)), max(1, min(len(known), 20)))
            rewards = [x["validation_reward"] for x in known]
            drawn += panel.plot(
                [known[part[-1]]["meta_step"] for part in parts if part.size],
                [np.mean([rewards[k] for k in part]) for part in parts if part.size],
                color=colours[i % len(colours)],
                linestyle=styles[i // len(colours) % len(styles)],
                linewidth=1.3,
                marker="." if len(parts) == 1 else None,
            )
        _format(panel)
        panel.set_xlabel("meta-steps")
        panel.set_ylabel(DISCOVERY_PANELS["validation_reward"])
        panel.set_title("Discoveries: mean over the agents")
        add_legend(figure, drawn, list(points))
        return Drawing.of(figure)


def score_matrix(
    scores: Mapping[str, Mapping[str, tuple[Mapping[str, float], Sequence[float]]]],
) -> Drawing:
    """Return a plot of the scores of variants of discovery: a row for each, a panel for each suite.

    Args:
      scores: by variant and suite; the score over all discoveries, `value`, with the ends of its
        interval, `low` and `high`, and that of each discovery, which is drawn as a point.
    """
    suites = list(next(iter(scores.values())))
    rows = np.arange(len(scores))[::-1]
    with plot_style():
        size = (2.2 + 2.6 * len(suites), 1.2 + 0.3 * len(scores))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(suites), squeeze=False, sharey=True)[0]
        for panel, suite in zip(panels, suites, strict=True):
            for row, of_variant in zip(rows, scores.values(), strict=True):
                over_all, each = of_variant[suite]
                ends = [over_all["low"], over_all["high"]]
                panel.plot(ends, [row, row], color=_BASELINE_COLOURS[0], linewidth=2.0)
                panel.plot(over_all["value"], row, color=_BASELINE_COLOURS[0], marker="o")
                panel.plot(
                    each, [row] * len(each), ".", color=_RULE_COLOURS[0], markersize=4, zorder=3
                )
            panel.set_title(printable(suite))
            panel.xaxis.set_major_locator(MaxNLocator(4))
        panels[0].set_yticks(rows, [printable(variant) for variant in scores])
        figure.supxlabel("normalised IQM, 95% interval; points: each discovery")
        return Drawing.of(figure)


def draw_curve(
    panel: Axes,
    contender: Contender,
    steps: Shaped[np.ndarray, "points"],
    curve: Float[np.ndarray, "3 points"],
    colour: str,
) -> Line2D:
    """Draw a line with a band: value, low and high end. Return the line."""
    middle, low, high = curve
    is_discovered = contender.kind == DISCOVERED
    (line,) = panel.plot(
        steps,
        middle,
        color=colour,
        linewidth=1.8 if is_discovered else 1.3,
        linestyle="--" if contender.kind == RANDOM else "-",
        marker="." if len(steps) == 1 else None,
        zorder=3 if is_discovered else 2,
    )
    panel.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    return line


def add_legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    """Add a legend below all panels, with as many columns as fit the width.

    Args:
      figure: to add it to.
      lines: entries.
      names: labels of the entries. They are not set as the lines' own labels, because Matplotlib
        omits labels that start with an underscore.
    """
    labels = [printable(name) for name in names]
    room = max(1, int(figure.get_figwidth() / (0.4 + 0.055 * max(map(len, labels)))))
    rows = math.ceil(len(labels) / room)
    columns = math.ceil(len(labels) / rows)  # Rows of similar length.
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns)


def _format(panel: Axes) -> None:
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.yaxis.set_major_locator(MaxNLocator(4))
    panel.set_xlim(left=0)


def colours_of(contenders: Sequence[Contender]) -> list[str]:
    """Return a colour for each: warm for discovered rules, grey for random, cold for the others."""
    rules, baselines = itertools.cycle(_RULE_COLOURS), itertools.cycle(_BASELINE_COLOURS)
    by_kind = {DISCOVERED: rules, RANDOM: itertools.cycle((_RANDOM_COLOUR,))}
    return [next(by_kind.get(contender.kind, baselines)) for contender in contenders]


def styled(
    contenders: Sequence[Contender], found: Mapping[str, Any]
) -> Iterator[tuple[Contender, str]]:
    """Yield each contender in `found`, and its colour."""
    shown = [x for x in contenders if x.name in found]
    yield from zip(shown, colours_of(shown), strict=True)


def _common_prefix(names: Sequence[str]) -> str:
    """Return the suite's name and a slash if all tasks are of one suite; else an empty string."""
    prefixes = {name.partition("/")[0] + "/" for name in names if "/" in name}
    is_common = len(prefixes) == 1 and all("/" in name for name in names) and len(names) > 1
    return prefixes.pop() if is_common else ""

"""The figures of an evaluation: learning curves, comparisons of contenders, and suites' own."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from disco_common.terminal import printable
from evaluation.contenders import AlgorithmContender, Contender
from evaluation.report import drawing
from evaluation.report.drawing import Drawing, plot_style
from evaluation.report.run_files import Panels
from evaluation.report.tables import number_of, over_seeds
from evaluation.scoring import statistics
from evaluation.scoring.curves import task_curves
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.statistics import AGGREGATES

_MOST_COLUMNS = 5  # Panels side by side that can be read on a screen.
_ROW = 0.24  # Inches, as is this:
_LETTER = 0.075
_MAX_PAIRS = 66  # That plots show: all pairs of a dozen contenders.


def learning_curves(evaluation: Evaluation, contenders: Sequence[Contender]) -> Drawing:
    """Return a plot with a panel per task: each contender's mean return ± standard error."""
    config, tasks = evaluation.config, evaluation.tasks
    num_tasks = len(tasks)
    columns = min(num_tasks, _MOST_COLUMNS, max(2, math.ceil(math.sqrt(num_tasks))))
    rows = math.ceil(num_tasks / columns)
    shown = {x.name: evaluation.contender_curves[x.name] for x in contenders}
    styled, prefix = drawing.styled(contenders, shown), _common_prefix(tasks)
    with plot_style():
        size = (max(5.5, 2.5 * columns), 1.8 * rows + 1.1)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for panel in panels[num_tasks:]:
            panel.set_visible(False)
        lines = []  # Of the last panel; all have the same.
        for i, (task, panel) in enumerate(zip(tasks, panels, strict=False)):
            panel.set_title(printable(task.removeprefix(prefix)))
            steps, curves = task_curves(shown, i, num_tasks, config)
            lines = [
                drawing.draw_curve(panel, one, steps, curves[one.name], colour)
                for one, colour in styled
            ]
            drawing.format_axes(panel)
            if i + columns >= num_tasks:
                panel.xaxis.set_tick_params(labelbottom=True)
                panel.set_xlabel("environment steps")
        figure.supylabel("mean episode return", fontsize=9)
        title = printable(prefix.rstrip("/")) or "Learning curves"
        figure.suptitle(f"{title}: mean{over_seeds(config.seeds)}")
        drawing.add_legend(figure, lines, list(shown))
        return Drawing.of(figure)


def mean_curves(comparison: Comparison, contenders: Sequence[Contender]) -> Drawing:
    """Return a plot of the mean normalised return over tasks, with bootstrap intervals."""
    steps, curves = comparison.curves(statistics.mean_over_tasks)
    config, num_tasks = comparison.config, int(comparison.scale.counted.sum())
    with plot_style():
        figure = _lines(
            [("environment steps", {name: (steps, x) for name, x in curves.items()})],
            contenders,
            "normalised return (0 random, 1 reference)",
            f"Mean over {number_of('task', num_tasks)},"
            f" {number_of('seed', config.seeds)}, {config.confidence:.0%} bootstrap interval",
        )
        for height in (0.0, 1.0):
            figure.axes[0].axhline(height, color="black", linewidth=0.8, linestyle=":")
        return Drawing.of(figure)


def compared(comparison: Comparison, contenders: Sequence[Contender]) -> dict[str, Drawing]:
    """Return all plots of a comparison, by name; none if no contender has an aggregate.

    Of the two intervals of a number the thick one is over seeds, the thin one over tasks and seeds.

    Args:
      comparison: on a scale.
      contenders: in the legends' order.
    """
    if not comparison.aggregates:
        return {}
    found = {"aggregates": _aggregates(comparison, contenders)}
    if _shown_pairs(comparison, contenders):
        found["improvement"] = _improvement(comparison, contenders)
    profiles = {name: (comparison.thresholds, x) for name, x in comparison.profiles.items()}
    steps, curves = comparison.curves(statistics.interquartile_mean)
    # By the axis, what a step of the environment is on it.
    axes = {
        "environment steps": dict.fromkeys(curves, 1.0),
        "gradient steps": comparison.gradient_steps,
        "wall seconds of a run": comparison.seconds,
    }
    efficiency = []
    for axis, by in axes.items():
        known = {name: x for name, x in curves.items() if by.get(name)}
        if known:
            efficiency.append((axis, {k: (steps * by[k], x) for k, x in known.items()}))
    with plot_style():
        label = "fraction of runs with score > τ"
        figure = _lines([("score τ", profiles)], contenders, label, is_steps=False)
        found["profiles"] = Drawing.of(figure)
        found["efficiency"] = Drawing.of(_lines(efficiency, contenders, "IQM"))
    return found


def _aggregates(comparison: Comparison, contenders: Sequence[Contender]) -> Drawing:
    """Return a panel for each aggregate, with each contender's value and intervals."""
    shown = drawing.styled(contenders, comparison.aggregates)[::-1]
    with plot_style():
        size = (1.6 + 1.9 * len(AGGREGATES), 0.9 + _ROW * len(shown))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(AGGREGATES), sharey=True)
        for panel, label in zip(panels, AGGREGATES, strict=True):
            for row, (contender, colour) in enumerate(shown):
                estimate = comparison.aggregates[contender.name][label]
                drawing.draw_interval(panel, row, contender.name, estimate, colour)
            panel.set_title(label)
            panel.xaxis.set_major_locator(MaxNLocator(4))
        names = [contender.name for contender, _ in shown]
        drawing.name_rows(panels[0], list(map(drawing.short_name, names)), names)
        return Drawing.of(figure)


def _shown_pairs(comparison: Comparison, contenders: Sequence[Contender]) -> list[tuple[str, str]]:
    """Return the pairs whose probability of improvement is shown; of many, those with an algorithm.

    The first of a pair comes before the second.
    """
    shown = [x for x in contenders if x.name in comparison.scores]
    pairs = list(itertools.combinations([x.name for x in shown], 2))
    if len(pairs) <= _MAX_PAIRS:
        return pairs
    references = {x.name for x in shown if isinstance(x, AlgorithmContender)}
    return [pair for pair in pairs if references & set(pair)] or pairs


def _improvement(comparison: Comparison, contenders: Sequence[Contender]) -> Drawing:
    """Return the probability of improvement of each shown pair."""
    pairs = _shown_pairs(comparison, contenders)[::-1]
    colours = {x.name: colour for x, colour in drawing.styled(contenders, comparison.aggregates)}
    names = [" > ".join(map(drawing.short_name, pair)) for pair in pairs]
    width = max(6.4, 3.0 + _LETTER * max(map(len, names)))
    with plot_style():
        figure = Figure(figsize=(width, 0.9 + _ROW * len(pairs)), layout="constrained")
        panel = figure.subplots()
        for row, pair in enumerate(pairs):
            estimate, colour = comparison.improvement[pair], colours[pair[0]]
            drawing.draw_interval(panel, row, names[row], estimate, colour)
        panel.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
        panel.set_xlim(-0.02, 1.02)
        panel.set_xlabel("probability of improvement")
        drawing.name_rows(panel, names)
        return Drawing.of(figure)


def _lines(
    panels: Sequence[
        tuple[str, Mapping[str, tuple[Shaped[np.ndarray, "points"], Float[np.ndarray, "3 points"]]]]
    ],
    contenders: Sequence[Contender],
    ylabel: str,
    title: str = "",
    is_steps: bool = True,
) -> Figure:
    """Return panels side by side, with a line and a band for each contender that has one.

    Args:
      panels: the label of the lower axis, and by contender points on it and the values there.
      contenders: in the legend's order; the first panel has each contender that another one has.
      ylabel: of all panels.
      title: of the figure.
      is_steps: whether the lower axes begin at 0.
    """
    figure = Figure(figsize=(6.4 if len(panels) == 1 else 3.8 * len(panels), 4.2))
    figure.set_layout_engine("constrained")
    colours = {x.name: (x, colour) for x, colour in drawing.styled(contenders, panels[0][1])}
    lines: list[Artist] = []
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (xlabel, found) in zip(axes, panels, strict=True):
        drawn = [
            drawing.draw_curve(panel, *(contender, *found[name], colour))
            for name, (contender, colour) in colours.items()
            if name in found
        ]
        lines = lines or list(drawn)
        panel.set_xlabel(xlabel)
        if is_steps:
            drawing.format_axes(panel)
    axes[0].set_ylabel(ylabel)
    axes[0].set_title(title)
    drawing.add_legend(figure, lines, list(colours))
    return figure


def success_rates(
    rates: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]
) -> Drawing:
    """Return bars of the success rate of each achievement, on a logarithmic scale.

    Args:
      rates: by contender and achievement, in percent.
      contenders: in the legend's order.
    """
    shown = drawing.styled(contenders, rates)
    names = list(next(iter(rates.values())))[::-1]
    height, least = 0.8 / len(shown), 0.01
    with plot_style():
        size = (7.0, 1.2 + len(names) * max(_ROW, 0.09 * len(shown)))
        figure = Figure(figsize=size, layout="constrained")
        panel = figure.subplots()
        for i, (contender, colour) in enumerate(shown):
            for row, name in enumerate(names):
                rate = rates[contender.name][name]
                place, width = row + 0.4 - (i + 0.5) * height, max(rate - least, 0.0)
                [bar] = panel.barh(place, width, height, left=least, color=colour)
                drawing.mark(bar, contender.name, f"{contender.name}: {name} {rate:.2f}%")
        drawing.use_logarithms(panel, "x")
        panel.set_xlim(least, 100.0)
        panel.set_xlabel("success rate (%)")
        drawing.name_rows(panel, list(map(printable, names)))
        patches = [Patch(color=colour) for _, colour in shown]
        drawing.add_legend(figure, patches, [contender.name for contender, _ in shown])
        return Drawing.of(figure)


def radar(scores: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]) -> Drawing:
    """Return a radar plot of bsuite's scores by tag.

    Args:
      scores: by contender and tag, between 0 and 1.
      contenders: in the legend's order.
    """
    tags = list(next(iter(scores.values())))
    angles = 2.0 * np.pi * np.arange(len(tags)) / len(tags)
    shown = drawing.styled(contenders, scores)
    with plot_style():
        figure = Figure(figsize=(6.4, 5.2), layout="constrained")
        panel = figure.subplots(subplot_kw={"projection": "polar"})
        lines = []
        for contender, colour in shown:
            own = [scores[contender.name][tag] for tag in tags]
            lines += panel.plot([*angles, angles[0]], [*own, own[0]], color=colour, linewidth=1.3)
            drawing.mark(lines[-1], contender.name)
        panel.set_ylim(0.0, 1.0)
        panel.set_xticks(angles, list(map(printable, tags)))
        drawing.add_legend(figure, lines, [contender.name for contender, _ in shown])
        return Drawing.of(figure)


def agent_metrics(tasks: Mapping[str, Panels]) -> Drawing:
    """Return an agent's metrics along its training: a row for each task, a column for each kind.

    Args:
      tasks: by name, the curves in each panel.
    """
    titles = list(dict.fromkeys(title for panels in tasks.values() for title in panels))
    with plot_style():
        size = (max(5.5, 3.6 * len(titles)), 0.6 + 2.2 * len(tasks))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(tasks), len(titles), squeeze=False, sharex=True)
        for column, title in enumerate(titles):
            own = [panels.get(title, {}) for panels in tasks.values()]
            names = list(dict.fromkeys(name for curves in own for name in curves))
            colours = dict(zip(names, itertools.cycle(drawing.COLOURS), strict=False))
            for panel, curves in zip(axes[:, column], own, strict=True):
                _draw_metrics(panel, curves, colours)
            legend = axes[-1, column].legend(
                [Line2D([], [], color=colour) for colour in colours.values()],
                list(map(printable, names)),
                loc="upper left",
                bbox_to_anchor=(0.0, -0.3),
            )
            for text, name in zip(legend.get_texts(), names, strict=True):
                drawing.mark(text, name)
            axes[0, column].set_title(printable(title))
            axes[-1, column].set_xlabel("environment steps")
        for panel, task in zip(axes[:, 0], tasks, strict=True):
            panel.set_ylabel(drawing.short_name(task))
        return Drawing.of(figure)


def _draw_metrics(
    panel: Axes,
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    colours: Mapping[str, str],
) -> None:
    """Draw a line for each metric; nothing at all without any."""
    for name, (steps, values) in curves.items():
        marker = "." if len(steps) == 1 else None
        (line,) = panel.plot(steps, values, color=colours[name], linewidth=1.3, marker=marker)
        drawing.mark(line, name)
    drawing.format_axes(panel)
    if not curves:
        panel.set_axis_off()


def _common_prefix(names: Sequence[str]) -> str:
    """Return the suite's name and a slash if all tasks are of one suite; else an empty string."""
    prefixes = {name.partition("/")[0] + "/" for name in names if "/" in name}
    is_common = len(prefixes) == 1 and all("/" in name for name in names) and len(names) > 1
    return prefixes.pop() if is_common else ""

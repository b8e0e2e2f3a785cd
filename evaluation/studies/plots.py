"""The figures of the studies of rules."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from disco_common.terminal import printable
from evaluation.report.drawing import (
    COLOURS,
    Drawing,
    add_legend,
    plot_style,
    use_logarithms,
)

_ORANGE, _GREEN = "#D55E00", "#009E73"
_PALETTE = (_ORANGE, COLOURS[0], "#E69F00", _GREEN, "#CC79A7")

Point = tuple[float, float, float, str]
"""x, y, the standard error of y, and the setting that it is of."""


def time_series(
    rows: Mapping[str, Float[np.ndarray, "steps"]], marks: Sequence[int], xlabel: str = "step"
) -> Drawing:
    """Return quantities along an episode, one panel each, with vertical lines at some steps."""
    with plot_style():
        figure = Figure(figsize=(9.0, 1.2 * len(rows) + 0.5), layout="constrained")
        panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
        for panel, (name, values) in zip(panels, rows.items(), strict=True):
            panel.plot(values, color=_ORANGE, linewidth=1.0)
            panel.set_title(printable(name))
            panel.yaxis.set_major_locator(MaxNLocator(3))
            for step in marks:
                panel.axvline(step, color="black", linewidth=0.8, linestyle=":")
        panels[-1].set_xlabel(xlabel)
        return Drawing.of(figure)


def line_panels(
    x: Float[np.ndarray, "points"],
    panels: Mapping[str, Mapping[str, Float[np.ndarray, "points"]]],
    xlabel: str,
    ylabel: str,
    log: str = "",
) -> Drawing:
    """Return a panel for each title, side by side, with a line over x for each name.

    All panels have the same names. `log` has the axes that are logarithmic, of "x" and "y".
    """
    names = list(next(iter(panels.values())))
    with plot_style():
        size = (max(6.4, 2.8 * len(panels)), 3.6)
        figure, lines = Figure(figsize=size, layout="constrained"), []
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (title, curves) in zip(axes, panels.items(), strict=True):
            lines = [
                _line(panel, x, curves[name], colour)
                for name, colour in zip(names, itertools.cycle(_PALETTE), strict=False)
            ]
            panel.set_title(printable(title))
            panel.set_xlabel(xlabel)
            use_logarithms(panel, log)
        axes[0].set_ylabel(ylabel)
        if len(names) > 1:
            add_legend(figure, lines, names)
        return Drawing.of(figure)


def points(
    by_name: Mapping[str, Sequence[Point]], xlabel: str, ylabel: str, log: bool = False
) -> Drawing:
    """Return a line through points with error bars for each name; `log` is of the lower axis."""
    with plot_style():
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        panel, lines = figure.subplots(), []
        for found, colour in zip(by_name.values(), itertools.cycle(_PALETTE), strict=False):
            x, y, errors, _ = zip(*found, strict=True) if found else ((), (), (), ())
            panel.errorbar(x, y, errors, color=colour, linewidth=0.0, elinewidth=1.0)
            lines.append(_line(panel, x, y, colour))
            panel.plot(x, y, "o", color=colour, markersize=4)
        if log:
            use_logarithms(panel, "x")
            panel.set_xticks(sorted({x for found in by_name.values() for x, *_ in found}))
        panel.set(xlabel=xlabel, ylabel=ylabel)
        add_legend(figure, lines, list(by_name))
        return Drawing.of(figure)


def bars(groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> Drawing:
    """Return a panel for each group, with a bar and an error bar for each name."""
    with plot_style():
        longest = max(len(name) for found in groups.values() for name in found)
        size = (max(5.5, 2.4 * len(groups)), 2.4 + 0.06 * longest)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(groups), squeeze=False)[0]
        for panel, (title, found) in zip(panels, groups.items(), strict=True):
            values, errors = zip(*found.values(), strict=True)
            panel.bar(range(len(found)), values, yerr=errors, color=COLOURS[0])
            panel.set_xticks(range(len(found)), list(map(printable, found)), rotation=90)
            panel.set_title(printable(title))
        return Drawing.of(figure)


def evolution(rows: Sequence[Mapping[str, Any]], by_weight: Mapping[str, Sequence[str]]) -> Drawing:
    """Return fitness, learning rate and weights of a rule's prior by generation.

    A row of a generation has "best_fitness", "mean_fitness", "learning_rate" and columns `weight
    point`; `by_weight` has the names of each weight's points.
    """
    generations = range(1, len(rows) + 1)
    with plot_style():
        names = ["fitness", "learning_rate", *by_weight]
        figure = Figure(figsize=(3.1 * len(names), 3.0), layout="constrained")
        panels = dict(zip(names, figure.subplots(1, len(names)), strict=True))
        shown = [("fitness", "best_fitness", "best fitness", _ORANGE)]
        shown += [("fitness", "mean_fitness", "mean fitness", COLOURS[0])]
        shown += [("learning_rate", "learning_rate", "", COLOURS[0])]
        for weight, ages in by_weight.items():
            for age, colour in zip(ages, (COLOURS[0], *_PALETTE[:1], *_PALETTE[3:]), strict=False):
                shown.append((weight, f"{weight} {age}", age, colour))
        for panel, column, label, colour in shown:
            values = [row[column] for row in rows]
            style = {"label": label, "color": colour, "marker": ".", "markersize": 3}
            panels[panel].plot(generations, values, **style)
        for name, panel in panels.items():
            panel.set_title(name.replace("_", " "))
            panel.set_xlabel("generation")
            panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            if name.endswith("advantage_weight"):
                use_logarithms(panel, "y")
        handles, labels = panels[names[-1]].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=len(labels))
        panels["fitness"].legend()
        return Drawing.of(figure)


def _line(panel: Axes, x: Any, y: Any, colour: str) -> Any:
    (line,) = panel.plot(x, y, color=colour, linewidth=1.3)
    return line

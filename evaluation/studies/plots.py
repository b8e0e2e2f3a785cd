"""The figures of the studies of rules."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from disco_common.terminal import printable
from evaluation.report.drawing import (
    COLOURS,
    add_legend,
    drawn,
    use_logarithms,
)

_ORANGE = "#D55E00"
_PALETTE = (_ORANGE, COLOURS[0], "#E69F00", COLOURS[1], "#CC79A7", *COLOURS[2:])

Curve = Sequence[Shaped[np.ndarray, "_"]]
"""x, y, and the standard errors of y if there are any."""


@drawn
def time_series(
    rows: Mapping[str, Float[np.ndarray, "steps"]], marks: Sequence[int], xlabel: str = "step"
) -> Figure:
    """Return quantities along an episode, one panel each, with vertical lines at some steps."""
    figure = Figure(figsize=(9.0, 1.2 * len(rows) + 0.5))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
    for panel, (name, values) in zip(panels, rows.items(), strict=True):
        panel.plot(values, color=_ORANGE, linewidth=1.0)
        panel.set_title(printable(name))
        panel.yaxis.set_major_locator(MaxNLocator(3))
        for step in marks:
            panel.axvline(step, color="black", linewidth=0.8, linestyle=":")
    panels[-1].set_xlabel(xlabel)
    return figure


@drawn
def line_panels(
    panels: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabel: str,
    log: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Return a panel for each title, side by side, with a line for each name.

    A name has one colour in all panels. `log` has the axes that are logarithmic, of "x" and "y", by
    title.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(names)}
    size = (max(6.4, 2.8 * len(panels)), 3.6)
    figure, lines = Figure(figsize=size), {}
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, (x, y, *errors) in curves.items():
            marker = "o" if errors or len(x) == 1 else ""
            (lines[name],) = panel.plot(
                x, y, color=colours[name], linewidth=1.3, marker=marker, markersize=4
            )
            if errors:
                panel.errorbar(x, y, errors[0], fmt="none", ecolor=colours[name], elinewidth=1)
        panel.set(title=printable(title), xlabel=xlabel)
        use_logarithms(panel, log.get(title, ""))
        if "x" in log.get(title, ""):
            panel.set_xticks(sorted({value for x, *_ in curves.values() for value in x}))
    axes[0].set_ylabel(ylabel)
    if len(names) > 1:
        add_legend(figure, [lines[name] for name in names], names)
    return figure


@drawn
def bars(groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """Return a panel for each group, with a bar and an error bar for each name."""
    longest = max(len(name) for found in groups.values() for name in found)
    size = (max(5.5, 2.4 * len(groups)), 2.4 + 0.06 * longest)
    figure = Figure(figsize=size)
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for panel, (title, found) in zip(panels, groups.items(), strict=True):
        values, errors = zip(*found.values(), strict=True)
        panel.bar(range(len(found)), values, yerr=errors, color=COLOURS[0])
        panel.set_xticks(range(len(found)), list(map(printable, found)), rotation=90)
        panel.set_title(printable(title))
    return figure

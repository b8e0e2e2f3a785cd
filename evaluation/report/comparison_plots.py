"""Plots of comparisons as files (Matplotlib): aggregates, improvement, profiles, efficiency.

They show what the report's interactive plots show (`evaluation.report.plotly_figures`). Of the two
intervals of a number the thick one is over seeds, the thin one over tasks and seeds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, MaxNLocator

from disco_common.terminal import printable
from evaluation.contenders import Contender
from evaluation.report.drawing import Drawing, plot_style
from evaluation.report.static_plots import add_legend, draw_curve, styled
from evaluation.scoring.comparison import Comparison, shown_pairs
from evaluation.scoring.statistics import AGGREGATES, Estimate

_ROW = 0.24  # Inches, as are these:
_LETTER = 0.075
_LONGEST_NAME = 40  # Characters; a longer one would leave no room for the plot.


def draw(comparison: Comparison, contenders: Sequence[Contender]) -> dict[str, Drawing]:
    """Return all plots of a comparison, by name; none if no contender has an aggregate.

    Args:
      comparison: on a scale.
      contenders: in the legends' order.
    """
    if not comparison.aggregates:
        return {}
    found = {"aggregates": aggregates(comparison, contenders)}
    if shown_pairs(comparison, contenders):
        found["improvement"] = improvement(comparison, contenders)
    profiles = {name: (comparison.thresholds, x) for name, x in comparison.profiles.items()}
    efficiency = {name: (comparison.steps, x) for name, x in comparison.curves.items()}
    return found | {
        "profiles": _lines(
            profiles, contenders, xlabel="score τ", ylabel="fraction of runs with score > τ"
        ),
        "efficiency": _lines(
            efficiency, contenders, "environment steps", "IQM", EngFormatter(sep="")
        ),
    }


def aggregates(comparison: Comparison, contenders: Sequence[Contender]) -> Drawing:
    """Return a panel for each aggregate, with each contender's value and interval."""
    shown = list(styled(contenders, comparison.aggregates))
    with plot_style():
        size = (1.6 + 1.9 * len(AGGREGATES), 0.9 + _ROW * len(shown))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(AGGREGATES), sharey=True)
        for panel, label in zip(panels, AGGREGATES, strict=True):
            for row, (contender, colour) in enumerate(shown[::-1]):
                _interval(panel, row, comparison.aggregates[contender.name][label], colour)
            panel.set_title(label)
            panel.xaxis.set_major_locator(MaxNLocator(4))
        _name_rows(panels[0], [_short(contender.name) for contender, _ in shown])
        return Drawing.of(figure)


def improvement(comparison: Comparison, contenders: Sequence[Contender]) -> Drawing:
    """Return the probability of improvement of each shown pair."""
    pairs = shown_pairs(comparison, contenders)
    colours = {x.name: colour for x, colour in styled(contenders, comparison.aggregates)}
    names = [f"{_short(one)} > {_short(other)}" for one, other in pairs]
    width = max(6.4, 3.0 + _LETTER * max(map(len, names)))
    with plot_style():
        figure = Figure(figsize=(width, 0.9 + _ROW * len(pairs)), layout="constrained")
        panel = figure.subplots()
        for row, pair in enumerate(pairs[::-1]):
            _interval(panel, row, comparison.improvement[pair], colours[pair[0]])
        panel.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
        panel.set_xlim(-0.02, 1.02)
        panel.set_xlabel("probability of improvement")
        _name_rows(panel, names)
        return Drawing.of(figure)


def _lines(
    found: Mapping[str, tuple[Shaped[np.ndarray, "points"], Float[np.ndarray, "3 points"]]],
    contenders: Sequence[Contender],
    xlabel: str,
    ylabel: str,
    ticks: Formatter | None = None,
) -> Drawing:
    """Return a line with a band for each contender that has one; `ticks` are those below."""
    with plot_style():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        panel = figure.subplots()
        shown = list(styled(contenders, found))
        lines = [draw_curve(panel, one, *found[one.name], colour) for one, colour in shown]
        panel.set(xlabel=xlabel, ylabel=ylabel)
        if ticks is not None:
            panel.xaxis.set_major_formatter(ticks)
        add_legend(figure, lines, [one.name for one, _ in shown])
        return Drawing.of(figure)


def _interval(panel: Axes, row: int, estimate: Estimate, colour: str) -> None:
    panel.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=3.0)
    panel.plot(estimate[3:], [row, row], color=colour, linewidth=1.0)
    panel.plot(estimate.value, row, color=colour, marker="o", markersize=4)


def _name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Write names at the rows, from the top to the bottom."""
    panel.set_yticks(range(len(names)), names[::-1])
    panel.set_ylim(-0.6, len(names) - 0.4)


def _short(name: str) -> str:
    """Return a name that can be printed, and whose middle is left out if it is long."""
    text, half = printable(name), _LONGEST_NAME // 2
    return text if len(text) <= _LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"

"""The plot of an evolution of a rule's prior: fitness, learning rate and weights by generation."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from evaluation.report.drawing import Drawing, plot_style

# Okabe and Ito's colours, one per point.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def draw(rows: Sequence[Mapping[str, Any]], by_weight: Mapping[str, Sequence[str]]) -> Drawing:
    """Return the plot.

    Args:
      rows: of the generations: "best_fitness", "mean_fitness", "learning_rate", and the columns
        `weight point`.
      by_weight: names of each weight's points.
    """
    with plot_style():
        names = ["fitness", "learning_rate", *by_weight]
        figure = Figure(figsize=(3.1 * len(names), 3.0), layout="constrained")
        panels = dict(zip(names, figure.subplots(1, len(names)), strict=True))
        for name, colour in (("best_fitness", _COLOURS[1]), ("mean_fitness", _COLOURS[0])):
            _line(panels["fitness"], rows, name, name.replace("_", " "), colour)
        _line(panels["learning_rate"], rows, "learning_rate", "", _COLOURS[0])
        for weight, points in by_weight.items():
            for point, colour in zip(points, _COLOURS, strict=False):
                _line(panels[weight], rows, f"{weight} {point}", point, colour)
        for name, panel in panels.items():
            panel.set_title(name.replace("_", " "))
            panel.set_xlabel("generation")
            panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            if name.endswith("advantage_weight"):
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                panel.yaxis.set_minor_formatter(NullFormatter())
        handles, labels = panels[names[-1]].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=len(labels))
        panels["fitness"].legend()
        return Drawing.of(figure)


def _line(
    panel: Axes, rows: Sequence[Mapping[str, Any]], column: str, label: str, colour: str
) -> None:
    values = [row[column] for row in rows]
    panel.plot(range(1, len(rows) + 1), values, label=label, color=colour, marker=".", markersize=3)

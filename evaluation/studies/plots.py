"""The figures of the studies of rules."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from disco_common.terminal import printable
from evaluation.report.drawing import COLOURS, RULE_COLOURS, drawn


@drawn
def time_series(
    rows: Mapping[str, Float[np.ndarray, "steps"]], marks: Sequence[int], xlabel: str = "step"
) -> Figure:
    """Return quantities along an episode, one panel each, with vertical lines at some steps."""
    figure = Figure(figsize=(9.0, 1.2 * len(rows) + 0.5))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
    for panel, (name, values) in zip(panels, rows.items(), strict=True):
        panel.plot(values, color=RULE_COLOURS[0], linewidth=1.0)
        panel.set_title(printable(name))
        panel.yaxis.set_major_locator(MaxNLocator(3))
        for step in marks:
            panel.axvline(step, color="black", linewidth=0.8, linestyle=":")
    panels[-1].set_xlabel(xlabel)
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

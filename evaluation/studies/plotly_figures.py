"""Interactive plots (Plotly) of the studies of rules."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from evaluation.report.plotly_style import BLUE, GOLD, GREEN, INK, ORANGE, finish, stacked_panels

_COLOURS = (ORANGE, BLUE, GOLD, GREEN)

Point = tuple[float, float, float, str]
"""x, y, the standard error of y, and a text to show on hovering."""


def time_series(
    rows: Mapping[str, Float[np.ndarray, "steps"]], marks: Sequence[int], x_title: str = "step"
) -> go.Figure:
    """Return quantities along an episode, one panel each, with vertical lines at some steps."""
    figure = stacked_panels(rows)
    for row, (name, values) in enumerate(rows.items(), 1):
        trace = go.Scatter(y=values, line={"color": ORANGE}, showlegend=False, name=name)
        figure.add_trace(trace, row=row, col=1)
        for mark in marks:
            line: Any = {"color": INK, "dash": "dot"}
            figure.add_vline(x=mark, line=line, row=row, col=1)  # pyright: ignore
    figure.update_xaxes(title=x_title, row=len(rows), col=1)
    return finish(figure, height=150 * len(rows) + 60)


def lines(
    curves_by_name: Mapping[str, Float[np.ndarray, "points"]],
    x_title: str,
    y_title: str,
    log: bool = False,
) -> go.Figure:
    """Return a line for each name, over 0, 1, 2, ..."""
    figure = go.Figure([go.Scatter(y=values, name=name) for name, values in curves_by_name.items()])
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(title=y_title, type="log" if log else "linear", exponentformat="power")
    return finish(figure)


def line_panels(
    x: Float[np.ndarray, "points"],
    panels: Mapping[str, Mapping[str, Float[np.ndarray, "points"]]],
    x_title: str,
    y_title: str,
    log: bool = False,
) -> go.Figure:
    """Return a panel for each title, side by side, with a line over x for each name."""
    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=list(panels))
    for column, curves in enumerate(panels.values(), 1):
        for (name, values), colour in zip(curves.items(), itertools.cycle(_COLOURS), strict=False):
            trace = go.Scatter(
                x=x,
                y=values,
                name=name,
                legendgroup=name,
                showlegend=column == 1 and len(curves) > 1,
                line={"color": colour},
            )
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(title=x_title, row=1, col=column)
    if log:
        figure.update_xaxes(type="log", exponentformat="power")
        figure.update_yaxes(type="log", exponentformat="power")
    figure.update_yaxes(title=y_title, row=1, col=1)
    return finish(figure)


def points(
    by_name: Mapping[str, Sequence[Point]], x_title: str, y_title: str, log_x: bool = False
) -> go.Figure:
    """Return a line through points with error bars for each name."""
    figure = go.Figure()
    for (name, found), colour in zip(by_name.items(), itertools.cycle(_COLOURS), strict=False):
        x, y, errors, texts = zip(*found, strict=True) if found else ((), (), (), ())
        trace = go.Scatter(
            x=x,
            y=y,
            error_y={"type": "data", "array": [e if np.isfinite(e) else None for e in errors]},
            text=texts,
            name=name,
            mode="lines+markers",
            line={"color": colour},
        )
        figure.add_trace(trace)
    figure.update_xaxes(title=x_title, type="log" if log_x else "linear")
    figure.update_yaxes(title=y_title)
    return finish(figure)


def bars(groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> go.Figure:
    """Return a panel for each group, with a bar and an error bar for each name."""
    figure = make_subplots(rows=1, cols=len(groups), subplot_titles=list(groups))
    for column, found in enumerate(groups.values(), 1):
        values, errors = zip(*found.values(), strict=True)
        bar = go.Bar(
            x=list(found),
            y=values,
            error_y={"type": "data", "array": errors, "color": INK},
            marker_color=BLUE,
            showlegend=False,
        )
        figure.add_trace(bar, row=1, col=column)
    return finish(figure, height=340)

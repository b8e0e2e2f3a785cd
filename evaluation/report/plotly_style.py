"""The common style of the report's interactive plots (Plotly), and their elements."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
from jaxtyping import Float, Shaped
from plotly.subplots import make_subplots

from evaluation.scoring.statistics import Estimate

INK, GRID = "#808080", "rgba(128,128,128,0.25)"  # Greys that are legible on white and on black.
ORANGE, BLUE, GOLD, GREEN = "#D55E00", "#0072B2", "#E69F00", "#009E73"
COLOURS = (BLUE, ORANGE, GREEN, GOLD, "#CC79A7", "#56B4E9", "#999999", "#8C564B")

# Without a tool bar, which covers the titles of small panels wherever nothing can hover.
_OPTIONS = {"responsive": True, "displayModeBar": False, "typesetMath": False}
# Fields of Plotly's figures that hold texts; the last three may hold numbers, too.
_TEXTS = frozenset(("name", "text", "label", "x", "y", "theta"))


def to_html(figure: go.Figure) -> str:
    """Return the HTML of a figure, without Plotly's own script. Texts are shown literally."""
    return plotly.io.to_html(
        _literal(figure.to_dict()),
        full_html=False,
        include_plotlyjs=False,
        config=_OPTIONS,
        validate=False,
    )


def _literal(value: Any, field: str = "") -> Any:
    """Return a figure's values with its texts escaped: Plotly interprets some HTML tags."""
    if isinstance(value, Mapping):
        return {name: _literal(x, name) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(x, field) for x in value]
    return html.escape(value, quote=False) if isinstance(value, str) and field in _TEXTS else value


def finish(figure: go.Figure, height: int = 420) -> go.Figure:
    """Set the layout that all figures share; return the figure."""
    # The legend's lines are taken from the plot's height.
    traces: Sequence[Any] = figure.data  # pyright: ignore
    named = {trace.name for trace in traces if trace.showlegend is not False}
    height += 10 * max(0, len(named) - 6)
    layout: Any = figure.layout
    top = 70 if layout.annotations or layout.updatemenus else 40  # Below Plotly's buttons.
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        margin={"l": 20, "r": 20, "t": top, "b": 20},
        height=height,
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    return figure


def stacked_panels(titles: Iterable[str]) -> go.Figure:
    """Return a figure with a panel for each title, one below the other."""
    titles = list(titles)
    return make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        subplot_titles=titles,
        vertical_spacing=0.05,
    )


def fit_rows(figure: go.Figure, number: int) -> None:
    """Make a number of named rows fill the vertical axes."""
    figure.update_yaxes(range=[-0.6, number - 0.4])


def interval_traces(name: str, estimate: Estimate, colour: str) -> list[go.Scatter]:
    """Return a value in the row of a name: a thick interval over seeds, a thin one over tasks."""
    value, low, high, *wide = estimate
    error, drawn = None, []
    if np.isfinite(wide).all():
        line = {"color": colour, "width": 2}
        row = {"x": wide, "y": [name, name], "mode": "lines", "line": line}
        drawn = [go.Scatter(row, showlegend=False, hoverinfo="skip")]
    if np.isfinite(low):
        error = {"type": "data", "symmetric": False, "array": [high - value]}
        error |= {"arrayminus": [value - low], "color": colour, "thickness": 6, "width": 0}
    point = go.Scatter(
        x=[value],
        y=[name],
        name=name,
        error_x=error,
        mode="markers",
        marker={"color": colour, "size": 11, "line": {"color": INK, "width": 1}},
        showlegend=False,
        hovertemplate=estimate.text(3),
    )
    return [*drawn, point]


def band_traces(
    name: str,
    x: Shaped[np.ndarray, "points"],
    curve: Float[np.ndarray, "3 points"],
    colour: str,
    is_dashed: bool,
) -> list[go.Scatter]:
    """Return a line with a band (value, low, high), without the points that are not finite."""
    middle, low, high = curve
    has_line, has_band = np.isfinite(middle), np.isfinite(low) & np.isfinite(high)
    line = go.Scatter(
        x=list(x[has_line]),
        y=list(middle[has_line]),
        name=name,
        legendgroup=name,
        mode="lines" if has_line.sum() > 1 else "markers",
        line={"color": colour, "dash": "dash" if is_dashed else "solid"},
    )
    if not has_band.any():
        return [line]
    band = go.Scatter(
        x=[*x[has_band], *x[has_band][::-1]],
        y=[*low[has_band], *high[has_band][::-1]],
        mode="lines",
        fill="toself",
        fillcolor=_transparent(colour),
        line={"width": 0},
        hoverinfo="skip",
        legendgroup=name,
        showlegend=False,
    )
    return [band, line]


def _transparent(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"

"""The report as one HTML file: interactive plots (Plotly) and tables (DataTables, by itables).

It needs no network, follows the reader's light or dark scheme, and fits a phone's width. What is in
it is computed in `evaluation.comparison`; this module only draws. Titles and names are shown
literally, whatever they look like.
"""

import base64
import functools
import html
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import itables
import matplotlib.image
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io
from itables.javascript import generate_init_offline_itables_html
from itables.utils import find_package_file
from jaxtyping import Float
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from evaluation import plots
from evaluation.comparison import AGGREGATES, Comparison
from evaluation.contenders import RANDOM, Contender
from evaluation.statistics import Estimate

# Grey that can be read on white and on black.
_INK, _GRID = "#808080", "rgba(128,128,128,0.25)"
_PAIR = ("#D55E00", "#0072B2")  # The rule, and what it is compared with.
_MOST_PAIRS = 66  # That are shown; of a dozen contenders all.
_PLOT_OPTIONS = {"responsive": True, "displaylogo": False, "typesetMath": False}
# Fields of Plotly's figures that hold texts to read; the last three besides numbers.
_TEXTS = frozenset(("name", "text", "label", "x", "y", "theta"))

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --quiet: #6a6a6a;
  --rule: #d8d8d8; --note: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --quiet: #a0a0a0;
  --rule: #3a3d44; --note: #3d3416; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { border-top: 1px solid var(--rule); padding-top: 1rem;
  margin-top: 2.5rem; font-size: 1.3rem; } h3 { font-size: 1.05rem; margin-top: 2rem; }
p.quiet { color: var(--quiet); font-size: 0.9rem; }
.note { background: var(--note); border-radius: 4px; padding: 0.5rem 1rem; }
.wide { overflow-x: auto; font-size: 0.85rem; overflow-wrap: normal; white-space: nowrap; }
table { border-collapse: collapse; } img { max-width: 100%; }
table.plain td, table.plain th { border-bottom: 1px solid var(--rule); padding: 0.2rem 0.6rem;
  text-align: left; vertical-align: top; }
nav a { margin-right: 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 0.8rem; } .pictures figure { margin: 0; }
.strips figure { margin: 0.6rem 0; overflow-x: auto; }
.strips img { display: block; max-width: none; image-rendering: pixelated; }
.pictures img { width: 168px; image-rendering: pixelated; display: block; }
figcaption { color: var(--quiet); font-size: 0.8rem; } .pictures figcaption { max-width: 168px; }
.dt-container { background: transparent !important; }
"""
# By this class DataTables knows the scheme.
_SCHEME = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow); follow();
"""


def page(title: str, head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole file.

    Args:
      title: of the report.
      head: HTML above the first section.
      sections: heading and content, HTML, of each.
    """
    links = "".join(
        f'<a href="#section{i}">{html.escape(heading)}</a>'
        for i, (heading, _) in enumerate(sections)
    )
    body = "".join(
        f'<section id="section{i}"><h2>{html.escape(heading)}</h2>{content}</section>'
        for i, (heading, content) in enumerate(sections)
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<script>{_SCHEME}</script><script>{get_plotlyjs()}</script></head><body>{_tables_script()}"
        f"<h1>{html.escape(title)}</h1><nav>{links}</nav>{head}{body}</body></html>\n"
    )


@functools.cache
def _tables_script() -> str:
    return generate_init_offline_itables_html(find_package_file("html/dt_bundle.js"))


def paragraph(text: str, kind: str = "") -> str:
    """Text, in a class of the style sheet."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{html.escape(text)}</p>"


def notes(remarks: Sequence[str], lists: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """A box of remarks, and of longer lists to unfold by their headings; empty if all are."""

    def items(texts):
        return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"

    parts = [items(remarks)] if remarks else []
    parts += [
        f"<details><summary>{html.escape(heading)}</summary>{items(texts)}</details>"
        for heading, texts in lists.items()
        if texts
    ]
    return f'<div class="note">{"".join(parts)}</div>' if parts else ""


def plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A small table, with a heading row of the first row's names."""
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(row[name]))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table class="plain"><tr>{head}</tr>{body}</table></div>'


def data_table(frame: pd.DataFrame) -> str:
    """A table that can be sorted, searched, and filtered by each column."""
    made = itables.to_html_datatable(
        frame,
        showIndex=False,
        connected=False,
        column_filters="footer",
        display_logo_when_loading=False,
        maxBytes=0,
        pageLength=25,
        lengthMenu=[25, 100, -1],
        classes="display compact",
    )
    return f'<div class="wide">{made}</div>'


def aggregates(comparison: Comparison, contenders: Sequence[Contender]) -> str:
    """A panel for each aggregate: value and interval of each contender."""
    shown = list(_known(contenders, comparison.aggregates))
    height = 190 + 2 * 34 * (len(shown) + 1)
    figure = make_subplots(
        rows=2,
        cols=2,
        shared_yaxes=True,
        subplot_titles=list(AGGREGATES),
        vertical_spacing=80 / height,
    )
    for name, colour, _ in shown[::-1]:
        for i, label in enumerate(AGGREGATES):
            estimate = comparison.aggregates[name][label]
            figure.add_trace(_interval_trace(name, estimate, colour), row=i // 2 + 1, col=i % 2 + 1)
    _finish(figure, height)
    _fit_rows(figure, len(shown))
    return _html(figure)


def _fit_rows(figure: go.Figure, number: int) -> None:
    """Names of the vertical axes fill them."""
    figure.update_yaxes(range=[-0.6, number - 0.4])


def _interval_trace(name: str, estimate: Estimate, colour: str) -> go.Scatter:
    value, low, high = estimate
    error = None
    if np.isfinite(low):
        error = {"type": "data", "symmetric": False, "array": [high - value]}
        error |= {"arrayminus": [value - low], "color": colour, "thickness": 6, "width": 0}
    return go.Scatter(
        x=[value],
        y=[name],
        name=name,
        error_x=error,
        mode="markers",
        marker={"color": colour, "size": 11, "line": {"color": _INK, "width": 1}},
        showlegend=False,
        hovertemplate=f"{value:.3f} [{low:.3f}, {high:.3f}]",
    )


def profiles(comparison: Comparison, contenders: Sequence[Contender]) -> str:
    """Performance profiles, with their intervals."""
    x = comparison.thresholds
    return _lines(
        {name: (x, curve) for name, curve in comparison.profiles.items()},
        contenders,
        xaxis={"title": "score τ"},
        yaxis={"title": "fraction of runs with score > τ", "range": [0, 1.02]},
    )


def curves(comparison: Comparison, contenders: Sequence[Contender]) -> str:
    """The IQM along the budget."""
    return _lines(
        {name: (comparison.steps, curve) for name, curve in comparison.curves.items()},
        contenders,
        xaxis={"title": "environment steps", "rangemode": "tozero"},
        yaxis={"title": "IQM"},
    )


def improvement(comparison: Comparison, contenders: Sequence[Contender]) -> str:
    """P(a run of the row's first contender is better than one of its second); empty if alone.

    Of many contenders, only pairs with a hand-designed one or the random policy are shown.
    """
    colours = {name: colour for name, colour, _ in _known(contenders, comparison.aggregates)}
    pairs = list(itertools.combinations(colours, 2))
    if not pairs:
        return ""
    if len(pairs) > _MOST_PAIRS:
        yardsticks = {x.name for x in contenders if x.kind not in ("discovered", "agent")}
        pairs = [pair for pair in pairs if yardsticks & set(pair)] or pairs
    figure = go.Figure()
    for pair in pairs[::-1]:
        label = f"{pair[0]} > {pair[1]}"
        figure.add_trace(_interval_trace(label, comparison.improvement[pair], colours[pair[0]]))
    figure.add_vline(x=0.5, line={"color": _INK, "dash": "dot"})
    figure.update_xaxes(title="probability of improvement", range=[-0.02, 1.02])
    _finish(figure, height=120 + 30 * len(pairs))
    _fit_rows(figure, len(pairs))
    return _html(figure)


def task_curves(
    tasks: Mapping[str, Mapping[str, tuple[np.ndarray, Float[np.ndarray, "3 points"]]]],
    contenders: Sequence[Contender],
) -> str:
    """Learning curves, one task at a time, which a menu chooses.

    Args:
      tasks: by name, and by contender: environment steps, and mean, low and high.
      contenders: in the legend's order.
    """
    traces, owners = [], []
    first = next(iter(tasks))
    for task, by_contender in tasks.items():
        for name, colour, is_dashed in _known(contenders, by_contender):
            for trace in _band(name, *by_contender[name], colour, is_dashed):
                trace.visible = task == first
                traces.append(trace)
                owners.append(task)
    figure = go.Figure(traces)
    figure.update_layout(
        updatemenus=[
            {
                "buttons": [
                    {
                        "label": task,
                        "method": "update",
                        "args": [{"visible": [owner == task for owner in owners]}],
                    }
                    for task in tasks
                ],
                "x": 0.0,
                "xanchor": "left",
                "y": 1.18,
                "yanchor": "top",
            }
        ]
    )
    figure.update_xaxes(title="environment steps", rangemode="tozero")
    figure.update_yaxes(title="mean episode return")
    _finish(figure, height=480)
    return _html(figure)


def success_rates(rates: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]) -> str:
    """Bars of the fraction of episodes in which each achievement was unlocked.

    Args:
      rates: by contender and achievement, in percent.
      contenders: in the legend's order.
    """
    figure = go.Figure(
        [
            go.Bar(
                name=name,
                y=list(rates[name]),
                x=list(rates[name].values()),
                orientation="h",
                marker_color=colour,
            )
            for name, colour, _ in _known(contenders, rates)
        ]
    )
    figure.update_xaxes(title="success rate (%)", type="log", range=[-2, 2])
    figure.update_yaxes(autorange="reversed")
    _finish(figure, height=200 + 9 * 22 * len(rates))
    return _html(figure)


def radar(scores: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]) -> str:
    """bsuite's scores by capability.

    Args:
      scores: by contender and tag, between 0 and 1.
      contenders: in the legend's order.
    """
    figure = go.Figure()
    for name, colour, _ in _known(contenders, scores):
        tags = list(scores[name])
        figure.add_trace(
            go.Scatterpolar(
                name=name,
                theta=[*tags, tags[0]],
                r=[*scores[name].values(), scores[name][tags[0]]],
                line={"color": colour},
            )
        )
    _finish(figure, height=480)
    figure.update_polars(
        bgcolor="rgba(0,0,0,0)",
        radialaxis={"range": [0, 1], "gridcolor": _GRID},
        angularaxis={"gridcolor": _GRID},
    )
    return _html(figure)


def discovery(reports: Sequence[Mapping[str, Any]]) -> str:
    """How a discovery went, by meta-step: what `plots.discovery_curves` has, and agents' ages."""
    panels = {
        title: [x.get(name) for x in reports] for name, title in plots.DISCOVERY_PANELS.items()
    }
    panels["environment steps of the agents' lives so far (mean, and each agent's)"] = [
        float(np.mean(x["agents"]["life_steps"])) for x in reports
    ]
    figure = _stacked(panels)
    steps = [report["meta_step"] for report in reports]
    for row, (title, values) in enumerate(panels.items(), 1):
        line = go.Scatter(
            x=steps, y=values, line={"color": "#D55E00"}, showlegend=False, name=title
        )
        figure.add_trace(line, row=row, col=1)
    ages = np.array([report["agents"]["life_steps"] for report in reports]).T
    for age in ages:
        line = {"color": "rgba(0,114,178,0.25)", "width": 1}
        trace = go.Scatter(x=steps, y=age, line=line, hoverinfo="skip", showlegend=False)
        figure.add_trace(trace, row=len(panels), col=1)
    figure.update_xaxes(title="meta-steps", row=len(panels), col=1)
    _finish(figure, height=190 * len(panels))
    return _html(figure)


def _lines(
    found: Mapping[str, tuple[np.ndarray, Float[np.ndarray, "3 points"]]],
    contenders: Sequence[Contender],
    **layout: Any,
) -> str:
    """A line with a band for each contender that has one."""
    figure = go.Figure(
        [
            trace
            for name, colour, is_dashed in _known(contenders, found)
            for trace in _band(name, *found[name], colour, is_dashed)
        ]
    )
    figure.update_layout(**layout)
    _finish(figure)
    return _html(figure)


def _known(
    contenders: Sequence[Contender], found: Mapping[str, Any]
) -> Iterator[tuple[str, str, bool]]:
    """Name, colour, and whether its line is dashed, of each contender that has something."""
    shown = [x for x in contenders if x.name in found]
    for contender, colour in zip(shown, plots.colours_of(shown), strict=True):
        yield contender.name, colour, contender.kind == RANDOM


def _band(
    name: str,
    x: np.ndarray,
    curve: Float[np.ndarray, "3 points"],
    colour: str,
    is_dashed: bool,
) -> list[go.Scatter]:
    """A line with a band; what is not finite is left out."""
    middle, low, high = curve
    there, has_band = np.isfinite(middle), np.isfinite(low) & np.isfinite(high)
    line = go.Scatter(
        x=list(x[there]),
        y=list(middle[there]),
        name=name,
        legendgroup=name,
        mode="lines" if there.sum() > 1 else "markers",
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


def _stacked(titles: Iterable[str]) -> go.Figure:
    """Panels one below the other."""
    titles = list(titles)
    return make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        subplot_titles=titles,
        vertical_spacing=0.05,
    )


def _transparent(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _finish(figure: go.Figure, height: int = 420) -> None:
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
        font={"color": _INK, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        margin={"l": 20, "r": 20, "t": top, "b": 20},
        height=height,
    )
    figure.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
    figure.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)


def _html(figure: go.Figure) -> str:
    literal = _literal(figure.to_dict())
    return plotly.io.to_html(
        literal, full_html=False, include_plotlyjs=False, config=_PLOT_OPTIONS, validate=False
    )


def _literal(value: Any, field: str = "") -> Any:
    """A figure's values with its texts escaped: Plotly reads them as HTML of a few tags."""
    if isinstance(value, Mapping):
        return {name: _literal(x, name) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(x, field) for x in value]
    return html.escape(value, quote=False) if isinstance(value, str) and field in _TEXTS else value


def series(
    rows: Mapping[str, Float[np.ndarray, "T"]], marks: Sequence[int], x_title: str = "step"
) -> str:
    """Quantities along an episode, one below the other, with lines where pictures are shown."""
    figure = _stacked(rows)
    for row, (name, values) in enumerate(rows.items(), 1):
        trace = go.Scatter(y=values, line={"color": "#D55E00"}, showlegend=False, name=name)
        figure.add_trace(trace, row=row, col=1)
        for mark in marks:
            line: Any = {"color": _INK, "dash": "dot"}
            figure.add_vline(x=mark, line=line, row=row, col=1)  # pyright: ignore
    figure.update_xaxes(title=x_title, row=len(rows), col=1)
    _finish(figure, height=150 * len(rows) + 60)
    return _html(figure)


def lines(
    curves_by_name: Mapping[str, np.ndarray], x_title: str, y_title: str, log: bool = False
) -> str:
    """A line for each name, over 0, 1, 2, ..."""
    figure = go.Figure([go.Scatter(y=values, name=name) for name, values in curves_by_name.items()])
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(title=y_title, type="log" if log else "linear", exponentformat="power")
    _finish(figure)
    return _html(figure)


Point = tuple[float, float, float, str]
"""x, y, the error of y, and a text for a closer look."""


def points(
    by_name: Mapping[str, Sequence[Point]], x_title: str, y_title: str, log_x: bool = False
) -> str:
    """A line through points with errors for each name."""
    figure = go.Figure()
    for (name, found), colour in zip(by_name.items(), itertools.cycle(_PAIR), strict=False):
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
    _finish(figure)
    return _html(figure)


def bars(groups: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """For each group, a bar with an error for each name."""
    figure = make_subplots(rows=1, cols=len(groups), subplot_titles=list(groups))
    for column, found in enumerate(groups.values(), 1):
        values, errors = zip(*found.values(), strict=True)
        bar = go.Bar(
            x=list(found),
            y=values,
            error_y={"type": "data", "array": errors, "color": _INK},
            marker_color="#0072B2",
            showlegend=False,
        )
        figure.add_trace(bar, row=1, col=column)
    _finish(figure, height=340)
    return _html(figure)


def strips(by_task: Mapping[str, Sequence[tuple[str, bytes]]]) -> str:
    """Wide pictures (PNG) with captions, to unfold by task."""
    parts = []
    for task, items in by_task.items():
        figures = "".join(_figure(caption, picture) for caption, picture in items)
        parts.append(
            f"<details><summary>{html.escape(task)}</summary>"
            f'<div class="strips">{figures}</div></details>'
        )
    return "".join(parts)


def pictures(items: Sequence[tuple[str, np.ndarray]]) -> str:
    """Small images side by side, each with a caption: `[H, W]`, or `[H, W, 3]` of 0 to 255."""
    found = []
    for caption, image in items:
        buffer = io.BytesIO()
        matplotlib.image.imsave(buffer, image, cmap="viridis", format="png")
        found.append(_figure(caption, buffer.getvalue()))
    return f'<div class="pictures">{"".join(found)}</div>'


def _figure(caption: str, picture: bytes) -> str:
    text, data = html.escape(caption), base64.b64encode(picture).decode()
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )

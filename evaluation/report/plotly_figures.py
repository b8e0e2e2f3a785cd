"""Interactive plots (Plotly) of evaluations and discoveries, for the report page."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int, Shaped

from evaluation.contenders import RANDOM, Contender
from evaluation.report.agent_metrics import Panels
from evaluation.report.plotly_style import (
    COLOURS,
    GRID,
    INK,
    ORANGE,
    band_traces,
    finish,
    fit_rows,
    interval_traces,
    stacked_panels,
)
from evaluation.report.probe_scores import Probe
from evaluation.report.static_plots import DISCOVERY_PANELS, styled
from evaluation.scoring.comparison import Comparison, shown_pairs
from evaluation.scoring.statistics import AGGREGATES


def aggregates(comparison: Comparison, contenders: Sequence[Contender]) -> list[go.Figure]:
    """Return a plot for each aggregate, with each contender's value and intervals."""
    shown = list(_styled(contenders, comparison.aggregates))
    return [_aggregate(label, comparison, shown) for label in AGGREGATES]


def _aggregate(
    label: str, comparison: Comparison, shown: Sequence[tuple[str, str, bool]]
) -> go.Figure:
    figure = go.Figure()
    for name, colour, _ in shown[::-1]:
        figure.add_traces(interval_traces(name, comparison.aggregates[name][label], colour))
    finish(figure, height=90 + 34 * (len(shown) + 1))
    figure.update_layout(title={"text": label, "font": {"size": 14}, "x": 0.5})
    fit_rows(figure, len(shown))
    return figure


def profiles(comparison: Comparison, contenders: Sequence[Contender]) -> go.Figure:
    """Return the performance profiles, with intervals."""
    x = comparison.thresholds
    return _lines(
        {name: (x, curve) for name, curve in comparison.profiles.items()},
        contenders,
        xaxis={"title": "score τ"},
        yaxis={"title": "fraction of runs with score > τ", "range": [0, 1.02]},
    )


def curves(comparison: Comparison, contenders: Sequence[Contender]) -> go.Figure:
    """Return the IQM by environment steps, gradient steps or wall seconds: a menu chooses."""
    axes = {
        "environment steps": dict.fromkeys(comparison.curves, 1.0),
        "gradient steps": {x: y for x, y in comparison.gradient_steps.items() if y},
        "wall seconds of a run": {x: y for x, y in comparison.seconds.items() if y},
    }
    traces, owners = [], []
    for title, factors in axes.items():
        own = {name: comparison.curves[name] for name in comparison.curves if name in factors}
        for name, colour, is_dashed in _styled(contenders, own):
            x = comparison.steps * factors[name]
            for trace in band_traces(name, x, own[name], colour, is_dashed):
                trace.visible = title == "environment steps"
                traces.append(trace)
                owners.append(title)
    figure = go.Figure(traces)
    _add_menu(figure, owners, {title: {"xaxis.title.text": title} for title in axes})
    figure.update_xaxes(title="environment steps", rangemode="tozero")
    figure.update_yaxes(title="IQM")
    return finish(figure, height=480)


def improvement(comparison: Comparison, contenders: Sequence[Contender]) -> go.Figure | None:
    """Return the probability of improvement of each shown pair; None if there is no pair."""
    colours = {name: colour for name, colour, _ in _styled(contenders, comparison.aggregates)}
    pairs = shown_pairs(comparison, contenders)
    if not pairs:
        return None
    figure = go.Figure()
    for pair in pairs[::-1]:
        label = f"{pair[0]} > {pair[1]}"
        figure.add_traces(interval_traces(label, comparison.improvement[pair], colours[pair[0]]))
    figure.add_vline(x=0.5, line={"color": INK, "dash": "dot"})
    figure.update_xaxes(title="probability of improvement", range=[-0.02, 1.02])
    finish(figure, height=120 + 30 * len(pairs))
    fit_rows(figure, len(pairs))
    return figure


def task_curves(
    tasks: Mapping[
        str, tuple[Int[np.ndarray, "points"], Mapping[str, Float[np.ndarray, "3 points"]]]
    ],
    contenders: Sequence[Contender],
) -> go.Figure:
    """Return learning curves of one task at a time, with a menu to choose it.

    Args:
      tasks: by name, environment steps, and each contender's value, low and high.
      contenders: in the legend's order.
    """
    traces, owners = [], []
    first = next(iter(tasks))
    for task, (steps, by_contender) in tasks.items():
        for name, colour, is_dashed in _styled(contenders, by_contender):
            for trace in band_traces(name, steps, by_contender[name], colour, is_dashed):
                trace.visible = task == first
                traces.append(trace)
                owners.append(task)
    figure = go.Figure(traces)
    _add_menu(figure, owners, {task: {} for task in tasks})
    figure.update_xaxes(title="environment steps", rangemode="tozero")
    figure.update_yaxes(title="mean episode return")
    return finish(figure, height=480)


def success_rates(
    rates: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]
) -> go.Figure:
    """Return bars of the success rate of each achievement.

    Args:
      rates: by contender and achievement, in percent.
      contenders: in the legend's order.
    """
    bars = [
        go.Bar(
            name=name,
            y=list(rates[name]),
            x=list(rates[name].values()),
            orientation="h",
            marker_color=colour,
        )
        for name, colour, _ in _styled(contenders, rates)
    ]
    figure = go.Figure(bars)
    figure.update_xaxes(title="success rate (%)", type="log", range=[-2, 2])
    figure.update_yaxes(autorange="reversed")
    return finish(figure, height=200 + 9 * 22 * len(rates))


def radar(scores: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]) -> go.Figure:
    """Return a radar plot of bsuite's scores by tag.

    Args:
      scores: by contender and tag, between 0 and 1.
      contenders: in the legend's order.
    """
    figure = go.Figure()
    for name, colour, _ in _styled(contenders, scores):
        tags = list(scores[name])
        figure.add_trace(
            go.Scatterpolar(
                name=name,
                theta=[*tags, tags[0]],
                r=[*scores[name].values(), scores[name][tags[0]]],
                line={"color": colour},
            )
        )
    finish(figure, height=480)
    figure.update_polars(
        bgcolor="rgba(0,0,0,0)",
        radialaxis={"range": [0, 1], "gridcolor": GRID},
        angularaxis={"gridcolor": GRID},
    )
    return figure


def probes(found: Sequence[Probe], baselines: Mapping[str, float]) -> go.Figure:
    """Return the scores of fresh agents by meta-step, beside those of others.

    Args:
      found: the probes of a discovery, at least one.
      baselines: scores of contenders on the probes' tasks, by name.
    """
    figure = go.Figure(
        go.Scatter(
            x=[probe.meta_step for probe in found],
            y=[probe.score for probe in found],
            name="fresh agents",
            line={"color": ORANGE},
            mode="lines+markers",
        )
    )
    ends = [0, max(probe.meta_step for probe in found)]
    others = itertools.cycle(colour for colour in COLOURS if colour != ORANGE)
    levels = [("random policy", 0.0, INK), ("reference", 1.0, INK)]
    levels += [(*x, colour) for x, colour in zip(baselines.items(), others, strict=False)]
    for name, score, colour in levels:
        line = {"color": colour, "dash": "dot" if colour == INK else "dash"}
        figure.add_trace(go.Scatter(x=ends, y=[score] * 2, name=name, line=line, mode="lines"))
    figure.update_xaxes(title="meta-steps")
    figure.update_yaxes(title="score")
    return finish(figure, height=360)


def discovery(metrics: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return a discovery's metrics by meta-step, and the ages of its agents.

    Args:
      metrics: the records of the discovery (`evaluation.report.discovery_metrics`).
    """
    panels = {title: [x.get(name) for x in metrics] for name, title in DISCOVERY_PANELS.items()}
    panels["environment steps since the agents' start (mean, and each agent)"] = [
        float(np.mean(x["agents"]["steps_since_reset"])) for x in metrics
    ]
    figure = stacked_panels(panels)
    steps = [record["meta_step"] for record in metrics]
    for row, (title, values) in enumerate(panels.items(), 1):
        line = go.Scatter(
            x=steps,
            y=values,
            line={"color": ORANGE},
            connectgaps=True,
            mode="lines",
            showlegend=False,
            name=title,
        )
        figure.add_trace(line, row=row, col=1)
    ages = np.array([record["agents"]["steps_since_reset"] for record in metrics]).T
    for age in ages:
        line = {"color": "rgba(0,114,178,0.25)", "width": 1}
        trace = go.Scatter(x=steps, y=age, line=line, hoverinfo="skip", showlegend=False)
        figure.add_trace(trace, row=len(panels), col=1)
    figure.update_xaxes(title="meta-steps", row=len(panels), col=1)
    return finish(figure, height=190 * len(panels))


def agent_metrics(tasks: Mapping[str, Panels]) -> go.Figure:
    """Return an agent's metrics along its training, one task at a time: a menu chooses it.

    Args:
      tasks: by name, the curves in each panel.
    """
    titles = list(dict.fromkeys(title for panels in tasks.values() for title in panels))
    figure, owners, first = stacked_panels(titles), [], next(iter(tasks))
    for task, panels in tasks.items():
        for title, curves in panels.items():
            for (name, (steps, values)), colour in zip(
                curves.items(), itertools.cycle(COLOURS), strict=False
            ):
                line = go.Scatter(
                    x=steps,
                    y=values,
                    name=name,
                    line={"color": colour},
                    mode="lines" if len(steps) > 1 else "markers",
                    legendgroup=title,
                    legendgrouptitle={"text": title},
                    visible=task == first,
                )
                figure.add_trace(line, row=titles.index(title) + 1, col=1)
                owners.append(task)
    height = 120 + 210 * len(titles)
    if len(tasks) > 1:
        _add_menu(figure, owners, {task: {} for task in tasks}, top=1 + 60 / height)
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title="environment steps", row=len(titles), col=1)
    finish(figure, height)
    figure.update_layout(legend={"y": -70 / height})
    return figure


def _lines(
    found: Mapping[str, tuple[Shaped[np.ndarray, "points"], Float[np.ndarray, "3 points"]]],
    contenders: Sequence[Contender],
    **layout: Any,
) -> go.Figure:
    """Return a line with a band for each contender that has one."""
    traces = [
        trace
        for name, colour, is_dashed in _styled(contenders, found)
        for trace in band_traces(name, *found[name], colour, is_dashed)
    ]
    figure = go.Figure(traces)
    figure.update_layout(**layout)
    return finish(figure)


def _add_menu(
    figure: go.Figure,
    owners: Sequence[str],
    choices: Mapping[str, dict[str, Any]],
    top: float = 1.18,
) -> None:
    """Add a menu that shows the traces of one choice.

    Args:
      figure: to add it to.
      owners: the choice that each trace belongs to.
      choices: changes of the layout by choice.
      top: of the menu, as a share of the plot's height.
    """
    buttons = [
        {
            "label": choice,
            "method": "update",
            "args": [{"visible": [owner == choice for owner in owners]}, layout],
        }
        for choice, layout in choices.items()
    ]
    menu = {"buttons": buttons, "x": 0.0, "xanchor": "left", "y": top, "yanchor": "top"}
    figure.update_layout(updatemenus=[menu])


def _styled(
    contenders: Sequence[Contender], found: Mapping[str, Any]
) -> Iterator[tuple[str, str, bool]]:
    """Yield name, colour, and whether the line is dashed, of each contender in `found`."""
    for contender, colour in styled(contenders, found):
        yield contender.name, colour, contender.kind == RANDOM

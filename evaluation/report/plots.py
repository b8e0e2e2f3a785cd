"""The figures of an evaluation: learning curves, comparisons of contenders, and suites' own."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from disco_common.terminal import printable
from evaluation.contenders import Contender
from evaluation.report import drawing
from evaluation.report.drawing import Curve, Drawing, drawn
from evaluation.report.tables import over_seeds
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation
from evaluation.scoring.statistics import AGGREGATES

_ROW = 0.24  # Inches, as is this:
_LETTER = 0.075
_MAX_PAIRS = 66  # That plots show: all pairs of a dozen contenders.


@drawn
def learning_curves(evaluation: Evaluation, contenders: Sequence[Contender]) -> Figure:
    """Return a plot with a panel per task: each contender's mean return ± standard error."""
    names, prefix = [x.name for x in contenders], _common_prefix(evaluation.tasks)
    panels = {}
    for i, task in enumerate(evaluation.tasks):
        panels[task.removeprefix(prefix)] = _curves(*evaluation.task_curves(i, names))
    figure = drawing.line_panels(panels, contenders, "environment steps", "mean episode return")
    title = printable(prefix.rstrip("/")) or "Learning curves"
    figure.suptitle(f"{title}: mean{over_seeds(evaluation.config.seeds)}")
    return figure


def _curves(
    x: Shaped[np.ndarray, "points"], by_name: Mapping[str, Float[np.ndarray, "3 points"]]
) -> dict[str, Curve]:
    return {name: Curve(x, *curve) for name, curve in by_name.items()}


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
    if pairs := _shown_pairs(comparison, contenders):
        found["improvement"] = _improvement(comparison, contenders, pairs[::-1])
    found["profiles"] = _profiles(comparison, contenders)
    found["efficiency"] = efficiency(comparison, contenders)
    return found


@drawn
def _profiles(comparison: Comparison, contenders: Sequence[Contender]) -> Figure:
    panels = {"score τ": _curves(comparison.thresholds, comparison.profiles)}
    return drawing.line_panels(panels, contenders, ylabel="fraction of runs with score > τ")


@drawn
def efficiency(comparison: Comparison, contenders: Sequence[Contender]) -> Figure:
    """Return a plot of the IQM along the budget: by steps, gradient steps and seconds."""
    steps, curves = comparison.curves(statistics.interquartile_mean)
    # By the axis, what a step of the environment is on it.
    axes = {
        "environment steps": dict.fromkeys(curves, 1.0),
        "gradient steps": comparison.gradient_steps,
        "wall seconds of a run": comparison.seconds,
    }
    panels = {
        axis: {name: Curve(steps * by[name], *x) for name, x in curves.items() if by.get(name)}
        for axis, by in axes.items()
    }
    panels = {axis: found for axis, found in panels.items() if found}
    return drawing.line_panels(panels, contenders, ylabel="IQM")


@drawn
def _aggregates(comparison: Comparison, contenders: Sequence[Contender]) -> Figure:
    """Return a panel for each aggregate, with each contender's value and intervals."""
    shown = [*drawing.contender_styles(contenders, comparison.aggregates).items()][::-1]
    figure = Figure(figsize=(1.6 + 1.9 * len(AGGREGATES), 0.9 + _ROW * len(shown)))
    panels = figure.subplots(1, len(AGGREGATES), sharey=True)
    for panel, label in zip(panels, AGGREGATES, strict=True):
        for row, (name, one) in enumerate(shown):
            drawing.draw_interval(panel, row, comparison.aggregates[name][label], one.color)
        panel.set_title(label)
        panel.xaxis.set_major_locator(MaxNLocator(4))
    drawing.name_rows(panels[0], [drawing.short_name(name) for name, _ in shown])
    return figure


def _shown_pairs(comparison: Comparison, contenders: Sequence[Contender]) -> list[tuple[str, str]]:
    """Return the pairs whose probability of improvement is shown; of many, those with an algorithm.

    The first of a pair comes before the second.
    """
    shown = [x for x in contenders if x.name in comparison.scores]
    pairs = list(itertools.combinations([x.name for x in shown], 2))
    if len(pairs) <= _MAX_PAIRS:
        return pairs
    references = {x.name for x in shown if not x.is_rule}
    return [pair for pair in pairs if references & set(pair)] or pairs


@drawn
def _improvement(
    comparison: Comparison, contenders: Sequence[Contender], pairs: Sequence[tuple[str, str]]
) -> Figure:
    styles = drawing.contender_styles(contenders, comparison.aggregates)
    names = [" > ".join(map(drawing.short_name, pair)) for pair in pairs]
    width = max(6.4, 3.0 + _LETTER * max(map(len, names)))
    figure = Figure(figsize=(width, 0.9 + _ROW * len(pairs)))
    panel = figure.subplots()
    for row, pair in enumerate(pairs):
        drawing.draw_interval(panel, row, comparison.improvement[pair], styles[pair[0]].color)
    panel.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel("probability of improvement")
    drawing.name_rows(panel, names)
    return figure


@drawn
def success_rates(
    rates: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]
) -> Figure:
    """Return bars of the success rate of each achievement, on a logarithmic scale.

    Args:
      rates: by contender and achievement, in percent.
      contenders: in the legend's order.
    """
    styles = drawing.contender_styles(contenders, rates)
    names = list(next(iter(rates.values())))[::-1]
    height, least = 0.8 / len(styles), 0.01
    figure = Figure(figsize=(7.0, 1.2 + len(names) * max(_ROW, 0.09 * len(styles))))
    panel = figure.subplots()
    for i, (contender, one) in enumerate(styles.items()):
        places = np.arange(len(names)) + 0.4 - (i + 0.5) * height
        widths = [max(rates[contender][name] - least, 0.0) for name in names]
        panel.barh(places, widths, height, left=least, color=one.color)
    drawing.use_logarithms(panel, "x")
    panel.set_xlim(least, 100.0)
    panel.set_xlabel("success rate (%)")
    drawing.name_rows(panel, list(map(printable, names)))
    drawing.add_legend(figure, [Patch(color=x.color) for x in styles.values()], [*styles])
    return figure


@drawn
def radar(scores: Mapping[str, Mapping[str, float]], contenders: Sequence[Contender]) -> Figure:
    """Return a radar plot of bsuite's scores by tag.

    Args:
      scores: by contender and tag, between 0 and 1.
      contenders: in the legend's order.
    """
    tags = list(next(iter(scores.values())))
    angles = 2.0 * np.pi * np.arange(len(tags)) / len(tags)
    styles = drawing.contender_styles(contenders, scores)
    figure, lines = Figure(figsize=(6.4, 5.2)), []
    panel = figure.subplots(subplot_kw={"projection": "polar"})
    for name, one in styles.items():
        own = [scores[name][tag] for tag in tags]
        lines += panel.plot([*angles, angles[0]], [*own, own[0]], color=one.color, linewidth=1.3)
    panel.set_ylim(0.0, 1.0)
    panel.set_xticks(angles, list(map(printable, tags)))
    drawing.add_legend(figure, lines, [*styles])
    return figure


def _common_prefix(names: Sequence[str]) -> str:
    """Return the suite's name and a slash if all tasks are of one suite; else an empty string."""
    prefixes = {name.partition("/")[0] + "/" for name in names if "/" in name}
    is_common = len(prefixes) == 1 and all("/" in name for name in names) and len(names) > 1
    return prefixes.pop() if is_common else ""

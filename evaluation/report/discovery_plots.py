"""The figures of discoveries: metrics by meta-step, and sweeps."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from disco_common.terminal import printable
from evaluation.report.drawing import (
    COLOURS,
    RULE_COLOURS,
    Drawing,
    add_legend,
    format_axes,
    mark,
    plot_style,
    with_thousands,
)

# Fields of a discovery's metrics (see `meta.run.summarize`), with the panels' titles.
DISCOVERY_PANELS = {
    "validation_reward": "meta-return: reward per validation step",
    "policy_entropy": "entropy of the agents' policies (nats)",
    "target_kl": "KL(target network || policy target)",
    "meta_gradient_norm": "norm of the agents' meta-gradients",
}
PROBE = "probe_score"
PROBE_PANEL = "score of fresh agents on discovery tasks (0: random policy, 1: reference)"


def discovery_curves(
    metrics: Sequence[Mapping[str, Any]], baselines: Mapping[str, float] | None = None
) -> Drawing:
    """Return a plot of a discovery's metrics by meta-step, as means over the population.

    Probes have the first panel. That of the meta-return has a band from the lower to the upper
    quartile of the agents, that of the agents' ages a thin line for each agent.

    Args:
      metrics: the records of the discovery (`evaluation.report.discovery_metrics`).
      baselines: scores of other contenders on the probes' tasks, by name.
    """
    probes = {x["meta_step"]: x[PROBE] for x in metrics if PROBE in x}
    steps = [record["meta_step"] for record in metrics]
    by_agent = [record["agents"]["validation_reward"] for record in metrics]
    finite = [[x for x in returns if x is not None] or [np.nan] for returns in by_agent]
    with plot_style():
        figure = Figure(figsize=(8.0, 9.0 if probes else 7.0), layout="constrained")
        by_name = figure.subplot_mosaic("ee;" * bool(probes) + "ab;cd;ff", sharex=True)
        panels = [by_name[name] for name in "abcd"]
        for panel, (name, title) in zip(panels, DISCOVERY_PANELS.items(), strict=True):
            values = [np.nan if record[name] is None else record[name] for record in metrics]
            marker = "." if len(steps) == 1 else None
            panel.plot(steps, values, color=RULE_COLOURS[0], linewidth=1.3, marker=marker)
            panel.set_title(title)
            format_axes(panel)
        low, high = (np.array([np.quantile(x, q) for x in finite]) for q in (0.25, 0.75))
        panels[0].fill_between(steps, low, high, color=RULE_COLOURS[0], alpha=0.18, linewidth=0)
        if probes:
            _draw_probes(by_name["e"], probes, baselines or {})
        _draw_ages(by_name["f"], steps, [x["agents"]["steps_since_reset"] for x in metrics])
        figure.suptitle("Discovery: mean over the agents; band: their middle half")
        return Drawing.of(figure)


def _draw_ages(panel: Axes, steps: Sequence[int], by_agent: Sequence[Sequence[int]]) -> None:
    """Draw each agent's environment steps since its start, and their mean, by meta-step."""
    ages, marker = np.array(by_agent), "." if len(steps) == 1 else None
    panel.plot(steps, ages, color=COLOURS[0], linewidth=0.6, alpha=0.25, marker=marker)
    panel.plot(steps, ages.mean(axis=1), color=RULE_COLOURS[0], linewidth=1.3, marker=marker)
    panel.set_title("environment steps since the agents' start (mean, and each agent)")
    panel.set_xlabel("meta-steps")
    format_axes(panel)
    panel.yaxis.set_major_formatter(with_thousands())


def _draw_probes(panel: Axes, probes: Mapping[int, float], baselines: Mapping[str, float]) -> None:
    """Draw the scores of fresh agents by meta-step, beside those of others."""
    panel.plot(list(probes), list(probes.values()), color=RULE_COLOURS[0], marker="o")
    for height in (0.0, 1.0):
        panel.axhline(height, color="black", linewidth=0.8, linestyle=":")
    for (name, score), colour in zip(baselines.items(), itertools.cycle(COLOURS), strict=False):
        panel.axhline(score, color=colour, linewidth=1.0, linestyle="--")
        place = (1.0, score), panel.get_yaxis_transform()
        panel.annotate(printable(name), place[0], xycoords=place[1], color=colour, va="center")
    panel.set_title(PROBE_PANEL)
    panel.xaxis.set_tick_params(labelbottom=True)
    format_axes(panel)


def sweep_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> Drawing:
    """Return a plot of the population's mean reward by meta-step, a line per sweep point.

    Args:
      points: the metrics (see `discovery_curves`) of each point's discovery, by name. More than 20
        records are reduced to 20 means over neighbouring ones.
    """
    colours = (*COLOURS, *RULE_COLOURS)
    styles = ("-", "--", ":", "-.")
    with plot_style():
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        panel, drawn = figure.subplots(), []
        for i, metrics in enumerate(points.values()):
            known = [x for x in metrics if x["validation_reward"] is not None]
            parts = np.array_split(np.arange(len(known)), max(1, min(len(known), 20)))
            rewards = [x["validation_reward"] for x in known]
            drawn += panel.plot(
                [known[part[-1]]["meta_step"] for part in parts if part.size],
                [np.mean([rewards[k] for k in part]) for part in parts if part.size],
                color=colours[i % len(colours)],
                linestyle=styles[i // len(colours) % len(styles)],
                linewidth=1.3,
                marker="." if len(parts) == 1 else None,
            )
        format_axes(panel)
        panel.set_xlabel("meta-steps")
        panel.set_ylabel(DISCOVERY_PANELS["validation_reward"])
        panel.set_title("Discoveries: mean over the agents")
        for line, name in zip(drawn, points, strict=True):
            mark(line, name)
        add_legend(figure, drawn, list(points))
        return Drawing.of(figure)

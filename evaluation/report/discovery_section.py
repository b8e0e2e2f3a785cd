"""Discoveries in a report: their section on its page, and the figures of one and of a sweep."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from evaluation.report.discoveries import PANELS, PROBE, Discovery
from evaluation.report.drawing import (
    COLOURS,
    RULE_COLOURS,
    Curve,
    drawn,
    format_axes,
    line_panels,
    with_thousands,
)
from evaluation.report.page import Row, Section

_PROBE_PANEL = "score of fresh agents on discovery tasks (0: random policy, 1: reference)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoverySection(Section):
    """The section of a discovery.

    Attributes:
      totals: a table of one row.
      problems: sentences on metrics that are ignored.
      has_probes: whether fresh agents learned by its rule along the way.
    """

    template: ClassVar[str] = "discovery.html"
    totals: Sequence[Row]
    problems: Sequence[str]
    has_probes: bool

    @property
    def heading(self) -> str:
        return f"Discovery: {self.name}"


def discovery_section(discovery: Discovery) -> DiscoverySection:
    """Return the section of a discovery."""
    metrics, last = discovery.metrics, discovery.metrics[-1]
    totals = {
        "meta-steps": f"{last['meta_step']:,}",
        "environment steps": f"{last.get('environment_steps') or 0:,}",
        "agents": len(last["agents"]["task"]),
        "suite": discovery.config.get("suite", ""),
        "seed": discovery.config.get("seed", ""),
        "agent resets": sum(record.get("num_resets") or 0 for record in metrics),
        "non-finite": sum(record.get("non_finite_agents") or 0 for record in metrics),
    }
    if probes := {x["meta_step"]: x[PROBE] for x in metrics if PROBE in x}:
        best = max(probes, key=lambda step: (probes[step], step))
        for which, step in (("newest", max(probes)), ("best", best)):
            totals[f"fresh agents, {which}"] = f"{probes[step]:.2f} at meta-step {step:,}"
    return DiscoverySection(
        name=discovery.name,
        plots={"discovery": discovery_curves(metrics)},
        totals=[totals],
        problems=discovery.problems,
        has_probes=bool(probes),
    )


@drawn
def discovery_curves(metrics: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a plot of a discovery's metrics by meta-step, as means over the population.

    Probes have the first panel. That of the meta-return has a band from the lower to the upper
    quartile of the agents, that of the agents' ages a thin line for each agent.

    `metrics` are the records of the discovery (`evaluation.report.discoveries`).
    """
    probes = {x["meta_step"]: x[PROBE] for x in metrics if PROBE in x}
    steps = [record["meta_step"] for record in metrics]
    style: Any = {"color": RULE_COLOURS[0], "marker": "." if len(steps) == 1 else None}
    figure = Figure(figsize=(8.0, 9.0 if probes else 7.0))
    names = [name for name in PANELS if any(name in record for record in metrics)]
    panels = "ab;cd;" if len(names) > 2 else "ab;"
    by_name = figure.subplot_mosaic("ee;" * bool(probes) + panels + "ff", sharex=True)
    for place, name in zip("abcd", names, strict=False):
        values = [np.nan if record.get(name) is None else record[name] for record in metrics]
        by_name[place].plot(steps, values, linewidth=1.3, **style)
        by_name[place].set_title(PANELS[name])
    if "validation_reward" in names:
        returns = [record["agents"]["validation_reward"] for record in metrics]
        finite = [[x for x in one if x is not None] or [np.nan] for one in returns]
        low, high = (np.array([np.quantile(x, q) for x in finite]) for q in (0.25, 0.75))
        by_name["a"].fill_between(steps, low, high, color=RULE_COLOURS[0], alpha=0.18, linewidth=0)
    if probes:
        by_name["e"].plot(list(probes), list(probes.values()), **style | {"marker": "o"})
        for height in (0.0, 1.0):
            by_name["e"].axhline(height, color="black", linewidth=0.8, linestyle=":")
        by_name["e"].set_title(_PROBE_PANEL)
        by_name["e"].xaxis.set_tick_params(labelbottom=True)
    ages, panel = np.array([x["agents"]["steps_since_reset"] for x in metrics]), by_name["f"]
    panel.plot(steps, ages, linewidth=0.6, alpha=0.25, **style | {"color": COLOURS[0]})
    panel.plot(steps, ages.mean(axis=1), linewidth=1.3, **style)
    panel.set_title("environment steps since the agents' start (mean, and each agent)")
    panel.set_xlabel("meta-steps")
    for one in by_name.values():
        format_axes(one)
    panel.yaxis.set_major_formatter(with_thousands())
    figure.suptitle("Discovery: mean over the agents; band: their middle half")
    return figure


@drawn
def sweep_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return a plot of the population's mean reward by meta-step, a line per sweep point.

    Args:
      points: the metrics (see `discovery_curves`) of each point's discovery, by name. More than 20
        records are reduced to 20 means over neighbouring ones.
    """
    curves = {}
    for name, metrics in points.items():
        known = [x for x in metrics if _return_of(x) is not None]
        parts = np.array_split(np.arange(len(known)), max(1, min(len(known), 20)))
        parts = [part for part in parts if part.size]
        rewards = [_return_of(x) for x in known]
        curves[name] = Curve(
            [known[part[-1]]["meta_step"] for part in parts],
            [float(np.mean([rewards[k] for k in part])) for part in parts],
        )
    panels = {"Discoveries: mean over the agents": curves}
    return line_panels(panels, xlabel="meta-steps", ylabel="meta-return")


def _return_of(record: Mapping[str, Any]) -> float | None:
    """Return the reward or return that a record has, whatever its estimator."""
    return record.get("validation_reward", record.get("mean_return"))

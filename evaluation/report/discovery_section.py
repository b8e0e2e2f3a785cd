"""Discoveries in a report: their section on its page, and the figures of one and of a sweep.

Beside the scores of a discovery's fresh agents stand those of other contenders: of evaluations in
the same report that have all of the probes' tasks, and the budget of the fresh agents.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from disco_common.terminal import printable
from evaluation.contenders import RANDOM
from evaluation.report.discoveries import PANELS, PROBE, Discovery, Probe, best_probe
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
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.references import by_references

_PROBE_PANEL = "score of fresh agents on discovery tasks (0: random policy, 1: reference)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoverySection(Section):
    """The section of a discovery.

    Attributes:
      totals: a table of one row.
      problems: sentences on metrics that are ignored.
      scores: a table of the scores of fresh agents and of others; empty without probes.
      probe_command: arguments of launch.evaluate that evaluate baselines on the probes' tasks;
        empty if some are shown, or without probes.
    """

    template: ClassVar[str] = "discovery.html"
    totals: Sequence[Row]
    problems: Sequence[str]
    scores: Sequence[Row]
    probe_command: str

    @property
    def heading(self) -> str:
        return f"Discovery: {self.name}"


def discovery_section(
    discovery: Discovery, evaluations: Sequence[Evaluation] = ()
) -> DiscoverySection:
    """Return the section of a discovery beside evaluations in the same report."""
    found, baselines = discovery.probes, probe_baselines(discovery, evaluations)
    command = ""
    if found and not baselines:
        command = f"--suite={','.join(found[0].tasks)} --config.budget={discovery.probe_budget}"
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
    return DiscoverySection(
        name=discovery.name,
        plots={"discovery": discovery_curves(metrics, baselines)},
        totals=[totals],
        problems=discovery.problems,
        scores=_probe_rows(found, baselines),
        probe_command=command,
    )


def probe_baselines(discovery: Discovery, evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return the scores of contenders on a discovery's probe tasks, on the probes' scale.

    They are by contender the mean over the tasks (`references.by_references`), of evaluations that
    have the tasks, their references and the budget; empty without probes, or if none fits.
    Contenders without a run on some task are left out.
    """
    found: dict[str, float] = {}
    tasks, budget = (list(x.tasks) for x in discovery.probes[:1]), discovery.probe_budget
    for probed, merged in itertools.product(tasks, evaluations):
        per_update = merged.config.agent.steps_per_update
        if budget is None or merged.config.num_steps != budget // per_update * per_update:
            continue
        if not set(probed) <= set(merged.tasks) & set(merged.references):
            continue
        places = [merged.tasks.index(task) for task in probed]
        known = [merged.references[task] for task in probed]
        for name, all_scores in merged.scores.items():
            scores = all_scores[places]
            if name != RANDOM and np.isfinite(scores).any(axis=1).all():
                found.setdefault(name, float(np.mean(by_references(scores, known))))
    return found


def _probe_rows(found: Sequence[Probe], baselines: Mapping[str, float]) -> list[Row]:
    """Return the scores of the newest and the best probe, and of others, the best first."""
    if not found:
        return []
    newest, best = found[-1], best_probe(found) or found[-1]
    scores = {f"fresh agents, meta-step {newest.meta_step:,} (newest)": newest.score}
    if best.meta_step != newest.meta_step:
        scores[f"fresh agents, meta-step {best.meta_step:,} (best)"] = best.score
    ranked = sorted((scores | dict(baselines)).items(), key=lambda pair: -pair[1])
    column = f"mean score on {len(newest.tasks)} tasks"
    return [{"agents that learn by": name, column: f"{score:.2f}"} for name, score in ranked]


@drawn
def discovery_curves(
    metrics: Sequence[Mapping[str, Any]], baselines: Mapping[str, float] | None = None
) -> Figure:
    """Return a plot of a discovery's metrics by meta-step, as means over the population.

    Probes have the first panel. That of the meta-return has a band from the lower to the upper
    quartile of the agents, that of the agents' ages a thin line for each agent.

    Args:
      metrics: the records of the discovery (`evaluation.report.discoveries`).
      baselines: scores of other contenders on the probes' tasks, by name.
    """
    probes = {x["meta_step"]: x[PROBE] for x in metrics if PROBE in x}
    steps = [record["meta_step"] for record in metrics]
    style: Any = {"color": RULE_COLOURS[0], "marker": "." if len(steps) == 1 else None}
    figure = Figure(figsize=(8.0, 9.0 if probes else 7.0))
    by_name = figure.subplot_mosaic("ee;" * bool(probes) + "ab;cd;ff", sharex=True)
    for place, (name, title) in zip("abcd", PANELS.items(), strict=True):
        values = [np.nan if record[name] is None else record[name] for record in metrics]
        by_name[place].plot(steps, values, linewidth=1.3, **style)
        by_name[place].set_title(title)
    returns = [record["agents"]["validation_reward"] for record in metrics]
    finite = [[x for x in one if x is not None] or [np.nan] for one in returns]
    low, high = (np.array([np.quantile(x, q) for x in finite]) for q in (0.25, 0.75))
    by_name["a"].fill_between(steps, low, high, color=RULE_COLOURS[0], alpha=0.18, linewidth=0)
    if probes:
        _draw_probes(by_name["e"], probes, baselines or {})
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


def _draw_probes(panel: Axes, probes: Mapping[int, float], baselines: Mapping[str, float]) -> None:
    """Draw the scores of fresh agents by meta-step, beside those of others."""
    panel.plot(list(probes), list(probes.values()), color=RULE_COLOURS[0], marker="o")
    for height in (0.0, 1.0):
        panel.axhline(height, color="black", linewidth=0.8, linestyle=":")
    for (name, score), colour in zip(baselines.items(), itertools.cycle(COLOURS), strict=False):
        panel.axhline(score, color=colour, linewidth=1.0, linestyle="--")
        place = (1.0, score), panel.get_yaxis_transform()
        panel.annotate(printable(name), place[0], xycoords=place[1], color=colour, va="center")
    panel.set_title(_PROBE_PANEL)
    panel.xaxis.set_tick_params(labelbottom=True)


@drawn
def sweep_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return a plot of the population's mean reward by meta-step, a line per sweep point.

    Args:
      points: the metrics (see `discovery_curves`) of each point's discovery, by name. More than 20
        records are reduced to 20 means over neighbouring ones.
    """
    curves = {}
    for name, metrics in points.items():
        known = [x for x in metrics if x["validation_reward"] is not None]
        parts = np.array_split(np.arange(len(known)), max(1, min(len(known), 20)))
        parts = [part for part in parts if part.size]
        rewards = [x["validation_reward"] for x in known]
        curves[name] = Curve(
            [known[part[-1]]["meta_step"] for part in parts],
            [float(np.mean([rewards[k] for k in part])) for part in parts],
        )
    panels = {"Discoveries: mean over the agents": curves}
    return line_panels(panels, xlabel="meta-steps", ylabel=PANELS["validation_reward"])

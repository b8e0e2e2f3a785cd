"""The section of a discovery on a report's page.

Beside the scores of its fresh agents stand those of other contenders: of evaluations in the same
report that have all of the probes' tasks, and the budget of the fresh agents.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from evaluation.contenders import RANDOM
from evaluation.report import page, probe_scores
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.discovery_plots import discovery_curves
from evaluation.report.merging import MergedEvaluation
from evaluation.report.page import Row
from evaluation.report.probe_scores import Probe
from evaluation.scoring.normalization import by_references


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoverySection(page.Section):
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
        """The section's heading."""
        return f"Discovery: {self.name}"


def discovery_section(
    discovery: Discovery, evaluations: Sequence[MergedEvaluation] = ()
) -> DiscoverySection:
    """Return the section of a discovery.

    Args:
      discovery: on disk.
      evaluations: in the same report.
    """
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


def probe_baselines(
    discovery: Discovery, evaluations: Sequence[MergedEvaluation]
) -> dict[str, float]:
    """Return the scores of contenders on a discovery's probe tasks, on the probes' scale.

    Args:
      discovery: with probes or without.
      evaluations: some.

    Returns:
      By contender, the mean over the tasks (`normalization.by_references`); empty without probes,
      or if no evaluation fits. Contenders without a run on some task are left out.
    """
    found: dict[str, float] = {}
    tasks = list(discovery.probes[0].tasks) if discovery.probes else []
    for merged in evaluations:
        if not tasks or not _fits(merged, tasks, discovery.probe_budget):
            continue
        places = [merged.tasks.index(task) for task in tasks]
        known = [merged.references[task] for task in tasks]
        for name, curves in merged.contender_curves.items():
            scores = curves.window.mean_return[places]
            if name != RANDOM and np.isfinite(scores).any(axis=1).all():
                found.setdefault(name, float(np.mean(by_references(scores, known))))
    return found


def _fits(merged: MergedEvaluation, tasks: Sequence[str], budget: int | None) -> bool:
    """Return whether an evaluation has the tasks with their references, and the budget."""
    per_update = merged.config.agent.steps_per_update
    return (
        budget is not None
        and merged.config.num_steps == budget // per_update * per_update
        and set(tasks) <= set(merged.tasks) & set(merged.references)
    )


def _probe_rows(found: Sequence[Probe], baselines: Mapping[str, float]) -> list[Row]:
    """Return the scores of the newest and the best probe, and of others, the best first."""
    if not found:
        return []
    best, newest = probe_scores.best(found), found[-1]
    scores = {f"fresh agents, meta-step {newest.meta_step:,} (newest)": newest.score}
    if best is not None and best.meta_step != newest.meta_step:
        scores[f"fresh agents, meta-step {best.meta_step:,} (best)"] = best.score
    ranked = sorted((scores | dict(baselines)).items(), key=lambda pair: -pair[1])
    number = len(newest.tasks)
    return [
        {"agents that learn by": name, f"mean score on {number} tasks": f"{score:.2f}"}
        for name, score in ranked
    ]

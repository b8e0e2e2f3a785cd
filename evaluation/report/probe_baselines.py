"""Scores of other contenders on the tasks that a discovery's fresh agents learned.

They are those of evaluations that stand in the same report, have all of these tasks, and the budget
of the fresh agents.
"""

from collections.abc import Sequence

import numpy as np

from evaluation.contenders import RANDOM
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.merging import MergedEvaluation
from evaluation.scoring.normalization import by_references


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

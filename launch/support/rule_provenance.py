"""Provenance of a discovered rule: the run that found it."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from launch.support.provenance import code_version
from launch.support.settings import DiscoverSettings

_PARTS = ("agent", "population", "meta", "objective")  # Settings in the provenance.


def rule_provenance(
    settings: DiscoverSettings,
    meta_steps: int,
    groups: Sequence[Sequence[str]],
    task_meta_steps: Sequence[Int[np.ndarray, "_tasks"]],
) -> dict[str, Any]:
    """Return the provenance of a discovery's rule, for its file's header.

    Args:
      settings: of the discovery.
      meta_steps: so far.
      groups: names of the tasks of each group of the population; empty if unknown.
      task_meta_steps: the meta-steps that agents have spent on each of these tasks.
    """
    parts = {name: getattr(settings, name) for name in _PARTS}
    per_agent = settings.meta.num_updates * settings.agent.steps_per_update
    found = {
        "code_version": code_version(),
        "jax_version": jax.__version__,
        "environments": settings.suite,
        "meta_steps": meta_steps,
        "planned_meta_steps": settings.meta_steps,
        "environment_steps": meta_steps * per_agent * settings.population.size,
        "seed": settings.seed,
        # With JSON's types: tuples become lists.
        **{name: json.loads(json.dumps(dataclasses.asdict(part))) for name, part in parts.items()},
    }
    if groups:
        found["tasks"] = {
            name: int(number) * per_agent
            for names, by_task in zip(groups, task_meta_steps, strict=True)
            for name, number in zip(names, by_task, strict=True)
            if number
        }
    return found

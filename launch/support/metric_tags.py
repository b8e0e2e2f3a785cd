"""Names of a discovery's metrics in TensorBoard and Weights & Biases: a group, a slash, a name."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

# Groups by patterns of whole names, the first that fits. What a pattern captures is the name in the
# group, otherwise the name stays as it is.
_GROUPS = [
    (re.compile(pattern), group)
    for pattern, group in (
        (r".*_per_second|memory_gib|(?:.*_)?seconds|device_idle_.*|simulator_restarts", "machine"),
        (r"validation_reward|episode_return", "score"),
        (r"meta_(.+)|target_kl|target_mean_square|[yz]_entropy", "meta"),
        (r"agent_(.+)_loss", "loss"),
        (r"agent_(entropy|pi_.*|policy_.*|.*_weight)", "policy"),
        (r"agent_(.*td|.*q_target|advantage|value.*)", "value"),
        (r"agent_([yz]_.+)", "prediction"),
        (r"agent_(.+)", "agent"),
        (r"num_resets|non_finite_agents|environment_steps", "population"),
    )
]
# Names that say nothing in their group.
_RENAMED = {"agent_loss": "loss/total", "policy_entropy": "policy/validation_entropy"}
PROBE = "score/fresh_agents"
_OTHERS = "other"
_STEP = "meta_step"


def by_tag(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among metrics by their tags, and the validation reward of each task.

    Args:
      metrics: of a window of meta-steps (`meta.run`). Names with a slash are tags already. What is
        no number is left out.
    """
    found = {
        _tag(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != _STEP
    }
    return found | _by_task(metrics.get("agents", {}))


def of_probe(score: float, tasks: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of fresh agents by tag: the mean, and those of tasks."""
    return {PROBE: score} | {of_task("probe", task): x for task, x in tasks.items()}


def of_task(group: str, task: str) -> str:
    """Return the tag of a task's number."""
    return f"{group}/{task}"


def _tag(name: str) -> str:
    if "/" in name:
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    for pattern, group in _GROUPS:
        if match := pattern.fullmatch(name):
            return f"{group}/{next(filter(None, match.groups()), name)}"
    return f"{_OTHERS}/{name}"


def _by_task(agents: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean validation reward of each task's agents, without those that have none."""
    rewards: dict[str, list[float]] = {}
    names, means = agents.get("task", ()), agents.get("validation_reward", ())
    for task, reward in zip(names, means, strict=False):
        if reward is not None:
            rewards.setdefault(task, []).append(reward)
    return {of_task("validation_reward", x): float(np.mean(y)) for x, y in rewards.items()}

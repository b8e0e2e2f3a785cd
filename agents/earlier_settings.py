"""Settings of agents that earlier versions stored, without those that are gone."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Switches = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""From today's config and stored settings to the values that settings which are gone must have."""


def present(
    agent: str,
    switches: Switches,
    stored: Mapping[str, Any],
    config: Any,
    **by_task: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an agent's stored settings as today's.

    What an agent always has became constants, and a name's words, which chose the others, still
    choose them: in these, today's settings of the same name are those of the run.

    Args:
      agent: its name, for messages.
      switches: what decides which agent was trained.
      stored: settings of an earlier version.
      config: today's settings of the same name, a dataclass.
      **by_task: by name in the stored settings, the settings on some tasks.

    Raises:
      ValueError: if the agent is gone.
    """
    for name, expected in switches(config, stored).items():
        if stored.get(name) != expected:
            raise ValueError(
                f"{agent} was trained by an older version, with {name} {stored.get(name)!r}, which"
                f" is gone; expected {expected!r}."
            )
    found = dataclasses.asdict(config)
    found |= {name: x for name, x in stored.items() if name in found}
    for which, configs in by_task.items():
        if isinstance(others := stored.get(which), Mapping):
            found[which] = {
                task: present(agent, switches, x, configs.get(task, config))
                for task, x in others.items()
                if isinstance(x, Mapping)
            }
    return found

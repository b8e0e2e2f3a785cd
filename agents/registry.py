"""Agents by name.

Other packages add agents by an entry point of the group `disco.agents`, which has the agent's name
and is a function of one text, what stands behind a slash, that returns an `AgentFactory` or a
`SelfContainedAgent` (`docs/extending.md`).
"""

from typing import Protocol, runtime_checkable

import environments
from agents.protocol import Agent
from agents.self_contained import Configured, SelfContainedAgent
from disco_common import plugins

PLUGINS = "disco.agents"


@runtime_checkable
class AgentFactory(Configured, Protocol):
    """Makes the agent for an environment. To be picklable, for sweeps on Ray."""

    def make(self, task: environments.Environment) -> Agent:
        """Return the agent for an environment; for environments of equal dynamics an equal one."""
        ...


def make(name: str) -> AgentFactory | SelfContainedAgent:
    """Return what makes, or is, the agent of a name.

    Args:
      name: of the agent; what stands behind a slash is handed to the function that makes it.

    Raises:
      ValueError: if there is none.
      disco_common.plugins.PluginError: if it is another package's, and fails.
    """
    family, _, parameters = name.partition("/")
    plugin = plugins.find(PLUGINS, family)
    if plugin is None:
        raise ValueError(
            f"There is no agent {name!r}; known are {plugins.names(PLUGINS) or 'none'}. Packages"
            f" add some by an entry point of the group {PLUGINS!r}."
        )
    return plugin(parameters)

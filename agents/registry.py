"""Agents by name.

Other packages add agents by an entry point of the group `disco.agents`. Its name is the agent's. It
refers to a function of one string, the part of the name after a slash, that returns an
`AgentFactory` or a `SelfContainedAgent` (`docs/extending.md`).
"""

from typing import Protocol, runtime_checkable

import environments
from agents.protocol import Agent
from agents.self_contained import Configured, SelfContainedAgent
from disco_common import plugins


@runtime_checkable
class AgentFactory(Configured, Protocol):
    """A factory of agents for environments. It must be picklable, for sweeps on Ray."""

    def make(self, task: environments.Environment) -> Agent:
        """Return the agent for an environment; for equal dynamics it returns equal agents."""
        ...


@runtime_checkable
class ObservingFactory(AgentFactory, Protocol):
    """A factory of agents with observations of their own, where an environment offers several."""

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return an environment with the observations of the agent's paper (`with_images`)."""
        ...


PLUGINS = plugins.define("disco.agents", AgentFactory, SelfContainedAgent, parameters=1)


def make(name: str) -> AgentFactory | SelfContainedAgent:
    """Return the factory of the agent of a name, or the agent if it is self-contained.

    Args:
      name: of the agent; the part after a slash is the argument of the entry point's function.

    Raises:
      ValueError: if there is no such agent.
      disco_common.plugins.PluginError: if another package's entry point fails.
    """
    family, _, parameters = name.partition("/")
    plugin = plugins.find(PLUGINS, family)
    if plugin is None:
        raise ValueError(
            f"There is no agent {name!r}; known are {plugins.names(PLUGINS) or 'none'}. Packages"
            f" add some by an entry point of the group {PLUGINS!r}."
        )
    return plugin(parameters)

"""The population in groups: agents whose environments have the same dynamics."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

import environments
from agents.rule_agent import Agent
from disco.types import Metrics
from meta.mesh import own_rows
from meta.population import Individual
from meta.value_function import ValueFunction


@dataclasses.dataclass(frozen=True)
class Group:
    """Agents whose environments have the same dynamics.

    Attributes:
      agent, value_function: their functions.
      tasks: stacked over the group's tasks; a tuple of them in host environments.
      names: of the tasks.
      places: the agents' numbers in the population.
      padded: places, and the first of them again until they divide among the devices. The
        copies live as their original does and have no say in the rule's update.
    """

    agent: Agent
    value_function: ValueFunction
    tasks: Any
    names: tuple[str, ...]
    places: np.ndarray
    padded: np.ndarray

    @property
    def is_host(self) -> bool:
        """Whether the environments are outside JAX."""
        return isinstance(self.agent.environment, environments.HostEnvironment)

    def places_here(self, mesh: Mesh) -> Int[np.ndarray, "here"]:
        """The numbers in the population of the agents that this process holds."""
        return np.unique(self.padded[own_rows(mesh, len(self.padded))])

    def task(self, index: Any) -> PyTree[Array]:
        """A task in a JAX environment; `()` in a host environment."""
        if self.is_host:
            return ()
        return jax.tree.map(lambda x: x[index], self.tasks)


class Evolved(NamedTuple):
    """A group after its part of a meta-step.

    Attributes:
      individuals: after it.
      update: sum of what the agents would do to the rule's R meta-parameters, in one vector for
        each of the mesh's D places of agents.
      count: how many agents have a say in that, `[D]`.
      metrics: of each agent.
    """

    individuals: Any
    update: Float[Array, "D R"]
    count: Float[Array, "D"]
    metrics: Metrics


def summed(individuals: Individual, updates: Any, report: Metrics, counts: Any) -> Evolved:
    """A group on one device: the sum over its agents that have a say."""
    return Evolved(
        individuals=individuals,
        update=jnp.tensordot(counts.astype(updates.dtype), updates, 1)[None],
        count=jnp.sum(counts.astype(jnp.float32) * report["finite"])[None],
        metrics=report,
    )

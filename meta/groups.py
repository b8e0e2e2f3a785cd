"""The population in groups: agents whose environments have the same dynamics."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

import disco
import environments
from agents.rule_agent import RuleAgent
from environments import registry
from meta.config import DiscoveryConfig, MetaConfig, PopulationConfig
from meta.objective import ValueFunction
from meta.sharding import local_rows


@dataclasses.dataclass(frozen=True)
class AgentGroup:
    """Agents whose environments have the same dynamics.

    Attributes:
      agent, value_function: functions of each of its agents and of their meta-value functions.
        The agent's rule is the one that the run started from; `agent_with` has another.
      dynamics: of the environments.
      task_params: parameters of the group's tasks, stacked; a tuple of them for host environments.
      names: of the tasks.
      indices: the agents' indices in the population.
      padded_indices: `indices`, and the first of them repeated until their number divides evenly
        among the devices. The copies do what their original does and do not count in the mean.
      population: budgets of its agents, in environment steps.
    """

    agent: RuleAgent
    dynamics: environments.JaxEnvironment | environments.HostEnvironment
    value_function: ValueFunction
    task_params: Any
    names: tuple[str, ...]
    indices: Int[np.ndarray, "agents"]
    padded_indices: Int[np.ndarray, "rows"]
    population: PopulationConfig

    @property
    def family(self) -> str:
        """The part of the tasks' names before the slash."""
        return registry.family_of(self.names[0])

    @property
    def is_host(self) -> bool:
        """Whether the environments are outside JAX."""
        return isinstance(self.dynamics, environments.HostEnvironment)

    @property
    def num_copies(self) -> int:
        """Number of rows that pad the group."""
        return len(self.padded_indices) - len(self.indices)

    @property
    def is_counted(self) -> Bool[Array, "rows"]:
        """Which rows are agents and not copies of one."""
        return jnp.arange(len(self.padded_indices)) < len(self.indices)

    def local_indices(self, mesh: Mesh) -> Int[np.ndarray, "local"]:
        """Return the indices in the population of the agents that this process holds."""
        return np.unique(self.padded_indices[local_rows(mesh, len(self.padded_indices))])

    def validation_unrolls(self, meta: MetaConfig) -> int:
        """Return how many unrolls of the training environments hold the validation trajectories."""
        if not (self.is_host and meta.validation_from_training):
            return 0
        return -(-meta.validation_trajectories // self.agent.config.num_environments)

    def unrolls_per_meta_step(self, meta: MetaConfig) -> int:
        """Return the unrolls of the training environments in a meta-step."""
        return meta.num_updates + self.validation_unrolls(meta)

    def agent_with(self, rule: disco.Rule) -> RuleAgent:
        """Return the agent that learns by a rule."""
        return dataclasses.replace(self.agent, rule=rule)

    def task_params_of(self, index: Any) -> PyTree[Array]:
        """Return the parameters of a task of JAX environments; `()` for host environments."""
        if self.is_host:
            return ()
        return jax.tree.map(lambda x: x[index], self.task_params)


def make_groups(
    config: DiscoveryConfig,
    tasks: Sequence[environments.Environment],
    rule: disco.DiscoveredRule,
    num_devices: int,
) -> tuple[AgentGroup, ...]:
    """Return the groups of a population.

    Raises:
      ValueError: if there are fewer agents than groups, a burn-in is longer than the validation
        trajectories, or these cannot be unrolls of the training environments.
    """
    groups = []
    grouped = environments.group_by_dynamics(tasks)
    assigned = _assign_indices(config.population.size, tasks, grouped)
    for group, indices in zip(grouped, assigned, strict=True):
        family = registry.family_of(group.names[0])
        agent_config = config.agent_of(group.names[0])
        agent = RuleAgent.create(agent_config, group.dynamics, rule)
        value_function = ValueFunction.create(
            config.value_function,
            group.dynamics.observation_spec(),
            agent_config.network,
            agent.network.history,
        )
        population = config.population
        if population.counts_frames:
            population = population.in_steps(environments.frames_per_action(family))
        groups.append(
            AgentGroup(
                agent=agent,
                dynamics=group.dynamics,
                value_function=value_function,
                task_params=group.task_params,
                names=group.names,
                indices=np.array(indices),
                padded_indices=np.array(indices + indices[:1] * (-len(indices) % num_devices)),
                population=population,
            )
        )
        _check_validation(config.meta, groups[-1])
    return tuple(groups)


def _check_validation(meta: MetaConfig, group: AgentGroup) -> None:
    """Raise a ValueError if an agent's sequences do not fit the validation trajectories."""
    agent, length = group.agent.config, meta.validation_length
    if agent.burn_in > length:
        raise ValueError(
            f"agent.burn_in of {group.family} is {agent.burn_in}; expected at most"
            f" meta.validation_length ({length})."
        )
    if group.validation_unrolls(meta) and agent.unroll_length != length:
        raise ValueError(
            f"meta.validation_length is {length}; expected agent.unroll_length"
            f" ({agent.unroll_length}) with meta.validation_from_training, as the trajectories of"
            f" {group.family} are unrolls of the training environments."
        )


def _assign_indices(
    size: int,
    tasks: Sequence[environments.Environment],
    grouped: Sequence[environments.TaskGroup],
) -> list[list[int]]:
    """Return each group's agents as indices in the population.

    Agent i has task i modulo the number of tasks. If there are fewer agents than tasks, each group
    has consecutive indices.
    """
    if size < len(grouped):
        names = ", ".join(group.names[0] for group in grouped)
        raise ValueError(
            f"population.size is {size}; expected at least {len(grouped)}, an agent for each"
            f" group of tasks with common specs (those of {names})."
        )
    if size < len(tasks):
        ends = np.cumsum(group_sizes([len(group.names) for group in grouped], size))
        starts = [0, *ends[:-1]]
        return [list(range(*bounds)) for bounds in zip(starts, ends.tolist(), strict=True)]
    return [
        [i for i in range(size) if tasks[i % len(tasks)].name in group.names] for group in grouped
    ]


def group_sizes(num_tasks: Sequence[int], population_size: int) -> list[int]:
    """Return the number of agents of each group of tasks, if there are fewer agents than tasks.

    The sizes are proportional to the numbers of tasks, rounded, and at least 1.
    """
    shares = population_size * np.array(num_tasks) / sum(num_tasks)
    sizes = np.maximum(1, np.floor(shares).astype(int))
    while sizes.sum() < population_size:
        sizes[np.argmax(shares - sizes)] += 1
    while sizes.sum() > population_size:
        sizes[np.argmax(np.where(sizes > 1, sizes - shares, -np.inf))] -= 1
    return sizes.tolist()

"""The population: one agent per place, each with its task, lifetime and meta-optimiser.

DiscoRL, Methods: "Each agent's parameters are reset after it has consumed its allocated
experience budget"; the budget is drawn from categories with weight inversely proportional to
it, so that each category gets the same experience in total.
"""

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.rule_agent import Agent, AgentState
from common.ranges import AT_LEAST_0, AT_LEAST_1
from meta.value_function import ValueFunction, ValueFunctionState
from training.collection import ActorState

_MOST_STEPS = 2**31 - 1  # An int32 counts them.


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """Who learns, and for how long.

    Attributes:
      size: agents, at least one for each group of tasks with common specs. With fewer agents
        than tasks, a reborn agent takes the task, of those that no other has, on which least was
        lived so far.
      lifetimes: the categories of experience budget, in environment steps.
      first_rebirth: environment steps that each agent of the first generation is granted
        besides, so that the rule is no longer blank when the first agents are reborn.
    """

    size: int = 57
    lifetimes: tuple[int, ...] = (200_000_000, 100_000_000, 50_000_000, 20_000_000)
    first_rebirth: int = 0

    def __post_init__(self):
        AT_LEAST_1.require(self, "population.", "size")
        AT_LEAST_0.require(self, "population.", "first_rebirth")
        if not self.lifetimes or min(self.lifetimes) < 1:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes}; expected positive numbers of"
                " environment steps."
            )
        if self.first_rebirth + max(self.lifetimes) > _MOST_STEPS:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes} and population.first_rebirth"
                f" {self.first_rebirth}; expected lives of at most {_MOST_STEPS} environment steps,"
                " which is as far as they are counted."
            )


@chex.dataclass(frozen=True)
class Life:
    """Where an agent stands in its lifetime.

    Attributes:
      task: index of the agent's task among those of its group.
      births: how often this place of the population was reborn.
      steps: environment steps consumed since birth.
      budget: at which the agent is reborn.
    """

    task: Int[Array, ""]
    births: Int[Array, ""]
    steps: Int[Array, ""]
    budget: Int[Array, ""]


@chex.dataclass(frozen=True)
class Individual:
    """One agent of the population and what belongs to it. Stacked over agents in use.

    Attributes:
      agent: it.
      validation: the environments of its validation trajectories; None outside JAX.
      value: its meta-value function.
      life: its lifetime.
      meta_optimizer: the Adam state of its meta-gradient; it outlives the agent.
    """

    agent: AgentState
    validation: ActorState | None
    value: ValueFunctionState
    life: Life
    meta_optimizer: optax.OptState


def draw_budget(
    config: PopulationConfig, key: PRNGKeyArray, births: Int[Array, ""]
) -> Int[Array, ""]:
    """An experience budget, in environment steps, of an agent's birth number `births`.

    The first generation's ends are spread evenly over a lifetime, after `first_rebirth`.
    """
    category_key, stagger_key = jax.random.split(key)
    lifetimes = jnp.asarray(config.lifetimes, jnp.int32)
    real = jnp.result_type(float)
    weights = 1.0 / jnp.asarray(config.lifetimes, real)
    budget = jax.random.choice(category_key, lifetimes, p=weights / jnp.sum(weights))
    remaining = jax.random.uniform(stagger_key) * budget.astype(real)
    return jnp.where(births == 0, config.first_rebirth + remaining.astype(jnp.int32), budget)


def allot(num_tasks: Sequence[int], population_size: int) -> list[int]:
    """The number of agents of each group of tasks, where there are fewer agents than tasks.

    As near to the groups' shares of the tasks as whole agents, at least one for each, can be.

    Args:
      num_tasks: of each group.
      population_size: at least as many agents as groups, at most as many as tasks.
    """
    shares = population_size * np.array(num_tasks) / sum(num_tasks)
    sizes = np.maximum(1, np.floor(shares).astype(int))
    while sizes.sum() < population_size:
        sizes[np.argmax(shares - sizes)] += 1
    while sizes.sum() > population_size:
        sizes[np.argmax(np.where(sizes > 1, sizes - shares, -np.inf))] -= 1
    return sizes.tolist()


def first_tasks(num_agents: int, num_tasks: int) -> Int[np.ndarray, "agents"]:
    """The task of each agent of a group's first generation."""
    return np.arange(num_agents) % num_tasks


def next_tasks(
    tasks: Int[np.ndarray, "agents"],
    reborn: Bool[np.ndarray, "agents"],
    lived: Int[np.ndarray, "tasks"],
) -> Int[np.ndarray, "agents"]:
    """The task of each agent of a group once some are reborn.

    A reborn agent takes, of the tasks that fewest others have, the one on which least was lived so
    far. Where every task has as many agents, each keeps its own.

    Args:
      tasks: of the agents, as indices, before.
      reborn: who is.
      lived: meta-steps of all agents so far on each task.
    """
    if len(tasks) % len(lived) == 0:
        return tasks
    tasks = tasks.copy()
    held = np.bincount(tasks[~reborn], minlength=len(lived))
    for agent in np.flatnonzero(reborn):
        tasks[agent] = np.lexsort((lived, held))[0]
        held[tasks[agent]] += 1
    return tasks


def newborn(
    agent: Agent,
    value_function: ValueFunction,
    rule: disco.Rule,
    task: PyTree[Array],
    key: PRNGKeyArray,
    validation_trajectories: int,
) -> tuple[AgentState, ActorState | None, ValueFunctionState]:
    """A fresh agent, its validation environments and its meta-value function.

    Environments outside JAX are started elsewhere (`meta.host_group`).
    """
    agent_key, validation_key, value_key = jax.random.split(key, 3)
    if isinstance(agent.environment, environments.HostEnvironment):
        learner = agent.init_learner(rule, agent_key)
        updates = jnp.zeros((), jnp.int32)
        state = AgentState(learner=learner, actor=None, replay=None, updates=updates)
        return state, None, value_function.init(value_key)
    return (
        agent.init(rule, task, agent_key),
        agent.start(task, validation_key, validation_trajectories),
        value_function.init(value_key),
    )

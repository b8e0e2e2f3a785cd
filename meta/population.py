"""The population: one agent per place, each with its task, lifetime and meta-optimiser.

DiscoRL, Methods: "Each agent's parameters are reset after it has consumed its allocated
experience budget"; the budget is drawn from categories with weight inversely proportional to
it, so that each category gets the same experience in total.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.acting import ActorState
from agents.agent import Agent, AgentState
from meta.value_function import ValueFunction, ValueFunctionState


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """Who learns, and for how long.

    Attributes:
      size: agents. They cycle through the tasks; with fewer agents than tasks, a reborn agent
        takes the next task that no other has.
      lifetimes: the categories of experience budget, in environment steps.
      first_rebirth: environment steps that each agent of the first generation is granted
        besides, so that the rule is no longer blank when the first agents are reborn.
    """

    size: int = 57
    lifetimes: tuple[int, ...] = (200_000_000, 100_000_000, 50_000_000, 20_000_000)
    first_rebirth: int = 0

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"population.size is {self.size}; expected at least 1.")
        if not self.lifetimes or min(self.lifetimes) < 1:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes}; expected positive numbers of"
                " environment steps."
            )
        if self.first_rebirth < 0:
            raise ValueError(
                f"population.first_rebirth is {self.first_rebirth}; expected at least 0."
            )


@chex.dataclass(frozen=True)
class Life:
    """Where an agent stands in its lifetime.

    Attributes:
      births: how often this place of the population was reborn.
      steps: environment steps consumed since birth.
      budget: at which the agent is reborn.
    """

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


def task_index(num_tasks: int, place: Any, births: Any, population_size: int) -> Int[Array, ""]:
    """The index of an agent's task among the tasks of its group."""
    # A population that holds every task equally often keeps each place's task.
    shift = population_size % num_tasks
    return (place + births * shift) % num_tasks


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

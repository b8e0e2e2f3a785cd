"""The population: its state, how its agents start, how they are reset, and their tasks.

DiscoRL, Methods: "Each agent's parameters are reset after it has consumed its allocated
experience budget". The budget is drawn from categories with probability inversely proportional to
the budget, so that each category gets the same experience in total.
"""

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

import disco
import environments
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig, MetaConfig, PopulationConfig
from meta.groups import AgentGroup
from meta.objective import ValueFunctionState
from training import collection, iteration
from training.collection import ActorState
from training.iteration import TrainingState


@chex.dataclass(frozen=True)
class Lifetime:
    """The task of an agent and how much of its experience budget it has consumed.

    Attributes:
      task: index of the agent's task among those of its group.
      resets: how often this agent of the population was reset so far; 0 in the first generation.
      steps: environment steps since the last reset.
      budget: environment steps after which the agent is reset.
    """

    task: Int[Array, "*agents"]
    resets: Int[Array, "*agents"]
    steps: Int[Array, "*agents"]
    budget: Int[Array, "*agents"]


@chex.dataclass(frozen=True)
class Member:
    """One agent of the population with its meta-learning state; stacked over agents in use.

    Attributes:
      agent: its learning state, environments and replay; its functions are `AgentGroup.agent`.
      validation: environments of the validation trajectories; None outside JAX.
      value: the meta-value function.
      lifetime: task and experience budget.
      meta_optimizer: the Adam state of the agent's meta-gradient. Resets do not change it.
    """

    agent: TrainingState
    validation: ActorState | None
    value: ValueFunctionState
    lifetime: Lifetime
    meta_optimizer: optax.OptState


@chex.dataclass(frozen=True)
class DiscoveryState:
    """The whole state of a discovery run; what a checkpoint holds.

    Attributes:
      rule: the newest rule, by which the agents learn.
      average: the moving average of the rules so far, to be exported.
      groups: the agents of each group of environments with common specs, stacked.
      task_meta_steps: for each group, the meta-steps that agents have spent on each of its tasks.
      meta_step: number of meta-steps so far.
    """

    rule: disco.DiscoveredRule
    average: disco.DiscoveredRule
    groups: tuple[Member, ...]
    task_meta_steps: tuple[Int[Array, "_tasks"], ...]
    meta_step: Int[Array, ""]


def meta_optimizer(config: MetaConfig) -> optax.GradientTransformation:
    """Return the optimiser of one agent's meta-gradients, without the rule's learning rate."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), optax.scale_by_adam(b2=config.adam_b2)
    )


def empty_population(
    config: DiscoveryConfig, groups: Sequence[AgentGroup], rule: disco.DiscoveredRule
) -> DiscoveryState:
    """Return the state with placeholders for the first agents, which `reset_agents` initialises."""
    meta_optimizer_state = meta_optimizer(config.meta).init(ravel_pytree(rule)[0])

    def placeholders(group: AgentGroup) -> Member:
        zero = jnp.zeros((), jnp.int32)
        shapes = jax.eval_shape(
            lambda rule, state: init_member(config, group, rule, zero, zero, zero, zero, state),
            rule,
            meta_optimizer_state,
        )
        member = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        lifetime = dataclasses.replace(member.lifetime, resets=member.lifetime.resets - 1)
        member = dataclasses.replace(member, lifetime=lifetime, meta_optimizer=meta_optimizer_state)
        num_rows = len(group.padded_indices)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), member)

    return DiscoveryState(
        rule=rule,
        average=rule,
        groups=tuple(placeholders(group) for group in groups),
        task_meta_steps=tuple(jnp.zeros(len(group.names), jnp.int32) for group in groups),
        meta_step=jnp.zeros((), jnp.int32),
    )


def reset_agents(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    members: Member,
    indices: Int[Array, "agents"],
    is_reset: Bool[Array, "agents"],
    tasks: Int[Array, "agents"],
) -> Member:
    """Return the agents of a group with some of them replaced by initial agents."""

    def initial(member: Member, task, index) -> Member:
        resets = member.lifetime.resets + 1
        return init_member(
            config, group, rule, meta_step, task, index, resets, member.meta_optimizer
        )

    initial_members = jax.vmap(initial)(members, tasks, indices)
    return jax.tree.map(
        lambda new, old: jnp.where(is_reset.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
        initial_members,
        members,
    )


def init_member(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    task: Int[Array, ""],
    index: Int[Array, ""],
    resets: Int[Array, ""],
    meta_optimizer_state: PyTree[Array],
) -> Member:
    """Return an initial agent: number `index` of the population, after so many resets."""
    budget_key, key = jax.random.split(keys.key(config.seed, Purpose.INITIALIZE, meta_step, index))
    agent_key, validation_key, value_key = jax.random.split(key, 3)
    agent, dynamics, params = group.agent_with(rule), group.dynamics, group.task_params_of(task)
    if isinstance(dynamics, environments.HostEnvironment):  # `meta.host_groups` starts them.
        learner, updates = agent.init(agent_key), jnp.zeros((), jnp.int32)
        state = TrainingState(learner=learner, actor=None, replay=None, updates=updates)
        validation = None
    else:
        number = config.meta.validation_trajectories
        state = iteration.init(agent, dynamics, params, agent_key)
        validation = collection.start(agent, dynamics, params, validation_key, number)
    budget = draw_budget(group.population, budget_key, resets)
    return Member(
        agent=state,
        validation=validation,
        value=group.value_function.init(value_key),
        lifetime=Lifetime(task=task, resets=resets, steps=jnp.zeros((), jnp.int32), budget=budget),
        meta_optimizer=meta_optimizer_state,
    )


def draw_budget(
    config: PopulationConfig, key: PRNGKeyArray, resets: Int[Array, ""]
) -> Int[Array, ""]:
    """Return an experience budget, in environment steps.

    The budgets of the first generation end evenly spread over a lifetime, after
    `first_reset_after`.
    """
    category_key, stagger_key = jax.random.split(key)
    lifetimes = jnp.asarray(config.lifetimes, jnp.int32)
    real = jnp.result_type(float)
    weights = 1.0 / jnp.asarray(config.lifetimes, real)
    budget = jax.random.choice(category_key, lifetimes, p=weights / jnp.sum(weights))
    remaining = jax.random.uniform(stagger_key) * budget.astype(real)
    return jnp.where(resets == 0, config.first_reset_after + remaining.astype(jnp.int32), budget)


def reassign_tasks(
    tasks: Int[np.ndarray, "agents"],
    is_reset: Bool[np.ndarray, "agents"],
    task_meta_steps: Int[np.ndarray, "tasks"],
    keeps_tasks: bool = False,
) -> Int[np.ndarray, "agents"]:
    """Return the task of each agent of a group after some agents are reset.

    Of the tasks that the fewest other agents have, an agent that is reset takes the one with the
    fewest `task_meta_steps`. If every task has the same number of agents, each agent keeps its
    task; with `keeps_tasks` also if some tasks have one agent more than others.
    """
    is_covered = keeps_tasks and len(tasks) >= len(task_meta_steps)
    if is_covered or len(tasks) % len(task_meta_steps) == 0:
        return tasks
    tasks = tasks.copy()
    num_agents = np.bincount(tasks[~is_reset], minlength=len(task_meta_steps))
    for agent in np.flatnonzero(is_reset):
        tasks[agent] = np.lexsort((task_meta_steps, num_agents))[0]
        num_agents[tasks[agent]] += 1
    return tasks

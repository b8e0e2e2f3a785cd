"""The population: how its agents start and how they are reset.

DiscoRL, Methods: "Each agent's parameters are reset after it has consumed its allocated
experience budget". The budget is drawn from categories with probability inversely proportional to
the budget, so that each category gets the same experience in total.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

import disco
import environments
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig, PopulationConfig
from meta.groups import Group
from meta.meta_step import meta_optimizer
from meta.state import DiscoveryState, Lifetime, Member
from training import collection, iteration
from training.iteration import TrainingState


def empty_population(
    config: DiscoveryConfig, groups: Sequence[Group], rule: disco.DiscoveredRule
) -> DiscoveryState:
    """Return the state before the first agents are initialised, with placeholders for them.

    `reset_agents` initialises them; their number of resets is then 0.
    """
    meta_optimizer_state = meta_optimizer(config.meta).init(ravel_pytree(rule)[0])

    def placeholders(group: Group) -> Member:
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
    group: Group,
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
    group: Group,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    task: Int[Array, ""],
    index: Int[Array, ""],
    resets: Int[Array, ""],
    meta_optimizer_state: PyTree[Array],
) -> Member:
    """Return an initial agent of the population.

    `index` is its number in the population, `resets` counts those of this agent so far, and the
    reset does not change `meta_optimizer_state`.
    """
    budget_key, key = jax.random.split(keys.key(config.seed, Purpose.INITIALIZE, meta_step, index))
    agent_key, validation_key, value_key = jax.random.split(key, 3)
    agent, dynamics, params = group.agent_with(rule), group.dynamics, group.params_of(task)
    value = group.value_function.init(value_key)
    if isinstance(dynamics, environments.HostEnvironment):  # `meta.host_groups` starts them.
        learner, updates = agent.init(agent_key), jnp.zeros((), jnp.int32)
        state = TrainingState(learner=learner, actor=None, replay=None, updates=updates)
        validation = None
    else:
        number = config.meta.validation_trajectories
        state = iteration.init(agent, dynamics, params, agent_key)
        validation = collection.start(agent, dynamics, params, validation_key, number)
    lifetime = Lifetime(
        task=task,
        resets=resets,
        steps=jnp.zeros((), jnp.int32),
        budget=draw_budget(group.population, budget_key, resets),
    )
    return Member(
        agent=state,
        validation=validation,
        value=value,
        lifetime=lifetime,
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

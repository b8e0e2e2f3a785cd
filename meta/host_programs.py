"""The compiled programs of a group of agents of host environments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import disco
from meta import inner_loop
from meta.config import DiscoveryConfig
from meta.groups import Group
from meta.meta_step import agent_meta_update, sum_over_agents
from meta.sharding import AGENTS, over_agents, shard_map_over_agents
from meta.state import Member
from training.passes import agents_per_pass, map_agents


class HostPrograms:
    """The compiled programs of a group, over its agents; each is compiled at its first call.

    Attributes:
      update: from the rule, the agents and their batches to the agents after one update, the
        update's residuals, and metrics. Donates the agents.
      store_residuals: from the residuals of K updates, those of one update and its number to the
        residuals with those of that update replaced. Donates the first.
      meta_update: from the rule, the agents after K updates, their learners before, the residuals
        and the validation trajectories to the agents and their contribution. Donates the agents.
      unstack: from parameters of several agents to a list of each agent's.
    """

    def __init__(self, config: DiscoveryConfig, group: Group, mesh: Mesh):
        is_counted = group.is_counted
        per_pass = agents_per_pass(
            config.meta.agents_at_once, len(group.padded_indices) // mesh.shape[AGENTS]
        )

        def update_one(rule, member: Member, batch: disco.Trajectory):
            state, value, residuals, metrics = inner_loop.update(
                group.agent_with(rule), group.value_function, member.agent, member.value, batch
            )
            return dataclasses.replace(member, agent=state, value=value), residuals, metrics

        def update(rule, members, batches):
            return map_agents(lambda row: update_one(rule, *row), (members, batches), per_pass)

        def meta_update(rule, members, learners_before, residuals, validations, is_counted):
            members, updates, metrics = map_agents(
                lambda row: agent_meta_update(config, group, rule, *row),
                (members, learners_before, residuals, validations),
                per_pass,
            )
            return members, sum_over_agents(updates, metrics, is_counted)

        def store_residuals(stored, residuals, number):
            return jax.tree.map(lambda all_, x: all_.at[:, number].set(x), stored, residuals)

        def sharded(function: Callable, arguments: str) -> Callable:
            mapped = shard_map_over_agents(mesh, function, arguments, P(AGENTS))
            return lambda *rows: jax.lax.with_sharding_constraint(mapped(*rows), over_agents(mesh))

        self.update = jax.jit(sharded(update, "raa"), donate_argnums=1)
        self.store_residuals = jax.jit(sharded(store_residuals, "aar"), donate_argnums=0)
        self.meta_update = jax.jit(
            lambda *arguments: sharded(meta_update, "raaaaa")(*arguments, is_counted),
            donate_argnums=1,
        )
        self.unstack = jax.jit(_unstack)


def _unstack(params: Any) -> list[Any]:
    num_agents = jax.tree.leaves(params)[0].shape[0]
    return [jax.tree.map(lambda x, i=i: x[i], params) for i in range(num_agents)]

"""The compiled programs of a meta-step over the devices of a mesh."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

import disco
from disco_common import compilation
from meta import inner_loop
from meta.config import DiscoveryConfig
from meta.groups import AgentGroup
from meta.meta_step import (
    Contribution,
    agent_meta_update,
    group_meta_step,
    improve_rule,
    sum_over_agents,
)
from meta.population import DiscoveryState, Member, reset_agents
from meta.sharding import (
    AGENTS,
    all_gather_agents,
    over_agents,
    replicated,
    shard_map_over_agents,
)
from training.passes import agents_per_pass, map_agents, unstack


class DevicePrograms:
    """The programs over all groups; each is compiled at its first call, or by `compile`.

    Attributes:
      on_device: numbers of the groups of JAX environments.
      groups_meta_step: `_groups_meta_step`, donates the groups.
      improve_rule: `_improve_rule`.
      reset_agents: `_reset_agents`, donates the groups.
    """

    def __init__(self, config: DiscoveryConfig, groups: Sequence[AgentGroup], mesh: Mesh):
        self._config, self._groups, self._mesh = config, groups, mesh
        self.on_device = [i for i, group in enumerate(groups) if not group.is_host]
        self.groups_meta_step = jax.jit(
            self._groups_meta_step, donate_argnums=2, compiler_options=compilation.fast_on_cpu()
        )
        self.improve_rule = compilation.jit_compiled_fast(self._improve_rule)
        self.reset_agents = compilation.jit_compiled_fast(self._reset_agents, donate_argnums=2)

    def compile(self, state: DiscoveryState) -> None:
        """Compile the programs of a meta-step without host environments, two at the same time.

        `state` has shapes, dtypes and shardings.
        """
        # Processes that compile together do so in the same order.
        num_threads = 1 if jax.process_count() > 1 else 2
        with ThreadPoolExecutor(num_threads) as pool:
            for compiled in [pool.submit(program.compile) for program in self.lower(state)]:
                compiled.result()

    def lower(self, state: DiscoveryState) -> Iterator[jax.stages.Lowered]:
        """Yield the lowered programs of a meta-step without host environments.

        They are `groups_meta_step`, and `improve_rule`, which has all communication between
        devices. `state` has shapes, dtypes and shardings.
        """
        arguments = (state.rule, state.meta_step, state.groups)
        yield self.groups_meta_step.lower(*arguments)
        sharding = over_agents(self._mesh)
        contributions = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            tuple(part for _, part in self.groups_meta_step.eval_shape(*arguments)),
        )
        yield self.improve_rule.jitted().lower(
            state.rule, state.average, state.task_meta_steps, state.meta_step, contributions
        )

    def _groups_meta_step(
        self, rule: disco.DiscoveredRule, meta_step: Int[Array, ""], groups: tuple[Member, ...]
    ) -> tuple[tuple[Member, Contribution], ...]:
        """Make steps 1 to 5 of a meta-step for the groups of JAX environments.

        Returns:
          These groups after it, each with its contribution to the rule's update.
        """
        own = [self._groups[number] for number in self.on_device]

        def shard(rule, meta_step, groups, indices, is_counted):
            return tuple(
                group_meta_step(self._config, group, rule, meta_step, *rows)
                for group, *rows in zip(own, groups, indices, is_counted, strict=True)
            )

        results = shard_map_over_agents(self._mesh, shard, "rraaa", P(AGENTS))(
            rule,
            meta_step,
            groups,
            tuple(np.asarray(group.padded_indices, np.int32) for group in own),
            tuple(group.is_counted for group in own),
        )
        return jax.lax.with_sharding_constraint(results, over_agents(self._mesh))

    def _improve_rule(
        self,
        rule: disco.DiscoveredRule,
        average: disco.DiscoveredRule,
        task_meta_steps: tuple[Int[Array, "_tasks"], ...],
        meta_step: Int[Array, ""],
        contributions: tuple[Contribution, ...],
    ) -> tuple[Any, ...]:
        """Make step 6 of a meta-step; `meta_step` is the number of those before.

        Returns:
          The first four arguments after it, and each group's metrics of its agents.
        """

        def shard(rule, average, meta_step, contributions):
            new = improve_rule(self._config.meta, rule, average, meta_step, contributions)
            return *new, all_gather_agents(tuple(part.metrics for part in contributions))

        rule, average, metrics = shard_map_over_agents(self._mesh, shard, "rrra", P())(
            rule, average, meta_step, contributions
        )
        metrics = tuple(
            jax.tree.map(lambda x, n=len(group.indices): x[:n], part)
            for part, group in zip(metrics, self._groups, strict=True)
        )
        task_meta_steps = tuple(
            before.at[part["task"]].add(1)
            for before, part in zip(task_meta_steps, metrics, strict=True)
        )
        state = (rule, average, task_meta_steps, meta_step + 1)
        return *jax.lax.with_sharding_constraint(state, replicated(self._mesh)), metrics

    def _reset_agents(
        self,
        rule: disco.DiscoveredRule,
        meta_step: Int[Array, ""],
        groups: tuple[Member, ...],
        is_reset: tuple[Bool[Array, "_agents"], ...],
        tasks: tuple[Int[Array, "_agents"], ...],
    ) -> tuple[Member, ...]:
        """Make step 7 of a meta-step; return the groups after it."""

        def shard(rule, meta_step, *by_group):
            return tuple(
                reset_agents(self._config, group, rule, meta_step, *rows)
                for group, *rows in zip(self._groups, *by_group, strict=True)
            )

        indices = tuple(np.asarray(group.padded_indices, np.int32) for group in self._groups)
        groups = shard_map_over_agents(self._mesh, shard, "rraaaa", P(AGENTS))(
            rule, meta_step, groups, indices, is_reset, tasks
        )
        return jax.lax.with_sharding_constraint(groups, over_agents(self._mesh))


class HostPrograms:
    """The programs of a group of host environments; each is compiled at its first call.

    Attributes:
      update: from the rule, the agents and their batches to the agents after one update, the
        update's residuals, and metrics. Donates the agents.
      store_residuals: from the residuals of K updates, those of one update and its number to the
        residuals with those of that update replaced. Donates the first.
      meta_update: from the rule, the agents after K updates, their learners before, the residuals
        and the validation trajectories to the agents and their contribution. Donates the agents.
      unstack: from parameters of several agents to a list of each agent's.
    """

    def __init__(self, config: DiscoveryConfig, group: AgentGroup, mesh: Mesh):
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
        self.unstack = jax.jit(unstack)

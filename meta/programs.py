"""The compiled programs of a meta-step over the devices of a mesh.

`DevicePrograms.agents_meta_step` is the inner loops and meta-gradients of the groups of JAX
environments, `update_rule` the rule's update by all groups, `reset_agents` the reset of agents.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

import disco
from agents import compilation
from meta.config import DiscoveryConfig
from meta.groups import Group
from meta.meta_step import Contribution, add_meta_step, group_meta_step, update_rule
from meta.population import DiscoveryState, Member, reset_agents
from meta.sharding import (
    AGENTS,
    all_gather_agents,
    over_agents,
    replicated,
    shard_map_over_agents,
)


class DevicePrograms:
    """The programs of a run; each is compiled at its first call, or by `compile`.

    Attributes:
      on_device: numbers of the groups of JAX environments.
      agents_meta_step: from the rule, the number of meta-steps so far and the groups on device to
        the groups after steps 1 to 5 of a meta-step, each with its contribution. Donates the
        groups.
      update_rule: from the rule, its average, the meta-steps on each task, the number of meta-steps
        so far and the contributions of all groups to these four after step 6, and each group's
        metrics of its agents.
      reset_agents: from the rule, the number of meta-steps so far, all groups, which agents are
        reset and the agents' tasks to the groups after step 7. Donates the groups.
    """

    def __init__(self, config: DiscoveryConfig, groups: Sequence[Group], mesh: Mesh):
        """Prepare the programs."""
        self._config, self._groups, self._mesh = config, groups, mesh
        self.on_device = [i for i, group in enumerate(groups) if not group.is_host]
        self.agents_meta_step = jax.jit(
            self._agents_meta_step, donate_argnums=2, compiler_options=compilation.fast_on_cpu()
        )
        self.update_rule = compilation.jit_compiled_fast(self._update_rule)
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

        The first one is `agents_meta_step`; the second one, `update_rule`, has all communication
        between devices.

        `state` has shapes, dtypes and shardings.
        """
        arguments = (state.rule, state.meta_step, state.groups)
        yield self.agents_meta_step.lower(*arguments)
        sharding = over_agents(self._mesh)
        contributions = tuple(
            jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), contribution
            )
            for _, contribution in self.agents_meta_step.eval_shape(*arguments)
        )
        yield self.update_rule.jitted().lower(
            state.rule, state.average, state.task_meta_steps, state.meta_step, contributions
        )

    def _agents_meta_step(
        self, rule: disco.DiscoveredRule, meta_step: Int[Array, ""], groups: tuple[Member, ...]
    ) -> tuple[tuple[Member, Contribution], ...]:
        """Make steps 1 to 5 of a meta-step for the groups of JAX environments."""
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

    def _update_rule(
        self,
        rule: disco.DiscoveredRule,
        average: disco.DiscoveredRule,
        task_meta_steps: tuple[Int[Array, "_tasks"], ...],
        meta_step: Int[Array, ""],
        contributions: tuple[Contribution, ...],
    ) -> tuple[Any, ...]:
        """Make step 6 of a meta-step; return the state without the agents, and all metrics."""

        def shard(rule, average, meta_step, contributions):
            new = update_rule(self._config.meta, rule, average, meta_step, contributions)
            return *new, all_gather_agents(tuple(part.metrics for part in contributions))

        rule, average, metrics = shard_map_over_agents(self._mesh, shard, "rrra", P())(
            rule, average, meta_step, contributions
        )
        metrics = tuple(
            jax.tree.map(lambda x, n=len(group.indices): x[:n], part)
            for part, group in zip(metrics, self._groups, strict=True)
        )
        state = (rule, average, add_meta_step(task_meta_steps, metrics), meta_step + 1)
        return *jax.lax.with_sharding_constraint(state, replicated(self._mesh)), metrics

    def _reset_agents(
        self,
        rule: disco.DiscoveredRule,
        meta_step: Int[Array, ""],
        groups: tuple[Member, ...],
        is_reset: tuple[Bool[Array, "_agents"], ...],
        tasks: tuple[Int[Array, "_agents"], ...],
    ) -> tuple[Member, ...]:
        """Make step 7 of a meta-step."""

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

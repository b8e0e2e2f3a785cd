"""Discoveries that differ in their seed only, in one program on one device.

One discovery on a laptop's budget leaves an accelerator idle nearly all the time: its programs are
long chains of small operations. With several seeds at once each operation does the work of all of
them. The meta-step is that of `meta.meta_step`, vectorised over the seeds; random numbers are the
same as those of `meta.discovery.Discovery` with each of these seeds.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, PyTree, Shaped

import disco
from disco_common import stopping
from meta.config import DiscoveryConfig
from meta.discovery import Discovery
from meta.meta_step import AgentMetrics, add_meta_step, group_meta_step, update_rule
from meta.population import empty_population, reset_agents
from meta.sharding import make_mesh
from meta.state import DiscoveryState
from meta.task_assignment import initial_tasks, reassign_tasks

SeedsMetrics = dict[str, Shaped[Array, "_seeds _agents"]]

SeedsState = PyTree[Array]
"""A `DiscoveryState` whose arrays have a leading axis of seeds."""


class SeveralSeeds:
    """A discovery with several seeds."""

    def __init__(self, discovery: Discovery, seeds: Sequence[int]):
        """Prepare the programs. Nothing is compiled.

        Args:
          discovery: of which all but the seed and the rule to start from is used.
          seeds: of the discoveries.

        Raises:
          ValueError: if environments are outside JAX.
        """
        if discovery.has_hosts:
            raise ValueError(
                "Some environments are outside JAX; expected JAX environments, for several seeds at"
                " once."
            )
        self._config, self._groups = discovery.config, discovery.groups
        self._seeds = jnp.asarray(seeds, jnp.uint32)
        self._mesh = make_mesh(devices=jax.devices()[:1])
        self._meta_step = jax.jit(self._over_seeds(self._meta_step_of_one), donate_argnums=1)
        self._reset = jax.jit(self._over_seeds(self._reset_of_one), donate_argnums=1)

    def init(self, rules: Sequence[disco.DiscoveredRule]) -> SeedsState:
        """Return the first generation of agents.

        Args:
          rules: to start from, of each seed.
        """
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *rules)
        empty = partial(empty_population, self._config, self._groups)
        state = jax.jit(jax.vmap(empty))(stacked)
        rows = [(len(self._seeds), len(group.indices)) for group in self._groups]
        tasks = [
            np.broadcast_to(initial_tasks(size, len(group.names)), (seeds, size))
            for (seeds, size), group in zip(rows, self._groups, strict=True)
        ]
        return self._reset(self._seeds, state, ([np.ones(x, bool) for x in rows], tasks))

    def step(self, state: SeedsState) -> tuple[SeedsState, tuple[SeedsMetrics, ...]]:
        """Make one meta-step of all seeds. It donates the state.

        Returns:
          The state after it, and each group's metrics of its agents, `[seeds, agents]`.
        """
        state, metrics = self._meta_step(self._seeds, state, ())
        is_reset = [x > 0 for x in jax.device_get([part["reset"] for part in metrics])]
        if any(group.any() for group in is_reset):
            before = jax.device_get([part["task"] for part in metrics])
            made = jax.device_get(state.task_meta_steps)
            keeps = self._config.population.keeps_tasks
            tasks = [
                np.stack([reassign_tasks(*row, keeps) for row in zip(*group, strict=True)])
                for group in zip(before, is_reset, made, strict=True)
            ]
            state = self._reset(self._seeds, state, (is_reset, tasks))
        return state, metrics

    def _over_seeds(self, function: Callable[[DiscoveryConfig, Any, Any], Any]) -> Callable:
        """Return a function of all seeds, their state and further arguments.

        Args:
          function: of the settings with one seed, its state and its further arguments.
        """

        def of_one(seed, state, arguments):
            return function(dataclasses.replace(self._config, seed=seed), state, arguments)

        # The rule's update names the mesh's axis of agents, here of one device.
        return jax.shard_map(
            jax.vmap(of_one), mesh=self._mesh, in_specs=P(), out_specs=P(), check_vma=False
        )

    def _meta_step_of_one(
        self, config: DiscoveryConfig, state: DiscoveryState, _: tuple[()]
    ) -> tuple[DiscoveryState, tuple[AgentMetrics, ...]]:
        """Make steps 1 to 6 of a meta-step of one seed."""
        results = [
            group_meta_step(
                config,
                group,
                state.rule,
                state.meta_step,
                members,
                jnp.asarray(group.indices, jnp.int32),
                jnp.ones(len(group.indices), bool),
            )
            for group, members in zip(self._groups, state.groups, strict=True)
        ]
        groups, contributions = zip(*results, strict=True)
        rule, average = update_rule(
            config.meta, state.rule, state.average, state.meta_step, contributions
        )
        metrics = tuple(part.metrics for part in contributions)
        new = DiscoveryState(
            rule=rule,
            average=average,
            groups=groups,
            task_meta_steps=add_meta_step(state.task_meta_steps, metrics),
            meta_step=state.meta_step + 1,
        )
        return new, metrics

    def _reset_of_one(
        self,
        config: DiscoveryConfig,
        state: DiscoveryState,
        rows: tuple[Sequence[Bool[Array, "_agents"]], Sequence[Int[Array, "_agents"]]],
    ) -> DiscoveryState:
        """Make step 7 of a meta-step of one seed."""
        groups = tuple(
            reset_agents(
                config,
                group,
                state.rule,
                state.meta_step,
                members,
                jnp.asarray(group.indices, jnp.int32),
                is_reset,
                tasks,
            )
            for group, members, is_reset, tasks in zip(
                self._groups, state.groups, *rows, strict=True
            )
        )
        return dataclasses.replace(state, groups=groups)


def discover(
    discovery: Discovery,
    seeds: Sequence[int],
    rules: Sequence[disco.DiscoveredRule],
    meta_steps: int,
    report: Callable[[int, tuple[SeedsMetrics, ...]], None] = lambda step, metrics: None,
) -> list[tuple[disco.DiscoveredRule, list[Int[np.ndarray, "_tasks"]]]]:
    """Discover a rule with each seed.

    Args:
      discovery: its settings, but for the seed.
      seeds: of the discoveries.
      rules: to start from, of each seed.
      meta_steps: of each discovery.
      report: called after each meta-step with their number so far and the groups' metrics,
        `[seeds, agents]`.

    Returns:
      Of each seed, the moving average of its rules, and the meta-steps on each group's tasks.

    Raises:
      StoppedBySignal: after a stop signal; nothing is kept.
      ValueError: if environments are outside JAX.
    """
    several = SeveralSeeds(discovery, seeds)
    state = several.init(rules)
    for step in range(meta_steps):
        state, metrics = several.step(state)
        report(step + 1, metrics)
        stopping.raise_if_requested()
    averages, made = jax.device_get((state.average, state.task_meta_steps))

    def of(number: int, tree: Any) -> Any:
        return jax.tree.map(lambda x: x[number], tree)

    return [(of(i, averages), list(of(i, made))) for i in range(len(seeds))]

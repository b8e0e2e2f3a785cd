"""One agent's host environments, and the compiled programs of a group of such agents."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import PRNGKeyArray

import disco
import environments
from agents.protocol import Batch
from meta import inner_loop
from meta.config import DiscoveryConfig, MetaConfig
from meta.groups import Group
from meta.meta_step import agent_meta_update, sum_over_agents
from meta.population import Member
from meta.sharding import AGENTS, over_agents, shard_map_over_agents
from training import collection
from training.host_collection import Collected, HostActor
from training.host_pipeline import HostPipeline
from training.passes import agents_per_pass, map_agents


class HostAgent:
    """The environments and the replay of one agent, from one reset to the next.

    Attributes:
      pipeline: collects and replays the batches that the agent learns from.
    """

    def __init__(
        self,
        group: Group,
        task: Any,
        address: tuple[int, ...],
        meta: MetaConfig,
        workers: int,
    ):
        """Start the environments.

        `address`, non-negative integers, gives their seeds. `workers` threads or processes step
        each half of the environments.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        agent, dynamics = group.agent, group.dynamics
        (self._update,) = agent.experience.updates
        assert isinstance(dynamics, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.pipeline = HostPipeline(agent, dynamics, task, int(seeds[0]), workers=workers)
            started.callback(self.pipeline.close)
            self._meta, self._validation = meta, None
            self._num_unrolls = group.validation_unrolls(meta)
            if not self._num_unrolls:
                number = meta.validation_trajectories
                self._validation = HostActor(agent, dynamics, task, number, int(seeds[1]), workers)
            started.pop_all()

    def take(self, update: int) -> tuple[Collected, Batch]:
        """Return what was collected for an update, and the batch that it learns from.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        collected = self.pipeline.take()
        return collected, self.pipeline.draw(self._update, collected.batch, update).batch

    def validate(
        self, params: disco.Params, key: PRNGKeyArray, unroll: int
    ) -> tuple[list[Collected], Batch]:
        """Return what an updated agent collects for validation, and the trajectories in it.

        Without validation environments it acts in the training environments, which go on.

        No unroll is requested before. `unroll` is the number of the first unroll of the training
        environments.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        number, collected = self._meta.validation_trajectories, []
        if self._validation is not None:
            collected.append(self._validation.collect(params, key, self._meta.validation_length))
        for i in range(self._num_unrolls):
            self.pipeline.request(params, unroll + i)
            collected.append(self.pipeline.take())
        every = collection.concatenate([part.batch for part in collected])
        # The last unroll may have more than are needed.
        return collected, collection.map_batch(
            lambda axis, x: x[:number] if axis == 0 else x[:, :number], every
        )

    @property
    def restarts(self) -> int:
        """Number of simulators that died and were replaced."""
        others = self._validation.restarts if self._validation is not None else 0
        return self.pipeline.restarts + others

    def close(self) -> None:
        """Stop the environments."""
        with contextlib.ExitStack() as closing:
            if self._validation is not None:
                closing.callback(self._validation.close)
            self.pipeline.close()


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

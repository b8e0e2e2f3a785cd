"""The inner loop and the validation of agents of host environments (see `meta.meta_step`).

Threads act, store and sample while the device learns. The first batch of a meta-step is collected
from the end of the last meta-step on, by the agents' parameters at that time; each further batch
by the parameters from before the last update. After the K updates, the updated agents collect
their validation trajectories, which are therefore on-policy: in environments of their own, or in
the training environments. The meta-gradient is computed from the stored residuals of the updates,
so that the backward pass repeats no update.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PRNGKeyArray, Shaped

import disco
import environments
from agents.protocol import Batch
from agents.rule_agent import to_trajectory
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig, MetaConfig
from meta.groups import AgentGroup
from meta.inner_loop import InnerLoopResiduals
from meta.meta_step import AgentMetrics, Contribution
from meta.population import Member
from meta.programs import HostPrograms
from meta.sharding import local_rows, over_agents
from training import collection
from training.host_collection import Collected, HostActor, Timing
from training.host_pipeline import DeviceClock, HostPipeline


class HostAgent:
    """The environments and the replay of one agent, from one reset to the next.

    Attributes:
      pipeline: collects and replays the batches that the agent learns from.
    """

    def __init__(
        self,
        group: AgentGroup,
        task_params: Any,
        address: tuple[int, ...],
        meta: MetaConfig,
        workers: int,
    ):
        """Start the environments.

        `address`, non-negative integers, gives their seeds. `workers` threads or processes step
        each half of the environments.
        """
        agent, dynamics = group.agent, group.dynamics
        (self._update,) = agent.requirements.updates
        assert isinstance(dynamics, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.pipeline = HostPipeline(
                agent, dynamics, task_params, int(seeds[0]), workers=workers
            )
            started.callback(self.pipeline.close)
            self._meta, self._validation = meta, None
            self._num_unrolls = group.validation_unrolls(meta)
            if not self._num_unrolls:
                number = meta.validation_trajectories
                self._validation = HostActor(
                    agent, dynamics, task_params, number, int(seeds[1]), workers
                )
            started.pop_all()

    def take(self, update: int) -> tuple[Collected, Batch]:
        """Return what was collected for an update, and the batch that it learns from."""
        collected = self.pipeline.take()
        return collected, self.pipeline.draw(self._update, collected.batch, update)[0]

    def validate(
        self, params: disco.Params, key: PRNGKeyArray, unroll: int
    ) -> tuple[list[Collected], Batch]:
        """Return what an updated agent collects for validation, and the trajectories in it.

        Without validation environments it acts in the training environments, which go on with the
        given unroll; none is requested before.
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


class HostGroup:
    """The environments and replays of one group."""

    def __init__(
        self,
        config: DiscoveryConfig,
        group: AgentGroup,
        mesh: Mesh,
        clock: DeviceClock,
        workers: int,
    ):
        """Prepare the group; nothing is compiled or started. `workers` are as of `HostAgent`."""
        self._config, self._group, self._clock, self._workers = config, group, clock, workers
        self._sharding = over_agents(mesh)
        self._programs = HostPrograms(config, group, mesh)
        # The agents of this process: their indices in the population and within the group, and
        # their rows of the group's arrays. Copies that pad the group learn from the batches of
        # their original, or of this process's first agent if another process has the original.
        rows = local_rows(mesh, len(group.padded_indices))
        self._indices, first, self._source = np.unique(
            group.padded_indices[rows], return_index=True, return_inverse=True
        )
        self._first_rows = rows[first]
        self._orders = np.searchsorted(group.indices, self._indices)
        self._agents: list[HostAgent] = []
        self._residuals: InnerLoopResiduals | None = None
        self._threads = ThreadPoolExecutor(len(self._indices), "agents")
        self._timings: list[Timing] = []

    def meta_step(
        self, rule: disco.DiscoveredRule, meta_step: int, members: Member
    ) -> tuple[Member, Contribution]:
        """Make steps 1 to 5 of a meta-step; it donates the agents."""
        num_unrolls = self._group.unrolls_per_meta_step(self._config.meta)
        learners_before = jax.tree.map(jnp.copy, members.agent.learner)
        members, experiences, learning = self._inner_loop(rule, meta_step * num_unrolls, members)
        params = self._params(members)
        validations = self._validate(params, meta_step)
        self._request(params, (meta_step + 1) * num_unrolls)
        stacked = self._stack([to_trajectory(batch) for _, batch in validations])
        residuals = self._residuals
        assert residuals is not None
        members, contribution = self._clock.follow(
            lambda: self._programs.meta_update(rule, members, learners_before, residuals, stacked),
            watched=lambda results: results[1].metrics["finite"],
        )
        unrolls = (*experiences, *(collected for collected, _ in validations))
        self._timings += [x.timing for row in unrolls for x in row]
        metrics = contribution.metrics | self._metrics(experiences, learning, validations)
        return members, contribution._replace(metrics=metrics)

    def _inner_loop(
        self, rule: disco.DiscoveredRule, first: int, members: Member
    ) -> tuple[Member, list[list[Collected]], list[AgentMetrics]]:
        """Make K updates from the unroll `first` on, acting while the device learns.

        It donates the agents, and stores the updates' residuals.

        Returns:
          The agents after the updates; for each update, what the agents collected without the
          unrolls, and metrics.
        """
        num_updates = self._config.meta.num_updates
        if not all(agent.pipeline.is_requested for agent in self._agents):
            self._request(self._params(members), first)  # Of agents that were just started.
        experiences, learning = [], []
        for number in range(num_updates):
            update = first + number
            taken = list(self._threads.map(lambda agent, u=update: agent.take(u), self._agents))
            if number + 1 < num_updates:
                self._request(self._params(members), update + 1)
            batches = self._stack([to_trajectory(batch) for _, batch in taken])
            members, residuals, metrics = self._clock.follow(
                lambda members=members, batches=batches: self._programs.update(
                    rule, members, batches
                ),
                watched=lambda results: results[2],
            )
            self._store(residuals, number)
            experiences.append([collected._replace(batch=None) for collected, _ in taken])
            learning.append(metrics)
        return members, experiences, learning

    def reset_agents(
        self, members: Member, is_reset: Bool[np.ndarray, "agents"], meta_step: int
    ) -> None:
        """Start the environments and replays of agents that are reset; all are, at first."""
        if not is_reset.any():
            return
        group, config = self._group, self._config
        rows = self._of_agents((members.lifetime.task, members.lifetime.resets))
        for number in np.flatnonzero(is_reset[self._orders]).tolist():
            task, resets = map(int, rows[number])
            address = (config.seed, int(self._indices[number]), resets, meta_step)
            for agent in self._agents[number : number + 1]:
                agent.close()
            self._agents[number : number + 1] = [
                HostAgent(group, group.task_params[task], address, config.meta, self._workers)
            ]

    def timing(self) -> dict[str, float]:
        """Return the seconds of threads since the last call and the deaths of simulators so far."""
        timings, self._timings = self._timings, []
        return {
            "engine_seconds": sum(timing.engine for timing in timings),
            "policy_seconds": sum(timing.policy for timing in timings),
            "simulator_restarts": float(sum(agent.restarts for agent in self._agents)),
        }

    def close(self) -> None:
        """Stop all environments."""
        self._threads.shutdown()
        with contextlib.ExitStack() as closing:  # All of them, also if closing one fails.
            for agent in self._agents:
                closing.callback(agent.close)
        self._agents = []

    def _request(self, params: list[disco.Params], update: int) -> None:
        """Start acting for an update, except for agents that act already."""
        for agent, own in zip(self._agents, params, strict=True):
            if not agent.pipeline.is_requested:
                agent.pipeline.request(own, update)

    def _params(self, members: Member) -> list[disco.Params]:
        return self._of_agents(members.agent.learner.params)

    def _of_agents(self, rows: Any) -> list[Any]:
        """Return the row of each agent of this process, on its device, of stacked arrays."""
        leaves, structure = jax.tree.flatten(rows)
        by_row = {}
        for shards in zip(*(leaf.addressable_shards for leaf in leaves), strict=True):
            first = shards[0].index[0].start or 0
            if first not in by_row:  # All devices of an agent hold the same.
                held = self._programs.unstack(structure.unflatten(s.data for s in shards))
                by_row |= dict(enumerate(held, first))
        return [by_row[row] for row in self._first_rows]

    def _place(self, x: Shaped[np.ndarray, "local *s"]) -> Shaped[Array, "rows *s"]:
        """Return the group's array of which `x` has the rows of this process."""
        return jax.make_array_from_process_local_data(
            self._sharding, x, (len(self._group.padded_indices), *x.shape[1:])
        )

    def _stack(self, trajectories: list[disco.Trajectory]) -> disco.Trajectory:
        """Stack the trajectories of all agents, on their devices."""
        rows = [trajectories[i] for i in self._source]
        return jax.tree.map(lambda *x: self._place(np.stack(x)), *rows)

    def _store(self, residuals: InnerLoopResiduals, number: int) -> None:
        """Store the residuals of one update."""
        stored = self._residuals
        if stored is None:  # Allocated once for all meta-steps.
            num_updates = self._config.meta.num_updates
            stored = jax.tree.map(
                lambda x: jnp.zeros(
                    (x.shape[0], num_updates, *x.shape[1:]), x.dtype, device=self._sharding
                ),
                residuals,
            )
        self._residuals = self._programs.store_residuals(stored, residuals, jnp.int32(number))

    def _validate(
        self, params: list[disco.Params], meta_step: int
    ) -> list[tuple[list[Collected], Batch]]:
        """Collect the validation trajectories of the updated agents."""
        meta = self._config.meta
        first = meta_step * self._group.unrolls_per_meta_step(meta) + meta.num_updates
        collecting = [
            self._threads.submit(
                agent.validate,
                own,
                keys.key(self._config.seed, Purpose.VALIDATE, meta_step, index),
                first,
            )
            for agent, own, index in zip(self._agents, params, self._indices.tolist(), strict=True)
        ]
        wait(collecting)
        return [future.result() for future in collecting]

    def _metrics(
        self,
        experiences: list[list[Collected]],
        learning: list[AgentMetrics],
        validations: list[tuple[list[Collected], Batch]],
    ) -> AgentMetrics:
        """Return each agent's metrics of acting and learning."""

        def place(values: list[float]) -> Shaped[Array, "rows"]:
            return self._place(np.asarray([values[i] for i in self._source], np.float32))

        by_agent = list(zip(*experiences, strict=True))
        if self._group.validation_unrolls(self._config.meta):  # Of the same episodes.
            by_agent = [
                (*own, *collected)
                for own, (collected, _) in zip(by_agent, validations, strict=True)
            ]
        episodes = [[e for x in experiences for e in x.episodes] for experiences in by_agent]
        batches = [batch for _, batch in validations]
        metrics = {
            "validation_reward": place([float(x.reward.sum() / x.mask.sum()) for x in batches]),
            "episode_return_sum": place([sum(e.episode_return for e in x) for x in episodes]),
            "episodes": place([float(len(x)) for x in episodes]),
        }
        means: AgentMetrics = jax.tree.map(lambda *x: sum(x) / len(x), *learning)
        return metrics | {f"agent_{name}": x for name, x in means.items()}

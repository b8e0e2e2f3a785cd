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

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Shaped

import disco
from agents.protocol import Batch
from agents.rule_agent import to_trajectory
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig
from meta.groups import Group
from meta.host_agents import HostAgent, HostPrograms
from meta.inner_loop import InnerLoopResiduals
from meta.meta_step import AgentMetrics, Contribution
from meta.population import Member
from meta.sharding import local_rows, over_agents
from training.device_clock import DeviceClock
from training.host_collection import Collected, Timing


class HostGroup:
    """The environments and replays of one group."""

    def __init__(
        self,
        config: DiscoveryConfig,
        group: Group,
        mesh: Mesh,
        clock: DeviceClock,
        workers: int,
    ):
        """Prepare the group; nothing is compiled or started.

        `workers` threads or processes step each half of an agent's environments.
        """
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
        self._timing = Timing(0.0, 0.0)

    def start(self, members: Member, meta_step: int) -> None:
        """Start all environments.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        for index, task, resets in self._addresses(members):
            self._agents.append(self._start_agent(index, task, resets, meta_step))

    def _addresses(self, members: Member) -> list[tuple[int, int, int]]:
        """Return each agent's index in the population, index of its task, and resets."""
        lifetime = members.lifetime
        tasks, resets = self._local_integers(lifetime.task), self._local_integers(lifetime.resets)
        return list(zip(self._indices.tolist(), tasks, resets, strict=True))

    def _start_agent(self, index: int, task: int, resets: int, meta_step: int) -> HostAgent:
        group = self._group
        address = (self._config.seed, index, resets, meta_step)
        meta = self._config.meta
        return HostAgent(group, group.tasks[task], address, meta, self._workers)

    def meta_step(
        self, rule: disco.DiscoveredRule, meta_step: int, members: Member
    ) -> tuple[Member, Contribution]:
        """Make steps 1 to 5 of a meta-step.

        It donates the agents.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
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
        self._add_timings([x.timing for row in unrolls for x in row])
        metrics = contribution.metrics | self._metrics(experiences, learning, validations)
        return members, contribution._replace(metrics=metrics)

    def _inner_loop(
        self, rule: disco.DiscoveredRule, first: int, members: Member
    ) -> tuple[Member, list[list[Collected]], list[AgentMetrics]]:
        """Make K updates, acting while the device learns, and store their residuals.

        `first` is the number of the first unroll. It donates the agents.

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
        """Start new environments and replays of agents that are reset.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        if not is_reset.any():
            return
        addresses = self._addresses(members)
        for number in np.flatnonzero(is_reset[self._orders]):
            self._agents[number].close()
            self._agents[number] = self._start_agent(*addresses[number], meta_step)

    def timing(self) -> dict[str, float]:
        """Return the seconds of threads since the last call and the deaths of simulators so far."""
        timing, self._timing = self._timing, Timing(0.0, 0.0)
        return {
            "engine_seconds": timing.engine,
            "policy_seconds": timing.policy,
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
        """Return the parameters of each agent of this process, on its device."""
        leaves, structure = jax.tree.flatten(members.agent.learner.params)
        by_device = zip(*(leaf.addressable_shards for leaf in leaves), strict=True)
        by_row = {}
        for shards in by_device:
            first = shards[0].index[0].start or 0
            if first not in by_row:  # All devices of an agent hold the same.
                agents = self._programs.unstack(structure.unflatten(s.data for s in shards))
                by_row |= dict(enumerate(agents, first))
        return [by_row[row] for row in self._first_rows]

    def _local_integers(self, x: Int[Array, "rows"]) -> list[int]:
        """Return the values of each agent of this process."""
        by_row = {
            row: value
            for shard in x.addressable_shards
            for row, value in enumerate(np.asarray(shard.data).tolist(), shard.index[0].start or 0)
        }
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

    def _add_timings(self, timings: list[Timing]) -> None:
        self._timing = Timing(
            engine=self._timing.engine + sum(x.engine for x in timings),
            policy=self._timing.policy + sum(x.policy for x in timings),
        )

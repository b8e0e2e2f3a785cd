"""Meta-gradients: a discovery by them, its population, programs and host environments."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, Int, Shaped

import disco
import environments
from meta.config import DiscoveryConfig
from meta.estimators.protocol import Metrics, finite_mean, require_layers
from meta.groups import make_groups
from meta.host_groups import HostGroup
from meta.meta_step import AgentMetrics, Contribution
from meta.population import DiscoveryState, Member, empty_population, reassign_tasks
from meta.programs import DevicePrograms
from meta.sharding import AGENTS, BATCH, make_mesh, over_agents, replicated
from training.host_collection import NUM_HALVES
from training.host_pipeline import DeviceClock
from training.memory_budget import replay_bytes, require_memory_for_replays

_NOT_AVERAGED = frozenset("task steps_since_reset finite reset episode_return_sum episodes".split())


class MetaGradient:
    """A discovery by meta-gradients (`meta.estimators.protocol.Discovery`).

    Construction compiles nothing.

    Attributes:
      config: settings that all agents share.
      groups: the population by environment.
      steps_per_meta_step: environment steps of one agent's updates, without validation.
    """

    def __init__(
        self,
        config: DiscoveryConfig,
        tasks: tuple[environments.Environment, ...],
        rule: disco.DiscoveredRule,
        devices: Sequence[Any] | None = None,
    ):
        """Prepare a run from a rule, by default on all devices of all processes.

        Raises:
          ValueError: as `make_mesh`, `make_groups` and `config.require_equal_updates`, and if the
            rule has no such layers.
        """
        config.require_equal_updates()
        require_layers("meta.layers", config.meta.layers, rule)
        self.config, self._tasks, self._initial_rule = config, tasks, rule
        self._mesh = make_mesh(config.devices_per_agent, devices)
        self.steps_per_meta_step = config.meta.num_updates * config.agent.steps_per_update
        self.groups = make_groups(config, tasks, rule, self._mesh.shape[AGENTS])
        self._programs = DevicePrograms(self.config, self.groups, self._mesh)
        # Of groups of host environments, by their number, once they are started.
        self._hosts: dict[int, HostGroup] = {}
        self._clock: DeviceClock | None = None

    @property
    def population_size(self) -> int:
        """Number of agents of all groups."""
        return self.config.population.size

    @property
    def has_hosts(self) -> bool:
        """Whether some environments are outside JAX; checkpoints do not hold their states."""
        return any(group.is_host for group in self.groups)

    can_stop_within = False

    @property
    def host_replay_bytes(self) -> int:
        """Bytes of the full replays of host environments."""
        return sum(
            len(group.indices) * replay_bytes(group.agent, group.dynamics)
            for group in self.groups
            if group.is_host
        )

    @cached_property
    def sharding(self) -> DiscoveryState:
        """Shardings of the arrays of a state: agents over the mesh, all else replicated."""
        agents = over_agents(self._mesh)
        return self._by_part([agents] * len(self.groups), replicated(self._mesh))

    @cached_property
    def agents_stacked(self) -> DiscoveryState:
        """Number of agents that each array of a state is stacked over; 0 for none."""
        return self._by_part([len(group.indices) for group in self.groups], 0)

    @cached_property
    def abstract_state(self) -> DiscoveryState:
        """Shapes, dtypes and shardings of a state."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self._shapes,
            self.sharding,
        )

    @cached_property
    def _shapes(self) -> DiscoveryState:
        return jax.eval_shape(self._empty_population, self._initial_rule)

    def _by_part(self, groups: Sequence[Any], rest: Any) -> Any:
        """Return a tree like a state, with a value for each group and one for all else."""

        def value(path: tuple[Any, ...], _: Any) -> Any:
            field, *below = path
            return groups[below[0].idx] if field.name == "groups" else rest

        return jax.tree.map_with_path(value, self._shapes)

    def check(self) -> None:
        """Check that the machines have work and memory, and what environments return.

        Raises:
          OutputError: if an environment returns something else than it declares.
          ValueError: if there are more processes than agents, a batch cannot be split over an
            agent's devices, or the replays of this process do not fit in memory together.
        """
        if jax.process_count() > self.population_size:
            raise ValueError(
                f"population.size is {self.population_size}; expected at least one agent for each"
                f" of the {jax.process_count()} processes."
            )
        per_agent = self._mesh.shape[BATCH]
        sizes = {"meta.validation_trajectories": self.config.meta.validation_trajectories} | {
            f"agent.batch_size of {group.names[0]}": group.agent.config.batch_size
            for group in self.groups
        }
        for name, size in sizes.items():
            if size % per_agent:
                raise ValueError(
                    f"{name} is {size}; expected a multiple of devices_per_agent ({per_agent})."
                )
        require_memory_for_replays(
            {
                group.family: len(group.local_indices(self._mesh))
                * replay_bytes(group.agent, group.dynamics)
                for group in self.groups
                if isinstance(group.dynamics, environments.HostEnvironment)
            }
        )
        for task in self._tasks:
            environments.require_declared_outputs(task)

    def init(self) -> DiscoveryState:
        """Return the first generation of agents and the rule to start from."""
        empty = jax.jit(self._empty_population, out_shardings=self.sharding)
        state = empty(jax.tree.map(np.asarray, self._initial_rule))
        is_reset = [np.ones(len(group.indices), bool) for group in self.groups]
        tasks = [np.arange(len(group.indices)) % len(group.names) for group in self.groups]
        return self._reset_agents(state, is_reset, tasks)

    def _empty_population(self, rule: disco.DiscoveredRule) -> DiscoveryState:
        return empty_population(self.config, self.groups, rule)

    def step(
        self, state: DiscoveryState, report: Callable[[float], None] = lambda part: None
    ) -> tuple[DiscoveryState, tuple[AgentMetrics, ...]]:
        """Make one meta-step, which donates the state; wait for its metrics.

        Returns:
          The state after it, and each group's metrics of its agents, `[agents]`.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        del report
        if self.has_hosts and not self._hosts:
            self._start_hosts(state)
        results = self._contributions(state)
        members, contributions = zip(*(results[i] for i in range(len(self.groups))), strict=True)
        rule, average, task_meta_steps, meta_step, metrics = self._follow(
            lambda: self._programs.improve_rule(
                state.rule, state.average, state.task_meta_steps, state.meta_step, contributions
            ),
            watched=lambda results: results[-1],
        )
        state = DiscoveryState(
            rule=rule,
            average=average,
            groups=members,
            task_meta_steps=task_meta_steps,
            meta_step=meta_step,
        )
        return self._reset_if_due(state, metrics), metrics

    def _start_hosts(self, state: DiscoveryState) -> None:
        """Start all host environments, and the clock of the device."""
        hosts = {i: group for i, group in enumerate(self.groups) if group.is_host}
        # All agents act at the same time.
        num_agents = sum(len(group.local_indices(self._mesh)) for group in hosts.values())
        workers = max(1, environments.available_processors() // (NUM_HALVES * num_agents))
        self._clock = DeviceClock()
        for number, group in hosts.items():
            host = HostGroup(self.config, group, self._mesh, self._clock, workers)
            self._hosts[number] = host
            is_reset = np.ones(len(group.indices), bool)
            host.reset_agents(state.groups[number], is_reset, int(state.meta_step))

    def _contributions(self, state: DiscoveryState) -> dict[int, tuple[Member, Contribution]]:
        """Make steps 1 to 5 of all agents; return each group's agents and contribution."""
        results: dict[int, tuple[Member, Contribution]] = {}
        on_device = self._programs.on_device
        if on_device:  # Dispatched first: the device computes while hosts act.
            groups = tuple(state.groups[number] for number in on_device)
            computed = self._follow(
                lambda: self._programs.groups_meta_step(state.rule, state.meta_step, groups),
                watched=lambda results: [part.metrics["finite"] for _, part in results],
            )
            results |= dict(zip(on_device, computed, strict=True))
        for number, group in self._hosts.items():
            meta_step, members = int(state.meta_step), state.groups[number]
            results[number] = group.meta_step(state.rule, meta_step, members)
        return results

    def _follow(self, dispatch: Callable[[], Any], watched: Callable[[Any], Any]) -> Any:
        return self._clock.follow(dispatch, watched) if self._clock else dispatch()

    def _reset_if_due(
        self, state: DiscoveryState, metrics: tuple[AgentMetrics, ...]
    ) -> DiscoveryState:
        """Reset agents by the metrics of the meta-step."""
        is_reset = [x > 0 for x in jax.device_get([part["reset"] for part in metrics])]
        if any(group.any() for group in is_reset):
            tasks = jax.device_get([part["task"] for part in metrics])
            task_meta_steps = jax.device_get(state.task_meta_steps)
            reassigned = partial(reassign_tasks, keeps_tasks=self.config.population.keeps_tasks)
            new_tasks = list(map(reassigned, tasks, is_reset, task_meta_steps))
            state = self._reset_agents(state, is_reset, new_tasks)
        for number, group in self._hosts.items():
            group.reset_agents(state.groups[number], is_reset[number], int(state.meta_step))
        return state

    def _reset_agents(
        self,
        state: DiscoveryState,
        is_reset: Sequence[Bool[np.ndarray, "_agents"]],
        tasks: Sequence[Int[np.ndarray, "_agents"]],
    ) -> DiscoveryState:
        """Reset some agents of each group, to these of the group's tasks."""

        def padded(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
            return tuple(
                np.concatenate([x, np.repeat(x[:1], group.num_copies)])
                for x, group in zip(arrays, self.groups, strict=True)
            )

        tasks = [x.astype(np.int32) for x in tasks]
        groups = self._programs.reset_agents(
            state.rule, state.meta_step, state.groups, padded(is_reset), padded(tasks)
        )
        return dataclasses.replace(state, groups=groups)

    def compile(self) -> None:
        """Compile the programs of a meta-step, unless there are host environments."""
        if not self.has_hosts:
            self._programs.compile(self.abstract_state)

    def lower(self) -> Iterator[jax.stages.Lowered]:
        """Yield the lowered programs of a meta-step, as `DevicePrograms.lower`."""
        return self._programs.lower(self.abstract_state)

    def restored(self, state: DiscoveryState) -> DiscoveryState:
        """Return a checkpoint's state, with copies of each group's first agent as its padding."""
        if not any(group.num_copies for group in self.groups):
            return state

        def copy(groups: tuple[Member, ...]) -> tuple[Member, ...]:
            return tuple(
                jax.tree.map(lambda x, n=len(group.indices): x.at[n:].set(x[0]), members)
                for members, group in zip(groups, self.groups, strict=True)
            )

        copied = jax.jit(copy, donate_argnums=0, out_shardings=self.sharding.groups)
        return dataclasses.replace(state, groups=copied(state.groups))

    def summarize(self, window: Sequence[tuple[AgentMetrics, ...]]) -> Metrics:
        """Return the means of the metrics over the agents and meta-steps of a window.

        Non-finite values are left out of the means. `non_finite_agents` and `num_resets` count
        non-finite meta-gradients and resets of agents. `agents` has lists over the population: the
        task, the mean validation reward per step over the window (`validation_reward`), and the
        environment steps since the agent's last reset (`steps_since_reset`).
        """
        fetched: Any = jax.device_get(window)
        columns = {
            name: np.stack(
                [np.concatenate([group[name] for group in metrics]) for metrics in fetched]
            )
            for name in fetched[0][0]
        }
        summary: Metrics = {}
        for name, values in columns.items():
            if name not in _NOT_AVERAGED:
                summary[name] = finite_mean(values)
        finite = np.isfinite(columns["episode_return_sum"])
        episodes = columns["episodes"][finite].sum()
        total = columns["episode_return_sum"][finite].sum()
        summary["episode_return"] = float(total / episodes) if episodes else None
        summary["non_finite_agents"] = int((columns["finite"] == 0).sum())
        summary["num_resets"] = int(columns["reset"].sum())
        summary["agents"] = self._by_agent(columns, fetched[-1])
        return summary | self._host_metrics()

    def _by_agent(
        self,
        columns: Mapping[str, Shaped[np.ndarray, "meta_steps agents"]],
        last: tuple[Mapping[str, Shaped[np.ndarray, "_agents"]], ...],
    ) -> dict[str, list[Any]]:
        """Return lists over the population, in the order of the agents' indices.

        `columns` are metrics of the window, in the order of the groups; `last` those of the last
        meta-step by group.
        """
        order = np.argsort(np.concatenate([group.indices for group in self.groups]))
        names = [
            group.names[i]
            for group, metrics in zip(self.groups, last, strict=True)
            for i in metrics["task"]
        ]
        return {
            "task": [names[i] for i in order],
            "validation_reward": [
                float(x) if np.isfinite(x) else None
                for x in columns["validation_reward"].mean(axis=0)[order]
            ],
            "steps_since_reset": [int(x) for x in columns["steps_since_reset"][-1][order]],
        }

    def _host_metrics(self) -> dict[str, float]:
        """Return timings of host environments since the last call, and their simulators' deaths.

        Seconds and deaths (all so far) are summed over processes, the idle fraction is averaged.
        """
        if self._clock is None:
            return {}
        names = ("engine_seconds", "policy_seconds", "simulator_restarts")
        parts = [group.timing() for group in self._hosts.values()]
        local = [self._clock.idle_fraction(), *(sum(p[name] for p in parts) for name in names)]
        idle, *sums = np.atleast_2d(multihost_utils.process_allgather(np.array(local))).T
        return {
            "device_idle_fraction": float(idle.mean()),
            **{name: float(x.sum()) for name, x in zip(names, sums, strict=True)},
        }

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of the inner loops of all agents, without validation."""
        return meta_steps * self.steps_per_meta_step * self.population_size

    def average_rule(self, state: DiscoveryState) -> tuple[disco.DiscoveredRule, dict[str, int]]:
        """Return the moving average of the rules, and the environment steps by task."""
        average, counts = jax.device_get((state.average, state.task_meta_steps))
        steps = {
            name: int(number) * self.steps_per_meta_step
            for group, of_group in zip(self.groups, counts, strict=True)
            for name, number in zip(group.names, of_group, strict=True)
        }
        return average, steps

    def close(self) -> None:
        """Stop host environments."""
        hosts, self._hosts = self._hosts, {}
        clock, self._clock = self._clock, None
        with contextlib.ExitStack() as closing:
            for group in hosts.values():
                closing.callback(group.close)
            if clock is not None:
                closing.callback(clock.close)

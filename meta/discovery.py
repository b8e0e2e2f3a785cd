"""Discovery: a population learns by the rule, and the rule learns from the population.

One meta-step, for every agent (DiscoRL, Methods):

1. live: K updates by the rule, acting in between (`lifetime.live`);
2. judge: the updated agent plays validation trajectories, scored by the meta-objective;
3. meta-gradient: of that score through the K updates, with respect to the rule;
4. each agent's own Adam scales its meta-gradient.

Then the mean over the agents updates the rule, and agents whose budget is spent are reborn.
What a run yields is the moving average of its rules.

Where environments are JAX's, 1 to 4 are one compiled program, the rule's update is another, and
births are a third. Agents of host environments do 1 and 2 piece by piece, as their experience comes
(`meta.host_group`).
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

import disco
import environments
from agents import compilation
from agents.rule_agent import Agent, AgentConfig
from common import keys
from common.keys import Purpose
from common.ranges import AT_LEAST_1, BELOW_1, POSITIVE
from disco.types import Metrics
from meta import lifetime
from meta.groups import Evolved, Group, summed
from meta.host_group import HostGroup
from meta.mesh import AGENTS, BATCH, for_each_device, make_mesh, on_all, over_agents, split_batch
from meta.objective import ObjectiveConfig, meta_objective
from meta.population import (
    Individual,
    Life,
    PopulationConfig,
    allot,
    draw_budget,
    first_tasks,
    newborn,
    next_tasks,
)
from meta.value_function import ValueFunction, ValueFunctionConfig
from training.device_clock import DeviceClock
from training.host_collection import NUM_HALVES
from training.host_experience import require_memory
from training.passes import agents_per_pass, map_agents


@dataclasses.dataclass(frozen=True)
class MetaConfig:
    """The meta-step.

    Attributes:
      num_updates: K, the agent updates that a meta-gradient flows through.
      validation_trajectories: per agent and meta-step.
      validation_length: steps of each.
      learning_rate: of the rule.
      average_decay: weight of the old average in the rule's moving average, which is what a
        run is for: single rules on the way lean to one side or the other. In the first
        meta-steps it is the plain mean. With 0 it is the newest rule.
      max_gradient_norm: to which each agent's meta-gradient is clipped before its Adam.
      adam_b2: decay of the second moment of each agent's Adam. A newborn agent's meta-gradients
        are tens of times larger than they are soon after, and with 0.999 its place of the
        population is hardly heard for the next hundreds of meta-steps.
      segment_length: see `lifetime.relive`; None for about the square root of K.
      agents_at_once: agents per device that one vectorised pass computes; the rest follow in a
        loop. Fewer need less memory. By default one on a CPU and all on an accelerator.
    """

    num_updates: int = 20
    validation_trajectories: int = 48
    validation_length: int = 29
    learning_rate: float = 1e-3
    average_decay: float = 0.98
    max_gradient_norm: float = 1.0
    adam_b2: float = 0.999
    segment_length: int | None = None
    agents_at_once: int | None = None

    def __post_init__(self):
        counts = "num_updates validation_trajectories validation_length".split()
        AT_LEAST_1.require(self, "meta.", *counts)
        POSITIVE.require(self, "meta.", "learning_rate", "max_gradient_norm")
        BELOW_1.require(self, "meta.", "adam_b2", "average_decay")
        if self.agents_at_once is not None and self.agents_at_once < 1:
            raise ValueError(
                f"meta.agents_at_once is {self.agents_at_once}; expected at least 1, or None."
            )
        segment = self.segment_length
        if segment is not None and (segment < 1 or self.num_updates % segment):
            raise ValueError(
                f"meta.segment_length is {segment}; expected a divisor of meta.num_updates"
                f" ({self.num_updates})."
            )


@chex.dataclass(frozen=True)
class DiscoveryState:
    """All that a discovery run is; what a checkpoint holds.

    Attributes:
      rule: the newest rule, by which the agents learn.
      average: the moving average of the rules so far, to be exported.
      groups: the agents of each group of environments with common specs, stacked.
      lived: for each group, meta-steps of all agents so far on each of its tasks.
      meta_step: meta-steps made.
    """

    rule: disco.DiscoveredRule
    average: disco.DiscoveredRule
    groups: tuple[Individual, ...]
    lived: tuple[Int[Array, "tasks"], ...]
    meta_step: Int[Array, ""]


class _Hosts(NamedTuple):
    """What steps host environments: by the number of their group, and the device's clock."""

    groups: dict[int, HostGroup]
    clock: DeviceClock


class Discovery:
    """The functions of one discovery run. Construction compiles nothing.

    Attributes:
      groups: the population by environment.
      steps_per_meta_step: environment steps of one agent's updates, without validation.
    """

    def __init__(
        self,
        tasks: tuple[environments.Environment, ...],
        rule: disco.DiscoveredRule,
        agent: AgentConfig,
        value_function: ValueFunctionConfig,
        objective: ObjectiveConfig,
        population: PopulationConfig,
        meta: MetaConfig,
        seed: int,
        mesh: Mesh | None = None,
        family_agents: Mapping[str, AgentConfig] = MappingProxyType({}),
    ):
        """Prepares a run.

        Args:
          tasks: to discover on.
          rule: to start from.
          agent: how agents learn.
          value_function: how the meta-value functions learn.
          objective: weights of the meta-objective.
          population: its size and lifetimes.
          meta: the meta-step.
          seed: of all randomness.
          mesh: as `meta.mesh.make_mesh` makes it; by default all devices, one for each agent.
          family_agents: how agents learn instead, by the part of their environments' names that
            stands before the slash. They consume as many steps per update.
        """
        self._initial_rule = rule
        self._objective = objective
        self._population = population
        self._meta = meta
        self._seed = seed
        self._mesh = make_mesh() if mesh is None else mesh
        self.steps_per_meta_step = meta.num_updates * agent.steps_per_update
        self.groups = tuple(self._make_groups(tasks, rule, agent, family_agents, value_function))
        self._hosts: _Hosts | None = None
        self._evolve = jax.jit(
            self._evolve_groups,
            static_argnums=0,
            donate_argnums=3,
            compiler_options=compilation.fast_on_cpu(),
        )
        self._meta_optimizer = optax.chain(
            optax.clip_by_global_norm(meta.max_gradient_norm), optax.scale_by_adam(b2=meta.adam_b2)
        )

    def _make_groups(self, tasks, rule, default_agent, family_agents, value_config):
        """Groups gather agents whose environments have like dynamics."""
        grouped = environments.group(tasks)
        for group, places in zip(grouped, self._places(tasks, grouped), strict=True):
            padding = -len(places) % self._mesh.shape[AGENTS]
            family = group.names[0].partition("/")[0]
            agent_config = family_agents.get(family, default_agent)
            if agent_config.burn_in > self._meta.validation_length:
                raise ValueError(
                    f"agent.burn_in of {family} is {agent_config.burn_in}; expected at most"
                    f" meta.validation_length ({self._meta.validation_length})."
                )
            agent = Agent.create(agent_config, group.dynamics, rule)
            yield Group(
                agent=agent,
                value_function=ValueFunction.create(
                    value_config,
                    group.dynamics.observation_spec(),
                    agent_config.network,
                    agent.network.history,
                ),
                tasks=group.task,
                names=group.names,
                places=np.array(places),
                padded=np.array(places + places[:1] * padding),
            )

    def _places(self, tasks, grouped) -> list[list[int]]:
        """Each group's places in the population.

        Agent i has task i modulo their number, or if there are fewer agents than tasks, groups
        have places one after the other.
        """
        size = self._population.size
        if size < len(grouped):
            names = ", ".join(group.names[0] for group in grouped)
            raise ValueError(
                f"population.size is {size}; expected at least {len(grouped)}, an agent for each"
                f" group of tasks with common specs (those of {names})."
            )
        if size < len(tasks):
            ends = np.cumsum(allot([len(group.names) for group in grouped], size))
            starts = [0, *ends[:-1]]
            return [list(range(*ends)) for ends in zip(starts, ends.tolist(), strict=True)]
        return [
            [i for i in range(size) if tasks[i % len(tasks)].name in group.names]
            for group in grouped
        ]

    @property
    def population_size(self) -> int:
        """Agents, of all groups."""
        return self._population.size

    @property
    def sharding(self) -> Any:
        """Shardings of a `DiscoveryState`: agents over the mesh, all else replicated."""
        return _by_part(agents=over_agents(self._mesh), rest=on_all(self._mesh))

    @property
    def agents_stacked(self) -> Any:
        """Over how many agents arrays of a `DiscoveryState` are stacked; 0 for the others."""
        sizes = tuple(len(group.places) for group in self.groups)
        return _by_part(agents=sizes, rest=0)

    def check(self) -> None:
        """Refuses, before anything starts, what these machines have no room or no work for.

        Raises:
          ValueError: if there are more processes than agents, a batch cannot be split over an
            agent's devices, or this process's replays do not fit in memory together.
        """
        if jax.process_count() > self._population.size:
            raise ValueError(
                f"population.size is {self._population.size}; expected at least one agent for each"
                f" of the {jax.process_count()} processes."
            )
        per_agent = self._mesh.shape[BATCH]
        sizes = {"meta.validation_trajectories": self._meta.validation_trajectories} | {
            f"agent.batch_size of {group.names[0]}": group.agent.config.batch_size
            for group in self.groups
        }
        for name, size in sizes.items():
            if size % per_agent:
                raise ValueError(
                    f"{name} is {size}; expected a multiple of devices_per_agent ({per_agent})."
                )
        require_memory(
            [
                (
                    group.names[0].partition("/")[0],
                    group.agent,
                    len(group.places_here(self._mesh)),
                )
                for group in self.groups
                if group.is_host
            ]
        )

    def init(self) -> DiscoveryState:
        """The first generation of agents and the rule to start from."""
        unborn = jax.jit(self._unborn, out_shardings=self.sharding)
        state = unborn(jax.tree.map(np.asarray, self._initial_rule))
        everyone = [np.ones(len(group.places), bool) for group in self.groups]
        first = [first_tasks(len(group.places), len(group.names)) for group in self.groups]
        return self._with_newborn(state, everyone, first)

    def _unborn(self, rule) -> DiscoveryState:
        """All places of the population empty, to be filled by births number 0."""
        meta_optimizer = self._meta_optimizer.init(ravel_pytree(rule)[0])
        groups = []
        for group in self.groups:
            shapes = jax.eval_shape(
                partial(self._born, group), rule, 0, jnp.int32(0), 0, jnp.int32(0), meta_optimizer
            )
            nobody = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            life = dataclasses.replace(nobody.life, births=nobody.life.births - 1)
            nobody = dataclasses.replace(nobody, life=life, meta_optimizer=meta_optimizer)
            number = len(group.padded)
            groups.append(
                jax.tree.map(lambda x, n=number: jnp.broadcast_to(x, (n, *x.shape)), nobody)
            )
        return DiscoveryState(
            rule=rule,
            average=rule,
            groups=tuple(groups),
            lived=tuple(jnp.zeros(len(group.names), jnp.int32) for group in self.groups),
            meta_step=jnp.zeros((), jnp.int32),
        )

    def _born(
        self, group: Group, rule, meta_step, task, place, births, meta_optimizer
    ) -> Individual:
        """A fresh agent in its place of the population."""
        budget_key, born_key = jax.random.split(
            keys.key(self._seed, Purpose.INITIALIZE, meta_step, place)
        )
        agent, validation, value = newborn(
            group.agent,
            group.value_function,
            rule,
            group.task(task),
            born_key,
            self._meta.validation_trajectories,
        )
        life = Life(
            task=task,
            births=births,
            steps=jnp.zeros((), jnp.int32),
            budget=draw_budget(self._population, budget_key, births),
        )
        return Individual(
            agent=agent,
            validation=validation,
            value=value,
            life=life,
            meta_optimizer=meta_optimizer,
        )

    def step(self, state: DiscoveryState) -> tuple[DiscoveryState, tuple[Metrics, ...]]:
        """One meta-step. It may reuse the memory of the state that it is given.

        It returns when the step is computed, as it looks at who is to be reborn.

        Returns:
          The state after it, and each group's metrics per agent, `[agents]`.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        if self.has_hosts and self._hosts is None:
            self._hosts = self._make_hosts()
            for number, host_group in self._hosts.groups.items():
                host_group.start(state.groups[number], int(state.meta_step))
        host_groups = self._hosts.groups if self._hosts else {}
        follow = self._hosts.clock.follow if self._hosts else lambda dispatch, watched: dispatch()
        rule, meta_step = state.rule, state.meta_step
        evolved: list[Any] = [None] * len(self.groups)
        on_device = tuple(i for i in range(len(self.groups)) if i not in host_groups)
        if on_device:  # Dispatched first: it is computed while the others act.
            groups = tuple(state.groups[number] for number in on_device)
            parts = follow(
                lambda: self._evolve(on_device, rule, meta_step, groups),
                watched=lambda parts: [part.metrics["finite"] for part in parts],
            )
            for number, part in zip(on_device, parts, strict=True):
                evolved[number] = part
        for number, host_group in host_groups.items():
            evolved[number] = host_group.evolve(rule, int(meta_step), state.groups[number])
        individuals = tuple(part.individuals for part in evolved)
        shares = tuple(part._replace(individuals=None) for part in evolved)
        average, lived = state.average, state.lived
        state, metrics = follow(
            lambda: self._conclude(rule, average, lived, meta_step, individuals, shares),
            watched=lambda results: results[1],
        )
        reborn = [x > 0 for x in jax.device_get([report["reborn"] for report in metrics])]
        if any(group.any() for group in reborn):
            before = jax.device_get([report["task"] for report in metrics])
            tasks = map(next_tasks, before, reborn, jax.device_get(state.lived))
            state = self._with_newborn(state, reborn, list(tasks))
        for number, host_group in host_groups.items():
            host_group.replace_reborn(state.groups[number], reborn[number], int(state.meta_step))
        return state, metrics

    def _with_newborn(
        self,
        state: DiscoveryState,
        reborn: Sequence[Bool[np.ndarray, "N"]],
        tasks: Sequence[Int[np.ndarray, "N"]],
    ) -> DiscoveryState:
        """The state with some agents of each group born anew, on these of the group's tasks."""

        def padded(arrays):  # Copies are of a group's first agent.
            return tuple(
                np.concatenate([x, np.repeat(x[:1], len(group.padded) - len(x))])
                for group, x in zip(self.groups, arrays, strict=True)
            )

        tasks = [x.astype(np.int32) for x in tasks]
        groups = self._bear(
            state.rule, state.meta_step, state.groups, padded(reborn), padded(tasks)
        )
        return dataclasses.replace(state, groups=groups)

    def compile(self) -> None:
        """Compiles a meta-step ahead of the first one, both programs at the same time.

        With host environments nothing is done: then each program is compiled when it is needed.
        """
        if self.has_hosts:
            return
        # Processes that compile together do so in the same order.
        with ThreadPoolExecutor(1 if jax.process_count() > 1 else 2) as pool, _uncollected():
            for compiled in [pool.submit(program.compile) for program in self.lower()]:
                compiled.result()

    def lower(self) -> Iterator[jax.stages.Lowered]:
        """The two programs of a meta-step without host environments, one after the other.

        Agents' K updates and meta-gradients are in the first, what is sent between devices in the
        second.
        """
        state = self.abstract_state
        first = (tuple(range(len(self.groups))), state.rule, state.meta_step, state.groups)
        yield self._evolve.lower(*first)
        sharding = over_agents(self._mesh)
        evolved = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self._evolve.eval_shape(*first),
        )
        individuals = tuple(part.individuals for part in evolved)
        shares = tuple(part._replace(individuals=None) for part in evolved)
        yield Discovery._conclude.jitted().lower(
            self, state.rule, state.average, state.lived, state.meta_step, individuals, shares
        )

    def _make_hosts(self) -> "_Hosts":
        clock = DeviceClock()
        groups = {number: group for number, group in enumerate(self.groups) if group.is_host}
        # All agents act at the same time.
        num_halves = NUM_HALVES * sum(
            len(group.places_here(self._mesh)) for group in groups.values()
        )
        workers = max(1, environments.available_processors() // num_halves)
        return _Hosts(
            groups={
                number: HostGroup(
                    group, self._judge, self._meta, self._mesh, self._seed, clock, workers
                )
                for number, group in groups.items()
            },
            clock=clock,
        )

    @property
    def has_hosts(self) -> bool:
        """Whether some environments are outside JAX, whose states no checkpoint holds."""
        return any(group.is_host for group in self.groups)

    def host_metrics(self) -> dict[str, float]:
        """How the host environments went since the last call; nothing if there are none.

        Seconds and deaths are sums over processes, the idle fraction is their mean.
        """
        if self._hosts is None:
            return {}
        names = ("engine_seconds", "policy_seconds", "simulator_restarts")
        parts = [host_group.timing() for host_group in self._hosts.groups.values()]
        own = [self._hosts.clock.idle_fraction(), *(sum(p[name] for p in parts) for name in names)]
        idle, *sums = np.atleast_2d(multihost_utils.process_allgather(np.array(own))).T
        return {
            "device_idle_fraction": float(idle.mean()),
            **{name: float(x.sum()) for name, x in zip(names, sums, strict=True)},
        }

    def close(self) -> None:
        """Ends host environments."""
        hosts, self._hosts = self._hosts, None
        if hosts is None:
            return
        with contextlib.ExitStack() as closing:
            for host_group in hosts.groups.values():
                closing.callback(host_group.close)
            closing.callback(hosts.clock.close)

    def _evolve_groups(self, which, rule, meta_step, groups) -> tuple[Evolved, ...]:
        """The part of some groups in a meta-step."""
        addresses = self._addresses()

        def shard(rule, meta_step, groups, addresses):
            return tuple(
                self._evolve_group(self.groups[number], rule, meta_step, *rows)
                for number, *rows in zip(which, groups, addresses, strict=True)
            )

        evolved = for_each_device(self._mesh, shard, "rraa", P(AGENTS))(
            rule,
            meta_step,
            groups,
            tuple(addresses[number] for number in which),
        )
        return jax.lax.with_sharding_constraint(evolved, over_agents(self._mesh))

    @compilation.jit_compiled_fast(static_argnums=0, donate_argnums=5)
    def _conclude(self, rule, average, lived, meta_step, individuals, shares):
        """The rule's update, and whose life is over."""
        evolved = tuple(
            share._replace(individuals=group)
            for group, share in zip(individuals, shares, strict=True)
        )
        state, metrics = for_each_device(
            self._mesh, self._shard_conclude, "rrrra", self._conclusion
        )(rule, average, lived, meta_step, evolved)
        metrics = self._unpadded(metrics)
        lived = tuple(
            before.at[report["task"]].add(1)
            for before, report in zip(state.lived, metrics, strict=True)
        )
        return self._placed(dataclasses.replace(state, lived=lived)), metrics

    @compilation.jit_compiled_fast(static_argnums=0, donate_argnums=3)
    def _bear(self, rule, meta_step, groups, reborn, tasks) -> tuple[Individual, ...]:
        """The groups with some agents born anew."""

        def shard(rule, meta_step, groups, addresses, reborn, tasks):
            return tuple(
                self._replace(group, rule, meta_step, individuals, places, which, own)
                for group, individuals, (places, _), which, own in zip(
                    self.groups, groups, addresses, reborn, tasks, strict=True
                )
            )

        groups = for_each_device(self._mesh, shard, "rraaaa", P(AGENTS))(
            rule, meta_step, groups, self._addresses(), reborn, tasks
        )
        return jax.lax.with_sharding_constraint(groups, over_agents(self._mesh))

    def _placed(self, state: DiscoveryState) -> DiscoveryState:
        """The state where the next meta-step expects it, also along an agent's devices."""
        return jax.lax.with_sharding_constraint(state, jax.tree.broadcast(self.sharding, state))

    @property
    def _conclusion(self) -> Any:
        """Placement of the next state and of metrics."""
        return _by_part(agents=P(AGENTS), rest=P()), P()

    def _addresses(self) -> tuple[Any, ...]:
        """Each group's agents' numbers in the population, and whether they have a say."""
        return tuple(
            (
                jnp.asarray(group.padded, jnp.int32),
                jnp.arange(len(group.padded)) < len(group.places),
            )
            for group in self.groups
        )

    def _unpadded(self, metrics: tuple[Metrics, ...]) -> tuple[Metrics, ...]:
        return tuple(
            jax.tree.map(lambda x, n=len(group.places): x[:n], report)
            for group, report in zip(self.groups, metrics, strict=True)
        )

    @cached_property
    def abstract_state(self) -> DiscoveryState:
        """Shapes, dtypes and shardings of a state."""
        state = jax.eval_shape(self._unborn, self._initial_rule)
        return jax.tree.map(
            lambda sharding, x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.tree.broadcast(self.sharding, state),
            state,
        )

    def with_copies(self, state: DiscoveryState) -> DiscoveryState:
        """The state with groups padded by copies of their first agents, as a checkpoint is not."""
        if all(len(group.padded) == len(group.places) for group in self.groups):
            return state

        def pad(group, x):
            is_copy = (jnp.arange(x.shape[0]) >= len(group.places)).reshape(
                -1, *(1,) * (x.ndim - 1)
            )
            return jnp.where(is_copy, x[:1], x)

        def pad_all(groups):
            return tuple(
                jax.tree.map(partial(pad, group), individuals)
                for group, individuals in zip(self.groups, groups, strict=True)
            )

        groups = jax.jit(pad_all, donate_argnums=0, out_shardings=self.sharding.groups)(
            state.groups
        )
        return dataclasses.replace(state, groups=groups)

    def _evolve_group(self, group: Group, rule, meta_step, individuals, addresses) -> Evolved:
        """A JAX group's part of the meta-step on one device."""
        places, counts = addresses
        individuals, updates, report = map_agents(
            lambda agent: self._evolve_one(group, rule, meta_step, *agent),
            (individuals, places),
            agents_per_pass(self._meta.agents_at_once, len(counts)),
        )
        return summed(individuals, updates, report, counts)

    def _shard_conclude(self, rule, average, lived, meta_step, evolved):
        """The end of the meta-step on one device; the rule's update is the mean over all."""
        update = sum(part.update[0] for part in evolved)
        count = sum(part.count for part in evolved)
        # In one vector: the meta-step's only message between agents' devices but for metrics.
        total = jax.lax.psum(jnp.concatenate([update, count]), AGENTS)
        update, count = total[:-1], total[-1]
        parameters, unravel = ravel_pytree(rule)
        parameters -= self._meta.learning_rate / jnp.maximum(count, 1.0) * update
        done = meta_step.astype(jnp.result_type(float))
        old = jnp.minimum(self._meta.average_decay, done / (done + 1.0))
        average = unravel(old * ravel_pytree(average)[0] + (1.0 - old) * parameters)
        rule = unravel(parameters)
        for part in evolved:
            life = part.individuals.life
            is_over = (life.steps >= life.budget) | (part.metrics["finite"] == 0)
            part.metrics["reborn"] = is_over.astype(jnp.float32)
        state = DiscoveryState(
            rule=rule,
            average=average,
            groups=tuple(part.individuals for part in evolved),
            lived=lived,
            meta_step=meta_step + 1,
        )
        return state, _gathered(tuple(part.metrics for part in evolved))

    def _evolve_one(self, group: Group, rule, meta_step, individual: Individual, place):
        """Steps 1-4 for one agent: it afterwards, its share of the update, its metrics."""
        live_key, validation_key = jax.random.split(
            keys.key(self._seed, Purpose.TRAIN, meta_step, place)
        )
        agent = group.agent
        task = group.task(individual.life.task)
        before = individual.agent.learner
        agent_state, value, memoir, statistics, learning = lifetime.live(
            agent,
            group.value_function,
            rule,
            individual.agent,
            individual.value,
            task,
            live_key,
            self._meta.num_updates,
        )
        assert individual.validation is not None
        validation_actor, validation, validation_statistics = agent.act(
            agent_state.learner.params,
            task,
            individual.validation,
            validation_key,
            self._meta.validation_length,
        )
        individual = dataclasses.replace(
            individual, agent=agent_state, value=value, validation=validation_actor
        )
        individual, update, metrics = self._judge(
            group, rule, individual, before, memoir, validation
        )
        metrics |= {f"agent_{name}": x for name, x in learning.items()}
        metrics |= {
            "meta_return": validation_statistics.reward_sum / validation_statistics.steps,
            "episode_return_sum": statistics.return_sum,
            "episodes": statistics.count,
        }
        return individual, update, metrics

    def _judge(self, group: Group, rule, individual: Individual, before, memoir, validation):
        """Steps 2-4 for one agent whose validation trajectories are there.

        Args:
          group: its.
          rule: by which it learned.
          individual: after the K updates.
          before: its learner before them.
          memoir: of them.
          validation: played by the agent after them.

        Returns:
          It afterwards, its share of the rule's update, and metrics.
        """
        agent, life = group.agent, individual.life
        validation = split_batch(validation)

        def judge(rule):
            learner, target_statistics = lifetime.relive(
                agent, rule, before, memoir, self._meta.segment_length
            )
            outputs = agent.network.unroll(learner.params, validation)
            _, advantage, _ = group.value_function.evaluate(
                individual.value, outputs["logits"], validation
            )
            loss, metrics = meta_objective(
                self._objective,
                outputs,
                advantage,
                validation,
                target_statistics,
            )
            return loss, (metrics, outputs["logits"])

        (_, (judgement, logits)), gradient = jax.value_and_grad(judge, has_aux=True)(rule)
        value = group.value_function.update(individual.value, logits, validation)

        gradient, _ = ravel_pytree(gradient)
        norm = jnp.linalg.norm(gradient)
        finite = jnp.isfinite(norm)
        # A sick agent has no say in this step, and leaves no trace in its meta-optimiser.
        gradient = jnp.where(finite, gradient, 0.0)
        update, meta_optimizer = self._meta_optimizer.update(gradient, individual.meta_optimizer)
        meta_optimizer = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), meta_optimizer, individual.meta_optimizer
        )
        update = jnp.where(finite, jnp.asarray(update), 0.0)

        life = dataclasses.replace(life, steps=life.steps + self.steps_per_meta_step)
        individual = dataclasses.replace(
            individual, value=value, life=life, meta_optimizer=meta_optimizer
        )
        metrics = {
            **judgement,
            "meta_gradient_norm": norm,
            "finite": finite.astype(jnp.float32),
            "task": life.task,
            "life_steps": life.steps,
        }
        return individual, update, metrics

    def _replace(self, group: Group, rule, meta_step, individuals, places, reborn, tasks):
        """One device's agents of a group, some of them born anew."""

        def born(individual: Individual, task, place):
            births = individual.life.births + 1
            return self._born(
                group, rule, meta_step, task, place, births, individual.meta_optimizer
            )

        fresh = jax.vmap(born)(individuals, tasks, places)
        return jax.tree.map(
            lambda new, old: jnp.where(reborn.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
            fresh,
            individuals,
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which a sixth of tracing would go to."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _by_part(agents: Any, rest: Any) -> Any:
    """A prefix of a `DiscoveryState`: what holds for the agents, and for all else."""
    return DiscoveryState(rule=rest, average=rest, groups=agents, lived=rest, meta_step=rest)


def _gathered(metrics: tuple[Metrics, ...]) -> tuple[Metrics, ...]:
    """Metrics of all devices' agents, by one message for each dtype."""
    leaves, structure = jax.tree.flatten(metrics)
    for dtype in sorted({x.dtype for x in leaves}, key=str):
        which = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        flat, unravel = ravel_pytree([leaves[i] for i in which])
        parts = jax.vmap(unravel)(jax.lax.all_gather(flat, AGENTS))
        for i, part in zip(which, parts, strict=True):
            leaves[i] = part.reshape(-1)
    return jax.tree.unflatten(structure, leaves)

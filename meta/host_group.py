"""Agents of host environments in a meta-step (see `meta.discovery`).

Threads act, store and draw while the device learns: for the first batch of a meta-step since the
end of the last one, by the agents' present parameters; for each further one, by those of one
update before. When the K updates are made, the updated agents play their validation
trajectories. What the updates remembered (`meta.lifetime`) is what the meta-gradient needs, so
that it is on-policy and no update is made twice.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import disco
import environments
from meta import lifetime
from meta.groups import Evolved, Group, summed
from meta.mesh import AGENTS, for_each_device, over_agents, own_rows
from meta.population import Individual
from training.device_clock import DeviceClock
from training.host_collection import Act, Collected, HostActor, Timing, make_act
from training.host_experience import Experience, HostExperience
from training.passes import agents_per_pass, map_agents


class HostGroup:
    """A group's environments and replays, and its part of a meta-step."""

    def __init__(
        self,
        group: Group,
        judge: Callable,
        meta: Any,
        mesh: Mesh,
        seed: int,
        clock: DeviceClock,
        workers: int,
    ):
        """Compiles nothing and starts nothing.

        Args:
          group: whose it is.
          judge: `Discovery._judge`.
          meta: a `MetaConfig`.
          mesh: with the axis `agents`.
          seed: of all randomness.
          clock: follows what the device does.
          workers: threads or processes for each half of an agent's environments.
        """
        self._group, self._meta, self._seed = group, meta, seed
        self._sharding = over_agents(mesh)
        self._act: Act = make_act(group.agent.network)
        # The agents of this process: their rows of the group's arrays, places in the population,
        # and numbers within the group. Copies that pad the group learn from what their original
        # collects, or where that is another process's, from what the first of them does.
        rows = own_rows(mesh, len(group.padded))
        self._places, first, self._source = np.unique(
            group.padded[rows], return_index=True, return_inverse=True
        )
        self._first_rows = rows[first]
        self._orders = np.searchsorted(group.places, self._places)
        self._lives: list[_Life] = []
        self._memoirs: Any = None
        self._clock, self._workers = clock, workers
        self._threads = ThreadPoolExecutor(len(self._places), "validation")
        self._time = Timing(0.0, 0.0)

        counts = jnp.arange(len(group.padded)) < len(group.places)
        per_pass = agents_per_pass(meta.agents_at_once, len(group.padded) // mesh.shape[AGENTS])

        def update(rule, individuals, batches):
            def one(row):
                individual, batch = row
                state, value, memoir, metrics = lifetime.update(
                    group.agent,
                    group.value_function,
                    rule,
                    individual.agent,
                    individual.value,
                    batch,
                )
                individual = dataclasses.replace(individual, agent=state, value=value)
                return individual, memoir, metrics

            return map_agents(one, (individuals, batches), per_pass)

        def conclude(rule, individuals, befores, memoirs, validations, counts):
            def one(row):
                return judge(group, rule, *row)

            rows = (individuals, befores, memoirs, validations)
            individuals, updates, report = map_agents(one, rows, per_pass)
            return summed(individuals, updates, report, counts)

        def keep(memoirs, memoir, number):
            return jax.tree.map(lambda kept, x: kept.at[:, number].set(x), memoirs, memoir)

        def sharded(function, arguments):
            spread = for_each_device(mesh, function, arguments, P(AGENTS))
            return lambda *rows: jax.lax.with_sharding_constraint(spread(*rows), self._sharding)

        self._update = jax.jit(sharded(update, "raa"), donate_argnums=1)
        self._keep = jax.jit(sharded(keep, "aar"), donate_argnums=0)
        self._conclude = jax.jit(
            lambda *arguments: sharded(conclude, "raaaaa")(*arguments, counts),
            donate_argnums=1,
        )
        self._unstack = jax.jit(
            lambda params: [
                jax.tree.map(lambda x, i=i: x[i], params)
                for i in range(jax.tree.leaves(params)[0].shape[0])
            ]
        )

    def start(self, individuals: Individual, meta_step: int) -> None:
        """Starts all environments.

        Raises:
          SimulatorError: if one cannot be started.
        """
        for place, task, births in self._addresses(individuals):
            self._lives.append(self._live(place, task, births, meta_step))

    def _addresses(self, individuals: Individual) -> list[tuple[int, int, int]]:
        """Each agent's place in the population, index of its task, and births."""
        life = individuals.life
        places = self._places.tolist()
        return list(zip(places, self._own(life.task), self._own(life.births), strict=True))

    def _live(self, place: int, task: int, births: int, meta_step: int) -> "_Life":
        group = self._group
        address = (self._seed, place, births, meta_step)
        num_validation = self._meta.validation_trajectories
        return _Life(group, self._act, group.tasks[task], address, num_validation, self._workers)

    def evolve(self, rule: Any, meta_step: int, individuals: Individual) -> Evolved:
        """The group's K updates, validation, and what the agents would do to the rule.

        Args:
          rule: to learn by.
          meta_step: made so far.
          individuals: their memory is taken.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        first, num_updates = meta_step * self._meta.num_updates, self._meta.num_updates
        befores = jax.tree.map(jnp.copy, individuals.agent.learner)
        if not all(life.experience.is_requested for life in self._lives):  # Newborn ones do not.
            self._request(self._params(individuals), first)
        taken, learning = [], []
        for number in range(num_updates):
            experiences = [life.experience.take() for life in self._lives]
            if number + 1 < num_updates:
                self._request(self._params(individuals), first + number + 1)
            batches = self._stack([experience.batch for experience in experiences])
            individuals, memoir, metrics = self._clock.follow(
                lambda individuals=individuals, batches=batches: self._update(
                    rule, individuals, batches
                ),
                watched=lambda results: results[2],
            )
            self._remember(memoir, number)
            taken.append([experience._replace(batch=None) for experience in experiences])
            learning.append(metrics)
        params = self._params(individuals)
        validations = self._validate(params, meta_step)
        self._request(params, first + num_updates)
        played = self._stack([validation.trajectory for validation in validations])
        evolved = self._clock.follow(
            lambda: self._conclude(rule, individuals, befores, self._memoirs, played),
            watched=lambda results: results.metrics["finite"],
        )
        self._add_time([x.timing for row in taken for x in row] + [x.timing for x in validations])
        return evolved._replace(
            metrics=evolved.metrics | self._metrics(taken, learning, validations)
        )

    def replace_reborn(self, individuals: Individual, reborn: np.ndarray, meta_step: int) -> None:
        """New environments and replays for agents that start anew."""
        if not reborn.any():
            return
        addresses = self._addresses(individuals)
        for number in np.flatnonzero(reborn[self._orders]):
            self._lives[number].close()
            self._lives[number] = self._live(*addresses[number], meta_step)

    def timing(self) -> dict[str, float]:
        """Since the last call threads' seconds; so far deaths of simulators."""
        timing, self._time = self._time, Timing(0.0, 0.0)
        return {
            "engine_seconds": timing.engine,
            "policy_seconds": timing.policy,
            "simulator_restarts": float(sum(life.restarts for life in self._lives)),
        }

    def close(self) -> None:
        """Ends all environments."""
        self._threads.shutdown()
        with contextlib.ExitStack() as closing:  # All of them, also when one fails to.
            for life in self._lives:
                closing.callback(life.close)
        self._lives = []

    def _request(self, params: list[disco.Params], update: int) -> None:
        """Lets those agents act that do not yet."""
        for life, own in zip(self._lives, params, strict=True):
            if not life.experience.is_requested:
                life.experience.request(own, update)

    def _params(self, individuals: Individual) -> list[disco.Params]:
        """The parameters of each life's agent, on its device."""
        leaves, structure = jax.tree.flatten(individuals.agent.learner.params)
        by_device = zip(*(leaf.addressable_shards for leaf in leaves), strict=True)
        by_row = {}
        for shards in by_device:
            first = shards[0].index[0].start or 0
            if first not in by_row:  # An agent's further devices hold the same.
                agents = self._unstack(structure.unflatten(shard.data for shard in shards))
                by_row |= dict(enumerate(agents, first))
        return [by_row[row] for row in self._first_rows]

    def _own(self, x: jax.Array) -> list[int]:
        """An integer of each life's agent."""
        by_row = {
            row: value
            for shard in x.addressable_shards
            for row, value in enumerate(np.asarray(shard.data).tolist(), shard.index[0].start or 0)
        }
        return [by_row[row] for row in self._first_rows]

    def _place(self, x: np.ndarray) -> jax.Array:
        """An array over this process's rows as its part of one over all agents."""
        return jax.make_array_from_process_local_data(
            self._sharding, x, (len(self._group.padded), *x.shape[1:])
        )

    def _stack(self, trajectories: list[disco.Trajectory]) -> disco.Trajectory:
        """Of all agents, on their devices."""
        rows = [trajectories[i] for i in self._source]
        return jax.tree.map(lambda *x: self._place(np.stack(x)), *rows)

    def _remember(self, memoir: lifetime.Memoir, number: int) -> None:
        if self._memoirs is None:  # Its memory is used again in every meta-step.
            num_updates = self._meta.num_updates
            self._memoirs = jax.tree.map(
                lambda x: jnp.zeros(
                    (x.shape[0], num_updates, *x.shape[1:]), x.dtype, device=self._sharding
                ),
                memoir,
            )
        self._memoirs = self._keep(self._memoirs, memoir, jnp.int32(number))

    def _validate(self, params: list[disco.Params], meta_step: int) -> list[Collected]:
        """The updated agents' validation trajectories."""
        key = jax.random.fold_in(jax.random.key(self._seed), meta_step)
        playing = [
            self._threads.submit(
                life.validation.collect,
                own,
                jax.random.fold_in(key, place),
                self._meta.validation_length,
            )
            for life, own, place in zip(self._lives, params, self._places, strict=True)
        ]
        wait(playing)
        return [future.result() for future in playing]

    def _metrics(self, taken: list[list[Experience]], learning, validations) -> dict[str, Any]:
        """What is not computed with the meta-gradient, for each agent."""

        def over_agents(values: list[float]) -> np.ndarray:
            return np.asarray([values[i] for i in self._source], np.float32)

        by_agent = list(zip(*taken, strict=True))
        episodes = [[e for x in experiences for e in x.episodes] for experiences in by_agent]
        played = [validation.trajectory for validation in validations]
        metrics = {
            "meta_return": over_agents([float(x.reward.sum() / x.mask.sum()) for x in played]),
            "episode_return_sum": over_agents([sum(e.episode_return for e in x) for x in episodes]),
            "episodes": over_agents([float(len(x)) for x in episodes]),
        }
        metrics = {name: self._place(x) for name, x in metrics.items()}
        return metrics | {
            f"agent_{name}": sum(metrics[name] for metrics in learning) / len(learning)
            for name in learning[0]
        }

    def _add_time(self, timings: list[Timing]) -> None:
        self._time = Timing(
            engine=self._time.engine + sum(x.engine for x in timings),
            policy=self._time.policy + sum(x.policy for x in timings),
        )


class _Life:
    """One agent's environments from its birth on."""

    def __init__(
        self,
        group: Group,
        act: Act,
        task: Any,
        address: tuple,
        num_validation: int,
        workers: int,
    ):
        agent = group.agent
        assert isinstance(agent.environment, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.experience = HostExperience(agent, act, task, int(seeds[0]), workers=workers)
            started.callback(self.experience.close)
            self.validation = HostActor(
                agent.environment, agent.network, act, task, num_validation, int(seeds[1]), workers
            )
            started.pop_all()

    @property
    def restarts(self) -> int:
        return self.experience.restarts + self.validation.restarts

    def close(self) -> None:
        with contextlib.closing(self.validation):
            self.experience.close()

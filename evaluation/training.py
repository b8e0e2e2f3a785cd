"""Training fresh agents with a frozen rule on every task of a suite.

A *run* is one agent on one task with one seed. Runs in JAX environments are one compiled program:
those whose environments share their dynamics form a group; the program advances all groups by
some updates, a few runs per vectorised pass, and tells how the episodes went that ended
meanwhile. What a run does depends on its rule, agent, task and seed only: neither on the runs
beside it nor on the number of devices. Runs in host environments follow one another
(`evaluation.host_training`).
"""

import dataclasses
import itertools
import pathlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents import acting
from agents.agent import Agent, AgentConfig
from agents.host_experience import require_memory
from agents.networks import uniform_network
from agents.passes import agents_per_pass, map_agents
from evaluation import host_training
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender

Report = Callable[[int, float | None, float | None], None]

_AXIS = "runs"
_PURPOSES = ("birth", "live")


class Run(NamedTuple):
    """Which run this is. Stacked over a group's runs in use.

    Attributes:
      task: of its environment.
      code: a number for the task's name that no other task changes.
      seed: of its randomness.
    """

    task: PyTree[Array]
    code: Int[Array, ""]
    seed: Int[Array, ""]


class Episodes(NamedTuple):
    """The episodes that ended in some stretch of each run.

    Attributes:
      count: how many.
      return_sum: of their undiscounted returns.
    """

    count: Float[np.ndarray, "tasks seeds *points"]
    return_sum: Float[np.ndarray, "tasks seeds *points"]

    @property
    def mean_return(self) -> Float[np.ndarray, "tasks seeds *points"]:
        """NaN where no episode ended."""
        return divide(self.return_sum, self.count)


@dataclasses.dataclass(frozen=True)
class History:
    """What became of a contender's runs.

    Attributes:
      updates: at which each interval of the learning curves ended, `[points]`.
      curve: the episodes that ended in each interval.
      window: the episodes that ended in the score's window.
      results: means over the episodes of the window, by name: their `length`, and what their
        suites tell of them besides. NaN where no episode ended, or a suite does not tell it.
      is_finite: whether all of an agent's numbers were, at the end.
      start_seconds: to compile the program, if it was new, and to start all runs.
      train_seconds: of wall time.
    """

    updates: Int[np.ndarray, "points"]
    curve: Episodes
    window: Episodes
    results: dict[str, Float[np.ndarray, "tasks seeds"]]
    is_finite: Bool[np.ndarray, "tasks seeds"]
    start_seconds: float
    train_seconds: float


class RandomAgent:
    """The uniformly random policy, with the part of `Agent` that training calls."""

    def __init__(self, config: AgentConfig, environment: environments.JaxEnvironment):
        self._config = config
        self._environment = environment
        self._network = uniform_network(environments.num_actions(environment))

    def init(self, rule: None, task: PyTree, key: PRNGKeyArray) -> acting.ActorState:
        """Its environments."""
        del rule
        return acting.start(
            self._environment, self._network, task, key, self._config.num_environments
        )

    def update(
        self, rule: None, state: acting.ActorState, task: PyTree, key: PRNGKeyArray
    ) -> tuple[acting.ActorState, acting.EpisodeStatistics, dict]:
        """Acts for as long as an agent does in one update."""
        del rule
        state, _, statistics = acting.rollout(
            self._environment, self._network, {}, task, state, key, self._config.unroll_length
        )
        return state, statistics, {}


class _Group(NamedTuple):
    """Runs of equal dynamics, on the devices, padded so that they divide among passes."""

    dynamics: environments.JaxEnvironment
    runs: Run
    num_runs: int
    per_pass: int


class Program:
    """The compiled functions that train any rules of one form by one kind of agent.

    Meta-parameters and learning rates are arguments, so that rules of equal sizes, and all
    values of a learning-rate grid, share one compilation.
    """

    def __init__(
        self,
        tasks: Sequence[environments.Environment],
        seeds: Sequence[int],
        agent: AgentConfig,
        runs_at_once: int | None = None,
    ):
        """Places the tasks on the devices; compiles nothing.

        Args:
          tasks: with different names.
          seeds: one run each, on every task.
          agent: of all runs; its learning rate is not read.
          runs_at_once: per device and vectorised pass; None to choose for the device.
        """
        self._agent = agent
        self._seeds = seeds
        self._mesh = Mesh(np.array(jax.devices()), (_AXIS,))
        self._runs_at_once = runs_at_once
        groups = environments.group(tasks)
        self._groups = [self._make_group(group) for group in groups]
        names = [name for group in groups for name in group.names]
        self._order = [names.index(task.name) for task in tasks]

    def _make_group(self, group: environments.Group) -> _Group:
        num_runs = len(group.names) * len(self._seeds)
        at_once = agents_per_pass(self._runs_at_once, -(-num_runs // self._mesh.size))
        block = self._mesh.size * at_once
        # Whole passes only, so that a run is computed alike whatever runs are beside it. Those
        # that pad repeat the first ones, and are not read.
        index = np.arange(-(-num_runs // block) * block) % num_runs
        task_index, seed_index = np.divmod(index, len(self._seeds))
        codes = np.array([zlib.crc32(name.encode()) for name in group.names], np.uint32)
        runs = Run(
            task=jax.tree.map(lambda x: x[task_index], group.task),
            code=jnp.asarray(codes[task_index]),
            seed=jnp.asarray(np.array(self._seeds, np.uint32)[seed_index]),
        )
        runs = jax.device_put(runs, NamedSharding(self._mesh, P(_AXIS)))
        assert isinstance(group.dynamics, environments.JaxEnvironment)
        return _Group(group.dynamics, runs, num_runs, at_once)

    def init(self, rule: disco.Rule | None) -> tuple[PyTree[Array], ...]:
        """Newborn agents, each group's stacked."""
        return self._init(rule, tuple(group.runs for group in self._groups))

    def advance(
        self,
        rule: disco.Rule | None,
        learning_rate: float,
        states: tuple[PyTree[Array], ...],
        first_update: int,
        num_updates: int,
    ) -> tuple[tuple[PyTree[Array], ...], dict[str, Float[np.ndarray, "tasks seeds"]]]:
        """Some updates of every run.

        Args:
          rule: to learn by; None for the random policy.
          learning_rate: of the agents.
          states: from `init` or the last call; donated.
          first_update: updates made so far.
          num_updates: to make now; any number, by the same compiled program.

        Returns:
          The agents after it; and sums over the episodes that ended in it: `count`, `return`,
          `length`, and the suites' own results, NaN where a suite does not tell them.
        """
        states, sums = self._advance(
            rule,
            jnp.float32(learning_rate),
            states,
            tuple(group.runs for group in self._groups),
            jnp.int32(first_update),
            jnp.int32(num_updates),
        )
        names = dict.fromkeys(name for group in sums for name in group)
        blank = [np.full(len(group.runs.seed), np.nan) for group in self._groups]
        return states, {
            name: self._by_task(
                [group.get(name, nan) for group, nan in zip(sums, blank, strict=True)]
            )
            for name in names
        }

    def is_finite(self, states: tuple[PyTree[Array], ...]) -> Bool[np.ndarray, "tasks seeds"]:
        """Whether all of an agent's numbers are finite."""
        return self._by_task(
            [jax.vmap(host_training.all_finite)(state) for state in states]
        ).astype(bool)

    # Runs once, so that it pays to compile it fast rather than well.
    @partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
    def _init(self, rule, runs):
        def born(group, rule, run: Run):
            agent = self._make_agent(group, rule, learning_rate=0.0)
            return agent.init(rule, run.task, _key("birth", run, 0))

        return self._map(born, replicated=(rule,), per_run=runs)

    @partial(jax.jit, static_argnums=0, donate_argnums=3)
    def _advance(self, rule, learning_rate, states, runs, first_update, num_updates):
        def live(group, rule, learning_rate, first_update, num_updates, state_and_run):
            state, run = state_and_run
            agent = self._make_agent(group, rule, learning_rate)

            def update(i, carry):
                state, total = carry
                state, statistics, _ = agent.update(
                    rule, state, run.task, _key("live", run, first_update + i)
                )
                return state, jax.tree.map(jnp.add, total, statistics)

            _, statistics, _ = jax.eval_shape(
                agent.update, rule, state, run.task, _key("live", run, first_update)
            )
            total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), statistics)
            state, total = jax.lax.fori_loop(0, num_updates, update, (state, total))
            sums = {"count": total.count, "return": total.return_sum, "length": total.length_sum}
            return state, sums | total.result_sums

        results = self._map(
            live,
            replicated=(rule, learning_rate, first_update, num_updates),
            per_run=tuple(zip(states, runs, strict=True)),
        )
        states, sums = zip(*results, strict=True)
        return states, sums

    def _make_agent(self, group: _Group, rule, learning_rate) -> Agent | RandomAgent:
        if rule is None:
            return RandomAgent(self._agent, group.dynamics)
        agent = Agent.create(self._agent, group.dynamics, rule)
        return dataclasses.replace(agent, optimizer=self._agent.optimizer(learning_rate))

    def _map(self, function, replicated, per_run):
        """`function(group, *replicated, run)` for all runs of each group, over all devices."""

        def shard(replicated, per_run):
            return tuple(
                map_agents(partial(function, group, *replicated), rows, group.per_pass)
                for group, rows in zip(self._groups, per_run, strict=True)
            )

        return jax.shard_map(
            shard,
            mesh=self._mesh,
            in_specs=(P(), P(_AXIS)),
            out_specs=P(_AXIS),
            check_vma=False,
        )(replicated, per_run)

    def _by_task(self, rows: Sequence[Array]) -> Float[np.ndarray, "tasks seeds"]:
        """Numbers of each group's runs, in the order of the tasks that were given."""
        unpadded = [
            np.asarray(row, np.float64)[: group.num_runs]
            for row, group in zip(rows, self._groups, strict=True)
        ]
        return np.concatenate(unpadded).reshape(-1, len(self._seeds))[self._order]


class Trainer:
    """Trains contenders on the same tasks, seeds and budget."""

    def __init__(
        self,
        tasks: Sequence[environments.Environment],
        config: EvaluationConfig,
        folder: pathlib.Path,
    ):
        """Compiles nothing.

        Args:
          tasks: with different names.
          config: of the evaluation.
          folder: for the runs in host environments.
        """
        self._tasks = tasks
        self._on_device = [i for i, task in enumerate(tasks) if not task.is_host]
        self._on_host = [i for i, task in enumerate(tasks) if task.is_host]
        self._config = config
        self._folder = folder
        self._programs: dict[object, Program] = {}
        self._host_programs: dict[object, host_training.HostProgram] = {}

    @property
    def num_updates(self) -> int:
        """Of a contender, over stretches that follow one another."""
        runs = bool(self._on_device) + len(self._on_host) * self._config.seeds
        return runs * self._config.num_updates

    def check(self, contenders: Sequence[Contender]) -> None:
        """Refuses, before anything starts, what could not be trained.

        Raises:
          ValueError: if a rule cannot act in an environment, or an agent's replay does not fit in
            memory.
        """
        for contender in contenders:
            for index in self._on_host:
                task = self._tasks[index]
                require_memory([(task.name, self._host_program(contender, task).agent, 1)])

    def train(self, contender: Contender, report: Report = lambda *_: None) -> History:
        """All of a contender's runs.

        Args:
          contender: to train.
          report: called now and then with the updates made so far, of `num_updates`; the
            environment steps per second of the stretch, without compilation; and the mean
            return of the episodes that ended since the last call (None if none did).

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
          CheckpointError: if a checkpoint of a run cannot be written or read.
          ValueError: if a replay does not fit in memory.
        """
        tally = Tally(len(self._tasks), self._config)
        is_finite = np.ones((len(self._tasks), self._config.seeds), bool)
        start_seconds, train_seconds = 0.0, 0.0
        if self._on_device:
            finite, start_seconds, train_seconds = self._train_on_device(contender, tally, report)
            is_finite[self._on_device] = finite
        done = self._config.num_updates * bool(self._on_device)
        for index, seed in itertools.product(self._on_host, range(self._config.seeds)):
            run = self._train_on_host(contender, index, seed, done, report)
            for update, episode in run.episodes:
                sums = {"count": 1.0, "return": episode.episode_return, "length": episode.length}
                tally.add((index, seed), update + 1, sums | dict(episode.results))
            is_finite[index, seed] = run.is_finite
            train_seconds += run.seconds
            done += self._config.num_updates
        return History(
            updates=tally.ends,
            curve=tally.curve,
            window=tally.window,
            results=tally.results,
            is_finite=is_finite,
            start_seconds=start_seconds,
            train_seconds=train_seconds,
        )

    def _train_on_device(
        self, contender: Contender, tally: "Tally", report: Report
    ) -> tuple[Bool[np.ndarray, "tasks seeds"], float, float]:
        """All runs in JAX environments: which stayed finite, seconds to start and to train."""
        config, rule = self._config, contender.rule
        program = self._program(contender)
        learning_rate = contender.agent.learning_rate
        start = time.perf_counter()
        states = program.init(rule)
        states, _ = program.advance(rule, learning_rate, states, 0, 0)
        trained_from = time.perf_counter()

        steps = len(self._on_device) * config.seeds * config.agent.steps_per_update
        for first, last in _stretches(tally.ends, tally.window_start, config.updates_per_call):
            states, sums = program.advance(rule, learning_rate, states, first, last - first)
            tally.add(np.array(self._on_device), last, sums)
            count = float(np.sum(sums["count"]))
            mean_return = float(np.sum(sums["return"])) / count if count else None
            report(last, steps * last / (time.perf_counter() - trained_from), mean_return)
        is_finite = program.is_finite(states)
        return is_finite, trained_from - start, time.perf_counter() - trained_from

    def _train_on_host(
        self, contender: Contender, index: int, seed: int, done: int, report: Report
    ) -> host_training.HostRun:
        """One run in a host environment, or what is known of it if it is finished."""
        config, task = self._config, self._tasks[index]
        return host_training.train(
            self._host_program(contender, task),
            contender.rule,
            contender.agent.learning_rate,
            task,
            config.all_seeds[seed],
            config.num_updates,
            host_training.run_folder(self._folder, contender.name, task, seed),
            log_interval=config.updates_per_call,
            checkpoint_seconds=config.checkpoint_seconds,
            report=lambda updates, speed, mean: report(done + updates, speed, mean),
        )

    def _program(self, contender: Contender) -> Program:
        agent = dataclasses.replace(contender.agent, learning_rate=0.0)
        key = (jax.tree.structure(contender.rule), agent)
        if key not in self._programs:
            tasks = [self._tasks[i] for i in self._on_device]
            self._programs[key] = Program(
                tasks, self._config.all_seeds, agent, self._config.runs_at_once
            )
        return self._programs[key]

    def _host_program(
        self, contender: Contender, task: environments.Environment
    ) -> host_training.HostProgram:
        agent = dataclasses.replace(contender.agent, learning_rate=0.0)
        assert isinstance(task.dynamics, environments.HostEnvironment)
        key = (jax.tree.structure(contender.rule), agent, task.dynamics)
        if key not in self._host_programs:
            self._host_programs[key] = host_training.HostProgram(
                task.dynamics, agent, contender.rule
            )
        return self._host_programs[key]


class Tally:
    """The episodes of runs: along their curves, and in the window of their scores.

    Attributes:
      ends: updates at which the curves' intervals end, `[points]`.
      window_start: the update with which the window starts.
      curve, window: see `History`.
    """

    def __init__(self, num_tasks: int, config: EvaluationConfig):
        """Of no episode yet."""
        self.ends, self.window_start = intervals(config)
        shape = (num_tasks, config.seeds)
        self.curve = Episodes(*(np.zeros((*shape, len(self.ends))) for _ in Episodes._fields))
        self.window = Episodes(*(np.zeros(shape) for _ in Episodes._fields))
        self._result_sums: dict[str, np.ndarray] = {}

    def add(self, runs: Any, last: int, sums: Mapping[str, Any]) -> None:
        """Adds the episodes of a stretch that spans no interval's end, nor the window's start.

        Args:
          runs: whose they are: an index of the axes of tasks and seeds.
          last: updates made at the stretch's end.
          sums: `count`, `return`, and others by name, for these runs; NaN for what is not told.
        """
        point = int(np.searchsorted(self.ends, last))
        for total, name in zip(self.curve, ("count", "return"), strict=True):
            total[..., point][runs] += sums[name]
        if last <= self.window_start:
            return
        for total, name in zip(self.window, ("count", "return"), strict=True):
            total[runs] += sums[name]
        for name in set(sums) - {"count", "return"}:
            blank = np.full(self.window.count.shape, np.nan)
            total = self._result_sums.setdefault(name, blank)
            before = total[runs]
            total[runs] = np.where(np.isnan(before), 0.0, before) + sums[name]

    @property
    def results(self) -> dict[str, Float[np.ndarray, "tasks seeds"]]:
        """See `History`."""
        return {
            name: divide(total, self.window.count)
            for name, total in sorted(self._result_sums.items())
        }


def divide(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means; NaN where there is nothing."""
    has_any = counts > 0
    return np.where(has_any, sums / np.where(has_any, counts, 1.0), np.nan)


def intervals(config: EvaluationConfig) -> tuple[Int[np.ndarray, "points"], int]:
    """The updates at which a curve's intervals end, and the one with which the window starts."""
    num_updates = config.num_updates
    ends = np.unique(np.round(np.linspace(0, num_updates, config.num_points + 1)).astype(int))[1:]
    window = max(1, round(num_updates * config.score_window))
    return ends, num_updates - window


def _stretches(ends, window_start: int, longest: int):
    """(first, last) updates of each call: none spans a boundary, none is longer than `longest`."""
    boundaries = sorted({0, window_start, *map(int, ends)})
    for begin, end in itertools.pairwise(boundaries):
        for first in range(begin, end, longest):
            yield first, min(first + longest, end)


def _key(purpose: str, run: Run, update) -> PRNGKeyArray:
    """A key by address, so that it depends on no other run."""
    key = jax.random.fold_in(jax.random.key(run.seed), _PURPOSES.index(purpose))
    return jax.random.fold_in(jax.random.fold_in(key, run.code), update)

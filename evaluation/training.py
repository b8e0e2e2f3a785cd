"""Training fresh agents with a frozen rule on every task of a suite, by one compiled program.

A *run* is one agent on one task with one seed. Runs whose environments share their dynamics
form a group; the program advances all groups by some updates, a few runs per vectorised
pass, and tells how the episodes went that ended meanwhile. What a run does depends on its
rule, agent, task and seed only: neither on the runs beside it nor on the number of devices.
"""

import dataclasses
import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

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
from agents.networks import uniform_network
from agents.optimizers import agent_optimizer
from agents.passes import agents_per_pass, map_agents
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender

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
        has_any = self.count > 0
        return np.where(has_any, self.return_sum / np.where(has_any, self.count, 1.0), np.nan)


@dataclasses.dataclass(frozen=True)
class History:
    """What became of a contender's runs.

    Attributes:
      updates: at which each interval of the learning curves ended, `[points]`.
      curve: the episodes that ended in each interval.
      window: the episodes that ended in the score's window.
      is_finite: whether all of an agent's numbers were, at the end.
      start_seconds: to compile the program, if it was new, and to start all runs.
      train_seconds: of wall time.
    """

    updates: Int[np.ndarray, "points"]
    curve: Episodes
    window: Episodes
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
    ) -> tuple[tuple[PyTree[Array], ...], Episodes]:
        """Some updates of every run.

        Args:
          rule: to learn by; None for the random policy.
          learning_rate: of the agents.
          states: from `init` or the last call; donated.
          first_update: updates made so far.
          num_updates: to make now; any number, by the same compiled program.

        Returns:
          The agents after it, and the episodes that ended in it.
        """
        states, sums = self._advance(
            rule,
            jnp.float32(learning_rate),
            states,
            tuple(group.runs for group in self._groups),
            jnp.int32(first_update),
            jnp.int32(num_updates),
        )
        count, return_sum = (self._by_task(rows) for rows in zip(*sums, strict=True))
        return states, Episodes(count=count, return_sum=return_sum)

    def is_finite(self, states: tuple[PyTree[Array], ...]) -> Bool[np.ndarray, "tasks seeds"]:
        """Whether all of an agent's numbers are finite."""
        return self._by_task([jax.vmap(_all_finite)(state) for state in states]).astype(bool)

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
                state, count, return_sum = carry
                key = _key("live", run, first_update + i)
                state, statistics, _ = agent.update(rule, state, run.task, key)
                return state, count + statistics.count, return_sum + statistics.return_sum

            zero = jnp.zeros((), jnp.float32)
            state, *sums = jax.lax.fori_loop(0, num_updates, update, (state, zero, zero))
            return state, tuple(sums)

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
        optimizer = agent_optimizer(learning_rate, self._agent.max_abs_update)
        return dataclasses.replace(agent, optimizer=optimizer)

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

    def __init__(self, tasks: Sequence[environments.Environment], config: EvaluationConfig):
        self._tasks = tasks
        self._config = config
        self._programs: dict[object, Program] = {}

    def train(
        self, contender: Contender, report: Callable[[int, float, float], None] = lambda *_: None
    ) -> History:
        """All of a contender's runs.

        Args:
          contender: to train.
          report: called now and then with the updates that every run made, the seconds that took
            without compilation, and the mean return of the episodes that ended since the last
            call (NaN if none did).
        """
        config, rule = self._config, contender.rule
        program = self._program(contender)
        learning_rate = contender.agent.learning_rate
        start = time.perf_counter()
        states = program.init(rule)
        states, _ = program.advance(rule, learning_rate, states, 0, 0)
        trained_from = time.perf_counter()

        ends, window_start = intervals(config)
        shape = (len(self._tasks), config.seeds)
        curve = Episodes(np.zeros((*shape, len(ends))), np.zeros((*shape, len(ends))))
        window = Episodes(np.zeros(shape), np.zeros(shape))
        for first, last in _stretches(ends, window_start, config.updates_per_call):
            states, episodes = program.advance(rule, learning_rate, states, first, last - first)
            point = int(np.searchsorted(ends, last))
            for total, new in zip(curve, episodes, strict=True):
                total[..., point] += new
            if first >= window_start:
                for total, new in zip(window, episodes, strict=True):
                    total += new
            count = float(np.sum(episodes.count))
            mean_return = float(np.sum(episodes.return_sum)) / count if count else float("nan")
            report(last, time.perf_counter() - trained_from, mean_return)
        is_finite = program.is_finite(states)
        return History(
            updates=ends,
            curve=curve,
            window=window,
            is_finite=is_finite,
            start_seconds=trained_from - start,
            train_seconds=time.perf_counter() - trained_from,
        )

    def _program(self, contender: Contender) -> Program:
        form = jax.tree.structure(contender.rule)
        agent = dataclasses.replace(contender.agent, learning_rate=0.0)
        if (form, agent) not in self._programs:
            self._programs[form, agent] = Program(
                self._tasks, self._config.all_seeds, agent, self._config.runs_at_once
            )
        return self._programs[form, agent]


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


def _all_finite(state: PyTree[Array]) -> Bool[Array, ""]:
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))

"""Training fresh agents with a frozen rule.

A *run* is one agent on one task with one seed. Runs by one rule in JAX environments that share
their dynamics are trained together by one compiled program: it advances all of them by some
updates, a few runs per vectorised pass, and tells how the episodes went that ended meanwhile.
What a run does depends on its rule, agent, task and seed only: neither on the runs beside it nor
on the number of devices. (On an accelerator, where a pass has all runs unless `runs_at_once` says
otherwise, its width may change the last bits of a sum.) Runs in host environments follow one
another (`evaluation.host_training`).
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import pathlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
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
from agents import acting, compilation, pictures
from agents.agent import Agent, AgentConfig
from agents.checkpoints import Checkpoints
from agents.networks import uniform_network
from agents.passes import agents_per_pass, map_agents
from common import keys
from common.keys import Purpose
from evaluation import host_training, playing
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.results import RunResult, Tally

Report = Callable[[int, float | None, float | None], None]

_AXIS = "runs"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One agent on one task.

    Attributes:
      contender: its rule and agent.
      task: its environment.
      seed_index: of `EvaluationConfig.all_seeds`.
    """

    contender: Contender
    task: environments.Environment
    seed_index: int

    def __str__(self) -> str:
        return f"{self.contender.name} on {self.task.name}, seed {self.seed_index}"


class Rows(NamedTuple):
    """What tells runs of one program apart; leaves have a leading axis of runs.

    Attributes:
      task: of their environments.
      code: a number for the task's name that no other task changes.
      seed: of their randomness.
    """

    task: PyTree[Array]
    code: Int[Array, "*runs"]
    seed: Int[Array, "*runs"]


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


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions that train agents of one kind in environments of one dynamics.

    Meta-parameters and learning rates are arguments, so that rules of equal sizes, and all
    values of a learning-rate grid, share one compilation; and so do equal programs.

    Attributes:
      dynamics: of the environments.
      agent: of all runs; its learning rate is not read.
      per_pass: runs per device and vectorised pass.
    """

    dynamics: environments.JaxEnvironment
    agent: AgentConfig
    per_pass: int

    def place(self, tasks: Sequence[environments.Environment], seeds: Sequence[int]) -> Rows:
        """Runs on all devices, padded so that they divide among passes.

        Whole passes only, so that a run is computed alike whatever runs are beside it. Those that
        pad repeat the first ones, and are not to be read.

        Args:
          tasks: of each run, of these dynamics.
          seeds: of each run.
        """
        (group,) = environments.group(tasks)
        mesh = _mesh()
        block = mesh.size * self.per_pass
        index = np.arange(-(-len(tasks) // block) * block) % len(tasks)
        codes = np.array([zlib.crc32(task.name.encode()) for task in tasks], np.uint32)
        rows = Rows(
            task=jax.tree.map(lambda x: x[index], group.task),
            code=jnp.asarray(codes[index]),
            seed=jnp.asarray(np.array(seeds, np.uint32)[index]),
        )
        return jax.device_put(rows, NamedSharding(mesh, P(_AXIS)))

    @compilation.jit_compiled_fast(static_argnums=0)
    def init(self, rule: disco.Rule | None, rows: Rows) -> PyTree[Array]:
        """Newborn agents, stacked."""

        def born(rule, row: Rows):
            agent = self._make_agent(rule, learning_rate=0.0)
            return agent.init(rule, row.task, keys.key(row.seed, Purpose.INITIALIZE, row.code, 0))

        return self._map(born, replicated=(rule,), per_run=rows)

    @partial(jax.jit, static_argnums=0, donate_argnums=4)
    def advance(
        self,
        rule: disco.Rule | None,
        learning_rate: float,
        rows: Rows,
        states: PyTree[Array],
        first_update: int,
        num_updates: int,
    ) -> tuple[PyTree[Array], dict[str, Float[Array, "runs"]]]:
        """Some updates of every run.

        Args:
          rule: to learn by; None for the random policy.
          learning_rate: of the agents.
          rows: the runs.
          states: from `init` or the last call; donated.
          first_update: updates made so far.
          num_updates: to make now; any number, by the same compiled program.

        Returns:
          The agents after it; and sums over the episodes that ended in it: `count`, `return`,
          `length`, and the suite's own results.
        """

        def live(rule, learning_rate, first_update, num_updates, state_and_row):
            state, row = state_and_row
            agent = self._make_agent(rule, learning_rate)

            def update(i, carry):
                state, total = carry
                key = keys.key(row.seed, Purpose.TRAIN, row.code, first_update + i)
                state, statistics, _ = agent.update(rule, state, row.task, key)
                return state, jax.tree.map(jnp.add, total, statistics)

            _, statistics, _ = jax.eval_shape(
                agent.update, rule, state, row.task, jax.random.key(0)
            )
            total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), statistics)
            state, total = jax.lax.fori_loop(0, num_updates, update, (state, total))
            sums = {"count": total.count, "return": total.return_sum, "length": total.length_sum}
            return state, sums | total.result_sums

        return self._map(
            live,
            replicated=(rule, learning_rate, first_update, num_updates),
            per_run=(states, rows),
        )

    def _make_agent(self, rule, learning_rate) -> Agent | RandomAgent:
        if rule is None:
            return RandomAgent(self.agent, self.dynamics)
        agent = Agent.create(self.agent, self.dynamics, rule)
        return dataclasses.replace(agent, optimizer=self.agent.optimizer(learning_rate))

    def _map(self, function, replicated, per_run):
        """`function(*replicated, run)` for all runs, over all devices."""

        def shard(replicated, per_run):
            return map_agents(partial(function, *replicated), per_run, self.per_pass)

        return jax.shard_map(
            shard,
            mesh=_mesh(),
            in_specs=(P(), P(_AXIS)),
            out_specs=P(_AXIS),
            check_vma=False,
        )(replicated, per_run)


class _Past(NamedTuple):
    """What a checkpoint of runs that are trained together holds.

    Attributes:
      states: of the agents, as `Program.advance` gives them.
      sums: over the episodes that ended in each stretch, by name; zero for stretches to come.
      seconds: of training.
    """

    states: PyTree[Array]
    sums: dict[str, Float[np.ndarray, "stretches runs"]]
    seconds: Float[np.ndarray, ""]

    def stacked(self, num_runs: int) -> "_Past":
        """For `Checkpoints`: over how many agents arrays are stacked."""
        return _Past(states=num_runs, sums=dict.fromkeys(self.sums, 0), seconds=0)  # pyright: ignore


def train_on_device(
    runs: Sequence[Run],
    config: EvaluationConfig,
    folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> list[RunResult]:
    """Trains agents in JAX environments, together, or continues to.

    Args:
      runs: of one contender, in environments of equal dynamics.
      config: of the evaluation.
      folder: of these runs together, for checkpoints, from which they go on bit for bit, also on
        other devices of the kind.
      report: called now and then with the updates made so far, of `config.num_updates`; the
        environment steps per second since this call's first one, without compilation; and the
        mean return of the episodes that ended since the last report (None if none did).

    Returns:
      What became of each run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
    """
    contender = runs[0].contender
    dynamics = runs[0].task.dynamics
    assert isinstance(dynamics, environments.JaxEnvironment)
    per_pass = agents_per_pass(config.runs_at_once, -(-len(runs) // _mesh().size))
    program = Program(dynamics, _of_any_rate(contender.agent), per_pass)
    rule, learning_rate = contender.rule, jnp.float32(contender.agent.learning_rate)
    advance = partial(program.advance, rule, learning_rate)
    tally = Tally(len(runs), config)
    stretches = list(_stretches(tally.ends, tally.window_start, config.updates_per_call))

    start = time.perf_counter()
    rows = program.place(
        [run.task for run in runs], [config.all_seeds[run.seed_index] for run in runs]
    )
    born = _placed(Program.init.jitted().eval_shape(program, rule, rows))
    _, nothing = jax.eval_shape(advance, rows, born, jnp.int32(0), jnp.int32(0))
    past = _Past(
        states=born,
        sums={name: np.zeros((len(stretches), len(runs))) for name in nothing},
        seconds=np.zeros(()),
    )
    with contextlib.closing(Checkpoints(folder / "checkpoints", keep=2)) as checkpoints:
        made, past = checkpoints.restore(past, past.stacked(len(runs))) or (
            0,
            past._replace(states=program.init(rule, rows)),
        )
        states, seconds_before = past.states, past.seconds
        sums = {name: np.array(x) for name, x in past.sums.items()}
        states, _ = advance(rows, states, jnp.int32(0), jnp.int32(0))
        jax.block_until_ready(states)
        first_made = stretches[made - 1][1] if made else 0
        steps = len(runs) * config.agent.steps_per_update
        trained_from = saved_at = time.perf_counter()
        for number, (first, last) in enumerate(stretches[made:], made):
            states, padded = advance(rows, states, jnp.int32(first), jnp.int32(last - first))
            for name, x in padded.items():
                sums[name][number] = np.asarray(x)[: len(runs)]
            count = float(np.sum(sums["count"][number]))
            mean_return = float(np.sum(sums["return"][number])) / count if count else None
            now = time.perf_counter()
            report(last, steps * (last - first_made) / (now - trained_from), mean_return)
            if now - saved_at > config.checkpoint_seconds and last < config.num_updates:
                past = _Past(states, sums, seconds_before + now - trained_from)
                checkpoints.save(number + 1, past, past.stacked(len(runs)))
                saved_at = now
    for number, (_, last) in enumerate(stretches):
        tally.add(last, {name: x[number] for name, x in sums.items()})
    is_finite = np.asarray(_all_finite(states))
    train_seconds = float(seconds_before) + time.perf_counter() - trained_from

    def strip(i: int) -> bytes:
        if not _has_strip(runs[i], config):
            return b""
        params = jax.tree.map(lambda x: x[i], states.learner.params)
        return _strip(runs[i], config, _agent(contender, dynamics), params)

    return [
        tally.result(
            i,
            is_finite=bool(is_finite[i]),
            start_seconds=(trained_from - start) / len(runs),
            train_seconds=train_seconds / len(runs),
            devices=_devices(),
            strip=strip(i),
        )
        for i in range(len(runs))
    ]


def _placed(shapes: PyTree[jax.ShapeDtypeStruct]) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes of arrays with a leading axis of runs, spread over all devices."""
    sharding = NamedSharding(_mesh(), P(_AXIS))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


@jax.jit
@jax.vmap
def _all_finite(states: PyTree[Array]) -> Bool[Array, ""]:
    return host_training.all_finite(states)


def train_on_host(
    run: Run, config: EvaluationConfig, folder: pathlib.Path, report: Report = lambda *_: None
) -> RunResult:
    """Trains an agent in a host environment, or continues to.

    Args:
      run: which.
      config: of the evaluation.
      folder: of the run.
      report: see `train_on_device`; the steps per second are those since the last call.

    Raises:
      SimulatorError: if a simulator failed, or died and could not be replaced.
      CheckpointError: if a checkpoint of the run cannot be written or read.
      ValueError: if the replay does not fit in memory.
    """
    program = host_program(run.contender, run.task)
    outcome = host_training.train(
        program,
        run.contender.rule,
        run.contender.agent.learning_rate,
        run.task,
        config.all_seeds[run.seed_index],
        config.num_updates,
        folder,
        log_interval=config.updates_per_call,
        checkpoint_seconds=config.checkpoint_seconds,
        report=report,
    )
    tally = Tally(1, config)
    for update, episode in outcome.episodes:
        sums = {"count": 1.0, "return": episode.episode_return, "length": float(episode.length)}
        tally.add(update + 1, sums | dict(episode.results))
    strip = b""
    if _has_strip(run, config):
        strip = _strip(run, config, program.agent, outcome.learner.params)
    return tally.result(
        0,
        is_finite=outcome.is_finite,
        start_seconds=0.0,
        train_seconds=outcome.seconds,
        devices=_devices(),
        restarts=outcome.restarts,
        strip=strip,
    )


def _has_strip(run: Run, config: EvaluationConfig) -> bool:
    return (
        config.strip_frames > 0
        and run.seed_index == 0
        and run.contender.rule is not None
        and pictures.is_picture(run.task.dynamics.observation_spec())
    )


def _strip(run: Run, config: EvaluationConfig, agent: Agent, params: disco.Params) -> bytes:
    """Pictures of what the run's agent does now. Where that fails the run is not lost for it."""
    try:
        return playing.strip(agent, params, run.task, config.seed, config.strip_frames)
    except Exception as error:
        _log.warning("There are no pictures of %s: %r", run, error)
        return b""


def host_program(contender: Contender, task: environments.Environment) -> host_training.HostProgram:
    """The program of a contender's runs on a task, which others of its form share.

    Raises:
      ValueError: if the rule cannot act there.
    """
    agent = _of_any_rate(contender.agent)
    assert isinstance(task.dynamics, environments.HostEnvironment)
    key = (jax.tree.structure(contender.rule), agent, task.dynamics)
    if key not in _host_programs:
        _host_programs[key] = host_training.HostProgram(task.dynamics, agent, contender.rule)
    return _host_programs[key]


def _agent(contender: Contender, dynamics: environments.JaxEnvironment) -> Agent:
    """The agent of a contender's runs, which others of its form share."""
    config = _of_any_rate(contender.agent)
    key = (jax.tree.structure(contender.rule), config, dynamics)
    if key not in _agents:
        assert contender.rule is not None
        _agents[key] = Agent.create(config, dynamics, contender.rule)
    return _agents[key]


# For the life of the process, as JAX keeps what it compiled.
_host_programs: dict[object, host_training.HostProgram] = {}
_agents: dict[object, Agent] = {}


def _of_any_rate(agent: AgentConfig) -> AgentConfig:
    """What agents that differ in their learning rate only have in common."""
    return dataclasses.replace(agent, learning_rate=0.0)


@functools.cache
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_AXIS,))


def _devices() -> str:
    return f"{jax.local_device_count()} x {jax.devices()[0].device_kind}"


def _stretches(ends, window_start: int, longest: int) -> Iterator[tuple[int, int]]:
    """(first, last) updates of each call: none spans a boundary, none is longer than `longest`."""
    boundaries = sorted({0, window_start, *map(int, ends)})
    for begin, end in itertools.pairwise(boundaries):
        for first in range(begin, end, longest):
            yield first, min(first + longest, end)

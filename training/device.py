"""Training in JAX environments: the device backend.

One compiled program trains all runs of one agent in environments of equal dynamics. A call advances
all runs by some unrolls, a few runs per vectorised pass. A run's results depend on its agent, task
and seed only, not on the other runs nor on the number of devices. One exception: the number of runs
in a pass may change the last bits of a sum. It varies on accelerators, where by default
(`runs_at_once`) a pass has all runs of a device, and where a device has a single run.
"""

import contextlib
import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PyTree

import environments
from agents import compilation
from agents.protocol import Agent
from disco_common import keys, stopping
from disco_common.checkpoints import Checkpoints
from disco_common.keys import Purpose
from training import iteration
from training.collection import EpisodeStatistics
from training.iteration import TrainingState
from training.passes import agents_per_pass, map_agents
from training.records import EpisodeSums, Records, name_by_kind
from training.results import Run, TrainedRun, all_finite
from training.schedule import num_updates, schedules
from training.settings import (
    Report,
    TrainingSettings,
    require_consistent,
)
from training.static_agent import StaticAgent, split_agent

_AXIS = "runs"
_log = logging.getLogger(__name__)


class Rows(NamedTuple):
    """The inputs of a program that differ between runs; leaves have a leading axis of runs.

    Attributes:
      task: of the environments.
      code: a checksum of the task's name.
      seed: of all randomness.
    """

    task: PyTree[Array]
    code: Int[Array, "*runs"]
    seed: Int[Array, "*runs"]


class Totals(NamedTuple):
    """Sums over each run's interval, leaves `[runs]`.

    Attributes:
      episodes: sums over the episodes that ended.
      metrics: sums over the updates, by kind of update and name.
    """

    episodes: EpisodeStatistics
    metrics: dict[str, dict[str, Float[Array, "*runs"]]]


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions that train one agent in environments of one dynamics.

    An agent's arrays are arguments. So agents that differ in arrays only (rules of equal sizes, a
    grid of learning rates) share one compilation, and so do equal programs.

    Attributes:
      dynamics: of the environments.
      agent: without its arrays (`split_agent`).
      per_pass: runs per device and vectorised pass.
      replay_steps: upper bound of a replay's environment steps; None for no bound.
    """

    dynamics: environments.JaxEnvironment
    agent: StaticAgent
    per_pass: int
    replay_steps: int | None = None

    def place(self, tasks: Sequence[environments.Environment], seeds: Sequence[int]) -> Rows:
        """Place runs on all devices, padded to a multiple of the runs of a pass.

        All passes have equal sizes, so that a run's results do not depend on the other runs. The
        padding repeats the first runs; its results are ignored.

        Args:
          tasks: of each run, of these dynamics.
          seeds: of each run.
        """
        (group,) = environments.group(tasks)
        mesh = _mesh()
        block = mesh.size * self.per_pass
        index = np.arange(-(-len(tasks) // block) * block) % len(tasks)
        codes = np.array([keys.code(task.name) for task in tasks], np.uint32)
        rows = Rows(
            task=jax.tree.map(lambda x: x[index], group.task),
            code=jnp.asarray(codes[index]),
            seed=jnp.asarray(np.array(seeds, np.uint32)[index]),
        )
        return jax.device_put(rows, NamedSharding(mesh, P(_AXIS)))

    @compilation.jit_compiled_fast(static_argnums=0)
    def init(self, arrays: Sequence[Array], rows: Rows) -> TrainingState:
        """Return the stacked states of the runs before their first unroll."""

        def init_one(arrays, row: Rows):
            key = keys.key(row.seed, Purpose.INITIALIZE, row.code, 0)
            agent = self.agent.with_arrays(arrays)
            return iteration.init(agent, self.dynamics, row.task, key, self.replay_steps)

        return self._map(init_one, replicated=(arrays,), per_run=rows)

    @partial(jax.jit, static_argnums=0, donate_argnums=3)
    def advance(
        self,
        arrays: Sequence[Array],
        rows: Rows,
        states: TrainingState,
        first: int | Int[Array, ""],
        number: int | Int[Array, ""],
    ) -> tuple[TrainingState, Totals]:
        """Advance every run by some unrolls.

        Args:
          arrays: of the agent.
          rows: the runs.
          states: from `init` or the last call; donated.
          first: number of unrolls so far.
          number: of unrolls to make. It is traced, so any number uses one compiled program.

        Returns:
          The runs' states after these unrolls, and sums over them.
        """

        def advance_one(arrays, first, number, state_and_row):
            state, row = state_and_row
            agent = self.agent.with_arrays(arrays)

            def one(state, unroll):
                key = keys.key(row.seed, Purpose.TRAIN, row.code, unroll)
                state, episodes, metrics = iteration.advance(
                    agent, self.dynamics, row.task, state, key, unroll
                )
                return state, Totals(episodes=episodes, metrics=metrics)

            def add(i, carry):
                state, totals = carry
                state, new = one(state, first + i)
                return state, jax.tree.map(jnp.add, totals, new)

            _, shapes = jax.eval_shape(one, state, first)
            totals = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return jax.lax.fori_loop(0, number, add, (state, totals))

        return self._map(advance_one, replicated=(arrays, first, number), per_run=(states, rows))

    def _map(self, function, replicated, per_run):
        """Map `function(*replicated, run)` over all runs, on all devices."""

        def shard(replicated, per_run):
            return map_agents(partial(function, *replicated), per_run, self.per_pass)

        return jax.shard_map(
            shard,
            mesh=_mesh(),
            in_specs=(P(), P(_AXIS)),
            out_specs=P(_AXIS),
            check_vma=False,
        )(replicated, per_run)


def train(
    agent: Agent,
    runs: Sequence[Run],
    settings: TrainingSettings,
    folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> list[TrainedRun]:
    """Train an agent in several runs, or continue their training.

    Args:
      agent: that learns.
      runs: in JAX environments of equal dynamics.
      settings: the length of each run.
      folder: for the common checkpoints of these runs. Restored runs continue bit for bit, also on
        other devices of the same kind.
      report: called after each interval.

    Returns:
      The result of each run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      StoppedBySignal: after a stop signal; a checkpoint was saved.
      ValueError: if the budget is less than one unroll.
    """
    with contextlib.closing(Checkpoints(folder / "checkpoints", keep=2)) as checkpoints:
        together = _Runs(agent, runs, settings, checkpoints)
        together.train(report)
        return together.results()


class _Runs:
    """Runs that are trained together, and their progress."""

    def __init__(
        self,
        agent: Agent,
        runs: Sequence[Run],
        settings: TrainingSettings,
        checkpoints: Checkpoints,
    ):
        started = time.perf_counter()
        dynamics = runs[0].task.dynamics
        assert isinstance(dynamics, environments.JaxEnvironment)
        require_consistent(agent.experience)
        self._schedules = schedules(agent.experience, settings.num_steps)
        static, self._arrays = split_agent(agent)
        per_pass = agents_per_pass(settings.runs_at_once, -(-len(runs) // _mesh().size))
        spec = agent.experience.replay
        is_large = spec is not None and spec.capacity > settings.num_steps
        replay_steps = settings.num_steps if is_large else None
        self._program = Program(dynamics, static, per_pass, replay_steps)
        self._runs, self._settings, self._checkpoints = runs, settings, checkpoints
        self._steps_per_unroll = agent.experience.steps_per_unroll
        self._intervals = list(settings.intervals(self._steps_per_unroll))
        self._records = [Records(run.folder) for run in runs]
        self._is_finite = np.ones(len(runs), bool)
        self._rows = self._program.place([run.task for run in runs], [run.seed for run in runs])
        self._restore()
        self._compile()
        self._start_seconds = time.perf_counter() - started

    def _restore(self) -> None:
        """Restore the newest undamaged checkpoint, or initialise the runs."""
        shapes = Program.init.jitted().eval_shape(self._program, self._arrays, self._rows)
        like = {"states": _placed(shapes), "seconds": np.zeros(())}
        restored = self._checkpoints.restore(like, self._stacked())
        # The runs may since have been trained beside other runs, or records may be lost.
        while restored is not None and restored[0] * self._steps_per_unroll > self._recorded():
            self._checkpoints.set_aside(restored[0], "its runs' records end before it")
            restored = self._checkpoints.restore(like, self._stacked())
        if restored is None:
            self._unrolls, self._seconds = 0, 0.0
            self._states = self._program.init(self._arrays, self._rows)
        else:
            self._unrolls, found = restored
            self._states, self._seconds = found["states"], float(found["seconds"])
        for number, records in enumerate(self._records):
            records.keep(self._unrolls * self._steps_per_unroll)
            self._is_finite[number] = records.are_finite()

    def _recorded(self) -> int:
        """Return the last step that the records of all runs contain."""
        return min(records.last_step() for records in self._records)

    def _stacked(self) -> Any:
        """Return the number of stacked runs of each of a checkpoint's entries; 0 for no stack."""
        return {"states": len(self._runs), "seconds": 0}

    def _compile(self) -> None:
        """Compile the program by a call that advances by 0 unrolls."""
        self._states, _ = self._advance(0, 0)
        jax.block_until_ready(self._states)

    def _advance(self, first: int, number: int) -> tuple[TrainingState, Totals]:
        return self._program.advance(
            self._arrays, self._rows, self._states, jnp.int32(first), jnp.int32(number)
        )

    def train(self, report: Report) -> None:
        """Make the remaining unrolls."""
        begun_at, seconds_before = time.perf_counter(), self._seconds
        begun_with, saved_at = self._unrolls, begun_at
        for first, last in self._intervals:
            if last <= self._unrolls:
                continue
            interval_at = time.perf_counter()
            self._states, totals = self._advance(first, last - first)
            totals = jax.device_get(totals)
            self._unrolls, now = last, time.perf_counter()
            self._seconds = seconds_before + now - begun_at
            mean_return = self._record(totals, first, now - interval_at)
            speed = (last - begun_with) * len(self._runs) * self._steps_per_unroll
            report(last * self._steps_per_unroll, speed / (now - begun_at), mean_return)
            is_last = last == self._intervals[-1][1]
            is_due = now - saved_at > self._settings.checkpoint_seconds
            if not is_last and (is_due or stopping.is_requested()):
                self._save()
                saved_at = now
                if stopping.is_requested():
                    self._checkpoints.wait()
                    stopping.raise_if_requested()

    def _record(self, totals: Totals, first: int, seconds: float) -> float | None:
        """Write an interval's records; return the mean return of the episodes that ended in it.

        Args:
          totals: sums over the interval.
          first: unrolls before the interval.
          seconds: duration of the interval.
        """
        steps = self._unrolls * self._steps_per_unroll
        speed = (self._unrolls - first) * self._steps_per_unroll / seconds
        updates = {
            name: schedule.num_made(self._unrolls) - schedule.num_made(first)
            for name, schedule in self._schedules.items()
        }
        every = []
        for i, (run, records) in enumerate(zip(self._runs, self._records, strict=True)):
            ended = totals.episodes
            sums = EpisodeSums(
                environment_steps=steps,
                episodes=float(ended.count[i]),
                return_sum=float(ended.return_sum[i]),
                length_sum=float(ended.length_sum[i]),
                result_sums={name: float(x[i]) for name, x in ended.result_sums.items()},
            )
            every.append(sums)
            records.add_episodes([sums])
            metrics = name_by_kind(
                {
                    kind: {name: float(x[i]) / updates[kind] for name, x in sums.items()}
                    if updates[kind]
                    else {}
                    for kind, sums in totals.metrics.items()
                }
            )
            is_finite = records.add_metrics(
                steps,
                sums.as_means()
                | {"environment_steps_per_second": speed}
                | metrics
                | num_updates(self._schedules, self._unrolls),
            )
            if self._is_finite[i] and not is_finite:
                _log.warning(
                    "%s with seed %d has metrics that are not finite at step %d.",
                    run.task.name,
                    run.seed,
                    steps,
                )
            self._is_finite[i] &= is_finite
        episodes = sum(sums.episodes for sums in every)
        return sum(sums.return_sum for sums in every) / episodes if episodes else None

    def _save(self) -> None:
        for records in self._records:
            records.sync()
        state = {"states": self._states, "seconds": np.float64(self._seconds)}
        self._checkpoints.save(self._unrolls, state, self._stacked())

    def results(self) -> list[TrainedRun]:
        """Return the result of each run."""
        is_finite = self._is_finite & np.asarray(_all_finite(self._states))[: len(self._runs)]
        learners = jax.device_get(self._states.learner)
        return [
            TrainedRun(
                episodes=tuple(records.episodes()),
                is_finite=bool(is_finite[i]),
                start_seconds=self._start_seconds / len(self._runs),
                train_seconds=self._seconds / len(self._runs),
                learner=jax.tree.map(lambda x, i=i: x[i], learners),
            )
            for i, records in enumerate(self._records)
        ]


def _placed(shapes: PyTree[jax.ShapeDtypeStruct]) -> PyTree[jax.ShapeDtypeStruct]:
    """Return shapes of arrays whose leading axis, of runs, is sharded over all devices."""
    sharding = NamedSharding(_mesh(), P(_AXIS))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


@jax.jit
@jax.vmap
def _all_finite(states: PyTree[Array]) -> Bool[Array, ""]:
    return all_finite(states)


@functools.cache
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_AXIS,))

"""Training in JAX environments: the device backend.

One compiled program trains all runs of one agent, or of agents that differ in arrays only (rules of
equal sizes), in environments of equal dynamics. A call advances all runs by some unrolls, a few
runs per vectorised pass. The number of unrolls per call follows the measured time of a call, and
results do not depend on it. A run's results depend on its agent, task and seed only, not on the
other runs nor on the number of devices. One exception: the number of runs in a pass may change the
last bits of a sum. It varies on accelerators, where by default (`runs_at_once`) a pass has all runs
of a device, and where a device has a single run.
"""

import contextlib
import pathlib
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

import environments
from agents.protocol import Agent
from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from training.device_program import Program, over_runs, prepare
from training.records import EpisodeSums, Records, Run, TrainedRun, all_finite, name_by_kind
from training.schedule import (
    Report,
    TrainingConfig,
    as_metrics,
    schedules,
)


def _call_seconds(overhead: float) -> tuple[float, float]:
    """Return the shortest and the longest time of a call, between two of which a run can stop.

    `overhead` are the seconds of a call that makes no unroll. It copies the state of each run,
    unless there is one; a large replay takes seconds.
    """
    return max(1.0, 4 * overhead), max(4.0, 8 * overhead)


def train(
    agent: Agent | Sequence[Agent],
    runs: Sequence[Run],
    settings: TrainingConfig,
    folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> list[TrainedRun]:
    """Train an agent in several runs, or continue their training.

    Args:
      agent: that learns; or one of each run, which differ in arrays only.
      runs: in JAX environments of equal dynamics.
      settings: the length of each run. Continued runs need the same intervals.
      folder: for the common checkpoints of these runs. Restored runs continue bit for bit, also on
        other devices of the same kind.
      report: called every few seconds, and after each interval.

    Returns:
      The result of each run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      OutputError: if an environment returns something else than it declares.
      StoppedBySignal: after a stop signal; a checkpoint was saved.
      ValueError: if the budget is less than one unroll, or agents differ in more than arrays.
    """
    for run in runs:  # Before anything is written.
        environments.require_declared_outputs(run.task)
    stopping.set_unsaved(False)
    with contextlib.closing(Checkpoints(folder / "checkpoints", keep=2)) as checkpoints:
        together = _Runs(agent, runs, settings, checkpoints)
        together.train(report)
        return together.results()


class _Runs:
    """Runs that are trained together, and their progress."""

    def __init__(
        self,
        agent: Agent | Sequence[Agent],
        runs: Sequence[Run],
        settings: TrainingConfig,
        checkpoints: Checkpoints,
    ):
        started = time.perf_counter()
        agents = list(agent) if isinstance(agent, Sequence) else [agent] * len(runs)
        self._program, self._arrays, self._inputs = prepare(
            agents, [run.task for run in runs], [run.seed for run in runs], settings
        )
        requirements = agents[0].requirements
        self._schedules = schedules(requirements, settings.num_steps)
        self._runs, self._settings, self._checkpoints = runs, settings, checkpoints
        self._steps_per_unroll = requirements.steps_per_unroll
        self._intervals = list(settings.intervals(self._steps_per_unroll))
        self._records = [Records(run.folder) for run in runs]
        # The number of stacked runs of each of a checkpoint's entries; 0 for no stack.
        self._stacked = {"states": len(runs), "totals": len(runs), "seconds": 0}
        self._restore()
        self._advance(0)  # Compiles the program; the second call has its overhead.
        self._shortest_call, self._longest_call = _call_seconds(self._advance(0))
        self._start_seconds = time.perf_counter() - started

    def _restore(self) -> None:
        """Restore the newest undamaged checkpoint, or initialise the runs."""
        shapes = Program.init.jitted().eval_shape(self._program, self._arrays, self._inputs)
        self._no_totals = self._program.no_totals(self._arrays, self._inputs, shapes)
        like = {
            "states": _placed(shapes),
            "totals": _placed(self._no_totals),
            "seconds": np.zeros(()),
        }
        restored = self._checkpoints.restore(like, self._stacked)
        # The runs may since have been trained beside other runs, or records may be lost.
        recorded = min(records.last_step() for records in self._records)
        while restored is not None and self._last_end(restored[0]) > recorded:
            self._checkpoints.pass_over({restored[0]: "its runs' records end before it"})
            restored = self._checkpoints.restore(like, self._stacked)
        if restored is None:
            self._unrolls, self._seconds = 0, 0.0
            self._states = self._program.init(self._arrays, self._inputs)
            self._totals = self._no_totals
        else:
            self._unrolls, found = restored
            self._states, self._totals = found["states"], found["totals"]
            self._seconds = float(found["seconds"])
        for records in self._records:
            records.keep(self._unrolls * self._steps_per_unroll)

    def _last_end(self, unrolls: int) -> int:
        """Return the step of the last interval's end within some unrolls."""
        ends = (last for _, last in self._intervals if last <= unrolls)
        return max(ends, default=0) * self._steps_per_unroll

    def _advance(self, number: int) -> float:
        """Advance by some unrolls; return the seconds that they took."""
        began = time.perf_counter()
        self._states, self._totals = self._program.advance(
            self._arrays,
            self._inputs,
            self._states,
            self._totals,
            jnp.int32(self._unrolls),
            jnp.int32(number),
        )
        jax.block_until_ready(self._states)
        self._unrolls += number
        return time.perf_counter() - began

    def train(self, report: Report) -> None:
        """Make the remaining unrolls."""
        begun_at, seconds_before, begun_with = time.perf_counter(), self._seconds, self._unrolls
        saved_at, per_call, mean_return = begun_at, 1, None
        for first, last in self._intervals:
            resumed, interval_seconds = self._unrolls, 0.0
            while self._unrolls < last:
                number = min(per_call, last - self._unrolls)
                seconds = self._advance(number)
                interval_seconds += seconds
                if seconds < self._shortest_call:
                    per_call = max(per_call, 2 * number)
                elif seconds > self._longest_call:
                    per_call = max(1, number // 2)
                now = time.perf_counter()
                self._seconds = seconds_before + now - begun_at
                if self._unrolls == last:
                    speed = (last - resumed) * self._steps_per_unroll / interval_seconds
                    mean_return = self._record(first, speed)
                    self._totals = self._no_totals
                made = (self._unrolls - begun_with) * self._steps_per_unroll * len(self._runs)
                report(self._unrolls * self._steps_per_unroll, made / (now - begun_at), mean_return)
                is_last = self._unrolls == self._intervals[-1][1]
                is_due = now - saved_at > self._settings.checkpoint_seconds
                stopping.set_unsaved(True)
                if not is_last and (is_due or stopping.is_requested()):
                    self._save()
                    saved_at = now
                    if stopping.is_requested():
                        self._checkpoints.wait()
                        stopping.set_unsaved(False)
                        stopping.raise_if_requested()

    def _record(self, first: int, speed: float) -> float | None:
        """Write an interval's records; return the mean return of the episodes that ended in it.

        `first` unrolls were before it; `speed` is in environment steps per second of each run.
        """
        steps, totals = self._unrolls * self._steps_per_unroll, jax.device_get(self._totals)
        made = {name: x.num_made(self._unrolls) for name, x in self._schedules.items()}
        updates = {name: made[name] - x.num_made(first) for name, x in self._schedules.items()}
        every = []
        for i, records in enumerate(self._records):
            ended, metrics = jax.tree.map(
                lambda x, i=i: float(x[i]), (totals.episodes, totals.metrics)
            )
            sums = EpisodeSums(
                steps, ended.count, ended.return_sum, ended.length_sum, ended.result_sums
            )
            every.append(sums)
            records.add_episodes([sums])
            means = {
                kind: {name: x / updates[kind] for name, x in of_kind.items() if updates[kind]}
                for kind, of_kind in metrics.items()
            }
            speeds = {"environment_steps_per_second": speed}
            records.add_metrics(
                steps, sums.as_means() | speeds | name_by_kind(means) | as_metrics(made)
            )
        episodes = sum(sums.episodes for sums in every)
        return sum(sums.return_sum for sums in every) / episodes if episodes else None

    def _save(self) -> None:
        for records in self._records:
            records.sync()
        state = {
            "states": self._states,
            "totals": self._totals,
            "seconds": np.float64(self._seconds),
        }
        self._checkpoints.save(self._unrolls, state, self._stacked)

    def results(self) -> list[TrainedRun]:
        """Return the result of each run."""
        is_finite = np.asarray(_all_finite(self._states))
        learners = jax.device_get(self._states.learner)
        return [
            TrainedRun(
                episodes=records.episodes(),
                is_finite=records.is_finite and bool(is_finite[i]),
                start_seconds=self._start_seconds / len(self._runs),
                train_seconds=self._seconds / len(self._runs),
                learner=jax.tree.map(lambda x, i=i: x[i], learners),
            )
            for i, records in enumerate(self._records)
        ]


def _placed(
    arrays: PyTree[Array | jax.ShapeDtypeStruct],
) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes of arrays whose leading axis, of runs, is sharded over all devices."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=over_runs()), arrays
    )


@jax.jit
@jax.vmap
def _all_finite(states: PyTree[Array]) -> Bool[Array, ""]:
    return all_finite(states)

"""Training in host environments: the host backend.

In one process runs follow one another. Threads step the simulators and prepare the next batch while
the device learns from the last one, so that the agent acts by its state of one update ago. A run
that is continued starts new episodes, and its replay fills anew, as neither is saved.
"""

import contextlib
import dataclasses
import functools
import logging
import time
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np

import environments
from agents.protocol import Agent, Batch
from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from training.device_clock import DeviceClock
from training.host_experience import HostExperience, PreparedBatch
from training.records import EpisodeSums, Records
from training.results import Run, TrainedRun, all_finite
from training.settings import (
    Report,
    TrainingSettings,
    require_served,
)
from training.static_agent import StaticAgent, split_agent

_log = logging.getLogger(__name__)
_finite = jax.jit(all_finite)


def train(
    agent: Agent,
    run: Run,
    settings: TrainingSettings,
    report: Report = lambda *_: None,
) -> TrainedRun:
    """Train an agent, or continue to.

    Args:
      agent: that learns.
      run: in a host environment.
      settings: how long.
      report: called after each interval.

    Returns:
      The result of the run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      StoppedBySignal: if a signal asked for it; a checkpoint was saved.
      ValueError: if the budget is less than one unroll.
    """
    with contextlib.ExitStack() as stack:
        checkpoints = Checkpoints(run.folder / "checkpoints", keep=2)
        stack.enter_context(contextlib.closing(checkpoints))
        training = _Training(agent, run, settings, checkpoints)
        stack.callback(training.close)
        training.train(report)
        return training.result()


class _Functions(NamedTuple):
    """The compiled functions of agents that differ in their arrays only.

    Attributes:
      init: from arrays and a key to a learning state.
      update: from arrays, a learning state, a batch, a key and the name of the kind of update to
        the state after it and metrics.
    """

    init: Any
    update: Any


@functools.lru_cache(maxsize=64)
def _compiled(static: StaticAgent) -> _Functions:
    def init(arrays: Any, key: Any) -> Any:
        return static.with_arrays(arrays).init(key)

    def update(arrays: Any, state: Any, batch: Batch, key: Any, name: str) -> tuple[Any, Any]:
        updated = static.with_arrays(arrays).update(state, batch, key, name)
        return updated.state, updated.metrics

    return _Functions(jax.jit(init), jax.jit(update, static_argnums=4))


@dataclasses.dataclass
class _Progress:
    """The progress of a run over all of its parts.

    Attributes:
      is_finite: whether all metrics so far are.
      seconds: of training, without compilation.
      restarts: simulator processes that died and were replaced.
    """

    is_finite: bool = True
    seconds: float = 0.0
    restarts: int = 0

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Return it for a checkpoint."""
        return {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any]) -> "_Progress":
        """Return the inverse."""
        return cls(**{name: np.asarray(value).item() for name, value in arrays.items()})


class _Training:
    """A run that is being trained."""

    def __init__(
        self, agent: Agent, run: Run, settings: TrainingSettings, checkpoints: Checkpoints
    ):
        assert isinstance(run.task.dynamics, environments.HostEnvironment)
        self._agent, self._run, self._settings = agent, run, settings
        self._checkpoints = checkpoints
        self._spec = agent.experience
        require_served(agent.experience)
        static, self._arrays = split_agent(agent)
        self._compiled = _compiled(static)
        self._records = Records(run.folder)
        self._key = jax.random.fold_in(jax.random.key(run.seed), _code(run))
        self._state, self._unrolls, self._progress = self._initial_or_restored()
        if self._unrolls:
            _log.warning(
                "%s continues at step %d; its environments start new episodes and its replay"
                " fills anew, as neither is saved.",
                run.folder,
                self._unrolls * self._spec.steps_per_unroll,
            )
        self._records.keep(self._unrolls * self._spec.steps_per_unroll)
        # Other environments and draws than before an interruption, and than those of other runs.
        seed = environments.seed_of(run.task.name, run.seed, self._unrolls)
        self._clock = DeviceClock()
        self._experience = HostExperience(
            agent, run.task.dynamics, run.task.task, seed, acting_device()
        )

    def close(self) -> None:
        """End the environments."""
        self._experience.close()
        self._clock.close()

    def _initial_or_restored(self) -> tuple[Any, int, _Progress]:
        """Return the learning state, the unrolls that were made, and the progress."""
        initial, progress = self._compiled.init(self._arrays, self._key), _Progress()
        restored = self._checkpoints.restore({"learner": initial, "past": progress.as_arrays()})
        if restored is None:
            return initial, 0, progress
        unrolls, found = restored
        return jax.device_put(found["learner"]), unrolls, _Progress.of_arrays(found["past"])

    def train(self, report: Report) -> None:
        """Make the unrolls that are left."""
        progress, first, saved_at = self._progress, self._unrolls, time.monotonic()
        started, seconds_before, restarts_before = saved_at, progress.seconds, progress.restarts
        intervals = self._settings.intervals(self._spec.steps_per_unroll)
        ends = {last for _, last in intervals}
        num_unrolls = max(ends)
        window = _Window()
        self._request()
        while self._unrolls < num_unrolls:
            prepared = self._experience.take()
            is_last = self._unrolls + 1 == num_unrolls
            self._unrolls += 1
            if not is_last and self._spec.acts_one_behind:
                self._request()
            window.add(prepared, self._learn(prepared.batch))
            if not is_last and not self._spec.acts_one_behind:
                self._request()
            steps = self._unrolls * self._spec.steps_per_unroll
            self._records.add_episodes(EpisodeSums.of_one(steps, x) for x in prepared.episodes)
            if self._unrolls == first + 1:  # Which compiles.
                jax.block_until_ready(self._state)
                started = time.monotonic()
            progress.seconds = seconds_before + time.monotonic() - started
            progress.restarts = restarts_before + self._experience.restarts
            if self._unrolls in ends:
                self._record(window, report)
                window = _Window()
            is_due = time.monotonic() - saved_at > self._settings.checkpoint_seconds
            if not is_last and (is_due or stopping.is_requested()):
                self._save()
                saved_at = time.monotonic()
                if stopping.is_requested():
                    self._checkpoints.wait()
                    stopping.raise_if_requested()
        self._checkpoints.wait()

    def result(self) -> TrainedRun:
        """Return the result of the run."""
        return TrainedRun(
            episodes=tuple(self._records.episodes()),
            is_finite=self._progress.is_finite and bool(_finite(self._state)),
            start_seconds=0.0,
            train_seconds=self._progress.seconds,
            restarts=self._progress.restarts,
            learner=jax.device_get(self._state),
        )

    def _request(self) -> None:
        self._experience.request(self._agent.acting_state(self._state), self._unrolls)

    def _learn(self, batch: Batch) -> Any:
        """Make the update, if the agent learns; return metrics, which are still being computed."""
        if not self._spec.updates:
            return {}
        (spec,) = self._spec.updates
        key = jax.random.fold_in(jax.random.fold_in(self._key, self._unrolls), 0)
        self._state, metrics = self._clock.follow(
            lambda: self._compiled.update(
                self._arrays, self._state, jax.device_put(batch), key, spec.name
            ),
            watched=lambda results: results[1],
        )
        return metrics

    def _record(self, window: "_Window", report: Report) -> None:
        steps = self._unrolls * self._spec.steps_per_unroll
        line = window.summary(self._spec.steps_per_unroll)
        line["learner_idle_fraction"] = self._clock.idle_fraction()
        is_finite = self._records.add_metrics(steps, line)
        if self._progress.is_finite and not is_finite:
            _log.warning("%s has metrics that are not finite at step %d.", self._run.folder, steps)
        self._progress.is_finite &= is_finite
        report(steps, line["environment_steps_per_second"], line["episode_return"])

    def _save(self) -> None:
        self._records.sync()
        state = {"learner": self._state, "past": self._progress.as_arrays()}
        self._checkpoints.save(self._unrolls, state)


class _Window:
    """What happened since the last record."""

    def __init__(self):
        self._began = time.monotonic()
        self._prepared: list[PreparedBatch] = []
        self._metrics: list[Any] = []

    def add(self, prepared: PreparedBatch, metrics: Any) -> None:
        """Add one unroll and its updates."""
        self._prepared.append(prepared._replace(batch=None))  # pyright: ignore
        self._metrics.append(metrics)

    def summary(self, steps_per_unroll: int) -> dict[str, float | None]:
        """Return means over the updates; times are in seconds per unroll."""
        metrics = jax.device_get(self._metrics)
        count, seconds = len(metrics), time.monotonic() - self._began
        episodes = [x for prepared in self._prepared for x in prepared.episodes]
        timings = [prepared.timing for prepared in self._prepared]
        return {
            "episode_return": _mean([x.episode_return for x in episodes]),
            "episode_length": _mean([float(x.length) for x in episodes]),
            "episodes": float(len(episodes)),
            "environment_steps_per_second": count * steps_per_unroll / seconds,
            "engine_seconds": sum(x.engine for x in timings) / count,
            "policy_seconds": sum(x.policy for x in timings) / count,
            "replay_seconds": sum(x.replay_seconds for x in self._prepared) / count,
            **{name: _mean([float(x[name]) for x in metrics]) for name in metrics[0]},
        }


def acting_device() -> Any:
    """Return where agents act: a CPU beside the learner's core, else the learner's device."""
    devices = jax.local_devices()
    return devices[-1] if devices[0].platform == "cpu" else devices[0]


def _code(run: Run) -> int:
    return zlib.crc32(run.task.name.encode())


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None

"""Training in host environments: the host backend.

A process trains one run at a time. Threads step the simulators while the device learns. So the
agent collects an unroll with its acting state before the latest updates
(`Experience.acts_one_behind`). The extras that an update computes for the replay
(`Update.refreshed`) are written into it after the next update's batch is drawn, or before the next
unroll is stored, so that the device need not wait. A restored run starts new episodes. Its replay
is empty at first, unless checkpoints contain it (`ReplaySpec.in_checkpoints`).
"""

import contextlib
import dataclasses
import functools
import logging
import time
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import environments
from agents.protocol import Agent, Batch, Experience, Update, UpdateSpec
from disco_common import keys, stopping
from disco_common.checkpoints import Checkpoints
from disco_common.keys import Purpose
from training.device_clock import DeviceClock
from training.host_collection import Collected
from training.host_pipeline import HostPipeline, replay_shapes
from training.passes import StaticAgent, initial_state, split_agent
from training.records import EpisodeSums, Records, Run, TrainedRun, all_finite, name_by_kind
from training.replay import Replay
from training.schedule import (
    Report,
    TrainingSettings,
    as_metrics,
    require_consistent,
    schedules,
)

_log = logging.getLogger(__name__)
_finite = jax.jit(all_finite)
_POLL_SECONDS = 0.1


def train(
    agent: Agent,
    run: Run,
    settings: TrainingSettings,
    report: Report = lambda *_: None,
) -> TrainedRun:
    """Train an agent in one run, or continue its training.

    `report` is called after each interval.

    Returns:
      The result of the run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      OutputError: if the environment returns something else than it declares.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      StoppedBySignal: after a stop signal; a checkpoint was saved.
      ValueError: if the budget is less than one unroll.
    """
    environments.require_declared_outputs(run.task)
    stopping.set_unsaved(False)
    with contextlib.ExitStack() as stack:
        checkpoints = Checkpoints(run.folder / "checkpoints", keep=2)
        stack.enter_context(contextlib.closing(checkpoints))
        training = _Training(agent, run, settings, checkpoints)
        stack.callback(training.close)
        training.train(report)
        return training.result()


@functools.lru_cache(maxsize=64)
def _compiled(static: StaticAgent, donates: bool) -> tuple[Any, Any]:
    """Return the compiled functions of agents that differ in their arrays only.

    The first is from arrays and a key to a learning state; the second from arrays, a learning
    state, a batch, a key and the name of the kind of update to the result of `Agent.update`. An
    update donates its state if `donates`.
    """

    def init(arrays: Any, key: Any) -> Any:
        return initial_state(static.with_arrays(arrays), key)

    def update(arrays: Any, state: Any, batch: Batch, key: Any, name: str) -> Update:
        return static.with_arrays(arrays).update(state, batch, key, name)

    donated = (1,) if donates else ()
    return jax.jit(init), jax.jit(update, static_argnums=4, donate_argnums=donated)


@dataclasses.dataclass
class _Progress:
    """A run's progress, kept in checkpoints.

    Attributes:
      is_finite: whether all metrics so far are finite.
      seconds: of training, without compilation.
      restarts: simulator processes that died and were replaced.
      updates: number of updates by kind.
    """

    is_finite: bool = True
    seconds: float = 0.0
    restarts: int = 0
    updates: dict[str, int] = dataclasses.field(default_factory=dict)

    def as_arrays(self) -> dict[str, Any]:
        """Return the progress as arrays for a checkpoint."""
        return jax.tree.map(np.asarray, dataclasses.asdict(self))

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any]) -> "_Progress":
        """Return the progress of a checkpoint's arrays."""
        return cls(**jax.tree.map(lambda x: np.asarray(x).item(), arrays))


class _Training:
    """A run in training."""

    def __init__(
        self, agent: Agent, run: Run, settings: TrainingSettings, checkpoints: Checkpoints
    ):
        assert isinstance(run.task.dynamics, environments.HostEnvironment)
        self._agent, self._run, self._settings = agent, run, settings
        self._checkpoints = checkpoints
        self._experience = agent.experience
        require_consistent(agent.experience)
        self._schedules = schedules(agent.experience, settings.num_steps)
        static, self._arrays = split_agent(agent)
        # An agent that acts one behind reads the previous state while the update is computed.
        self._compiled_init, self._compiled_update = _compiled(
            static, donates=not agent.experience.acts_one_behind
        )
        self._records = Records(run.folder)
        self._clock = DeviceClock()
        # The kinds of update that were made at least once, and the seconds of the first of each.
        self._was_compiled, self._compile_seconds = set[str](), 0.0
        with contextlib.ExitStack() as started:
            started.callback(self._clock.close)
            self._state, self._unrolls, self._progress, replay = self._initial_or_restored()
            self._pipeline = self._start(replay)
            started.pop_all()
        self._records.keep(self._unrolls * self._experience.steps_per_unroll)

    def _start(self, replay: Replay | None) -> HostPipeline:
        """Start the environments, and restore a checkpoint's replay if there is one."""
        run, dynamics = self._run, self._run.task.dynamics
        assert isinstance(dynamics, environments.HostEnvironment)
        # The seed differs from that before an interruption and from those of other runs.
        seed = environments.seed_of(run.task.name, run.seed, self._unrolls)
        pipeline = HostPipeline(
            self._agent,
            dynamics,
            run.task.params,
            seed,
            acting_device(),
            num_steps=self._settings.num_steps,
        )
        if replay is not None:
            pipeline.resume(replay)
        return pipeline

    def close(self) -> None:
        """End the environments."""
        self._pipeline.close()
        self._clock.close()

    def _key(self, purpose: Purpose, *address: int) -> PRNGKeyArray:
        return keys.key(self._run.seed, purpose, keys.code(self._run.task.name), *address)

    def _initial_or_restored(self) -> tuple[Any, int, _Progress, Replay | None]:
        """Return the learning state, the number of unrolls, the progress, and the replay."""
        initial = self._compiled_init(self._arrays, self._key(Purpose.INITIALIZE, 0))
        progress = _Progress(updates=dict.fromkeys(self._schedules, 0))
        kept, dynamics = self._experience.replay, self._run.task.dynamics
        assert isinstance(dynamics, environments.HostEnvironment)

        def like(unrolls: int) -> dict[str, Any]:
            state = {"learner": initial, "past": progress.as_arrays()}
            if kept is not None and kept.in_checkpoints:
                num_steps = self._settings.num_steps
                state["replay"] = replay_shapes(self._agent, dynamics, num_steps, unrolls)
            return state

        restored = self._checkpoints.restore(like)
        if restored is None:
            return initial, 0, progress, None
        unrolls, found = restored
        lost = "its environments start new episodes, as they are not saved"
        if kept is not None and not kept.in_checkpoints:
            lost = (
                "its environments start new episodes and its replay fills anew, as neither is saved"
            )
        steps = unrolls * self._experience.steps_per_unroll
        _log.warning("%s continues at step %d; %s.", self._run.folder, steps, lost)
        progress = _Progress.of_arrays(found["past"])
        return jax.device_put(found["learner"]), unrolls, progress, found.get("replay")

    def train(self, report: Report) -> None:
        """Make the remaining unrolls."""
        progress, first = self._progress, self._unrolls
        saved = first
        started = saved_at = time.monotonic()
        seconds_before, restarts_before = progress.seconds, progress.restarts
        intervals = self._settings.intervals(self._experience.steps_per_unroll)
        ends = {last for _, last in intervals}
        num_unrolls = max(ends)
        window = _Window(self._pipeline)
        self._request()
        while self._unrolls < num_unrolls:
            is_collected = False
            while not is_collected:
                is_collected = self._pipeline.wait(_POLL_SECONDS)
                if stopping.is_requested():  # The signal may have ended the workers, too.
                    self._stop(saved)
            collected = self._pipeline.take()
            is_last = self._unrolls + 1 == num_unrolls
            self._unrolls += 1
            if not is_last and self._experience.acts_one_behind:
                self._request()
            window.add(collected, self._learn(collected.batch))
            stopping.set_unsaved(True)
            if not is_last and not self._experience.acts_one_behind:
                self._request()
            steps = self._unrolls * self._experience.steps_per_unroll
            self._records.add_episodes(EpisodeSums.of_one(steps, x) for x in collected.episodes)
            if self._unrolls == first + 1:  # Acting was compiled, and maybe updates.
                started, self._compile_seconds = time.monotonic(), 0.0
            trained = time.monotonic() - started - self._compile_seconds
            progress.seconds = seconds_before + trained
            progress.restarts = restarts_before + self._pipeline.restarts
            if self._unrolls in ends:
                self._record(window, report)
                window = _Window(self._pipeline)
            is_due = time.monotonic() - saved_at > self._settings.checkpoint_seconds
            if not is_last and stopping.is_requested():
                self._stop(saved)
            if not is_last and is_due:
                self._save()
                saved, saved_at = self._unrolls, time.monotonic()
        self._pipeline.flush()
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
        self._pipeline.request(self._agent.acting_state(self._state), self._unrolls)

    def _learn(self, unroll: Batch) -> list[tuple[str, Any]]:
        """Make the updates that are due after an unroll.

        Returns:
          The kind and the metrics of each update. The metrics may still be in computation.
        """
        made = []
        for kind, update in enumerate(self._experience.updates):
            number = self._schedules[update.name].num_due(self._unrolls - 1)
            if not self._pipeline.has_sequences(update):  # The replay of a restored run refills.
                continue
            for i in range(number):
                made.append((update.name, self._update(update, unroll, (kind, i))))
        return made

    def _update(self, update: UpdateSpec, unroll: Batch, address: tuple[int, int]) -> Any:
        """Make one update; return its metrics."""
        began = time.monotonic()
        drawn = self._pipeline.draw(update, unroll, self._unrolls, *address)
        key = self._key(Purpose.TRAIN, self._unrolls, *address)
        updated: Update = self._clock.follow(
            lambda: self._compiled_update(
                self._arrays, self._state, jax.device_put(drawn.batch), key, update.name
            ),
            watched=lambda results: results.metrics,
        )
        self._state = updated.state
        self._progress.updates[update.name] += 1
        if update.name not in self._was_compiled:
            jax.block_until_ready(self._state)
            self._was_compiled.add(update.name)
            self._compile_seconds += time.monotonic() - began
        if updated.refreshed is not None:  # Written one update late.
            self._pipeline.write_back(update, drawn, updated.refreshed)
        return updated.metrics

    def _record(self, window: "_Window", report: Report) -> None:
        steps = self._unrolls * self._experience.steps_per_unroll
        line = window.summary(self._experience) | as_metrics(self._progress.updates)
        line["learner_idle_fraction"] = self._clock.idle_fraction()
        is_finite = self._records.add_metrics(steps, line)
        if self._progress.is_finite and not is_finite:
            _log.warning("%s has metrics that are not finite at step %d.", self._run.folder, steps)
        self._progress.is_finite &= is_finite
        report(steps, line["environment_steps_per_second"], line["episode_return"])

    def _stop(self, saved: int) -> None:
        """End the run with a checkpoint; `saved` is the number of unrolls that the newest one has.

        An unroll in collection is lost: a restored run starts new episodes anyway.

        Raises:
          StoppedBySignal: after a stop signal.
        """
        if self._unrolls > saved:
            self._save()
        self._checkpoints.wait()
        stopping.set_unsaved(False)
        stopping.raise_if_requested()

    def _save(self) -> None:
        self._records.sync()
        state = {"learner": self._state, "past": self._progress.as_arrays()}
        if self._experience.replay is not None and self._experience.replay.in_checkpoints:
            state["replay"] = self._pipeline.filled_replay()
        self._checkpoints.save(self._unrolls, state)


class _Window:
    """The unrolls and updates since the last record."""

    def __init__(self, pipeline: HostPipeline):
        self._began = time.monotonic()
        self._pipeline, self._replay_seconds = pipeline, pipeline.replay_seconds
        self._collected: list[Collected] = []
        self._metrics: dict[str, list[Any]] = {}

    def add(self, collected: Collected, metrics: list[tuple[str, Any]]) -> None:
        """Add one unroll and its updates, each by its kind."""
        self._collected.append(collected._replace(batch=None))  # pyright: ignore
        for kind, one in metrics:
            self._metrics.setdefault(kind, []).append(one)

    def summary(self, experience: Experience) -> dict[str, float | None]:
        """Return speed, means over episodes and updates, and times in seconds per unroll."""
        metrics = jax.device_get(self._metrics)
        count, seconds = len(self._collected), time.monotonic() - self._began
        episodes = [x for collected in self._collected for x in collected.episodes]
        timings = [collected.timing for collected in self._collected]
        means = {update.name: _means(metrics.get(update.name, [])) for update in experience.updates}
        return {
            "episode_return": _mean([x.episode_return for x in episodes]),
            "episode_length": _mean([float(x.length) for x in episodes]),
            "episodes": float(len(episodes)),
            "environment_steps_per_second": count * experience.steps_per_unroll / seconds,
            "engine_seconds": sum(x.engine for x in timings) / count,
            "policy_seconds": sum(x.policy for x in timings) / count,
            "replay_seconds": (self._pipeline.replay_seconds - self._replay_seconds) / count,
            **name_by_kind(means),
        }


def _means(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """Return the means of some updates' metrics; none without updates."""
    names = metrics[0] if metrics else ()
    return {name: float(np.mean([float(x[name]) for x in metrics])) for name in names}


def acting_device() -> Any:
    """Return the device for acting: another CPU device than the learner's if there is one."""
    devices = jax.local_devices()
    return devices[-1] if devices[0].platform == "cpu" else devices[0]


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None

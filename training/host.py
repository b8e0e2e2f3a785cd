"""Training in host environments: the host backend.

A process trains one run at a time. Threads step the simulators while the device learns. So the
agent collects an unroll with its acting state before the latest updates
(`Requirements.acts_one_behind`). The extras that an update computes for the replay
(`Update.refreshed`) are written into it after the next update's batch is drawn, or before the next
unroll is stored, so that the device need not wait. A restored run starts new episodes. Its replay
is empty at first, unless checkpoints contain it (`ReplaySpec.in_checkpoints`).
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import environments
from agents.protocol import Agent, Batch, Requirements, Update, UpdateSpec
from disco_common import keys, stopping
from disco_common.checkpoints import Checkpoints
from disco_common.keys import Purpose
from training import replay
from training.host_collection import Collected
from training.host_pipeline import DeviceClock, HostPipeline
from training.passes import StaticAgent, initial_state, split_agent
from training.records import EpisodeSums, Records, Run, TrainedRun, all_finite, name_by_kind
from training.replay import Replay
from training.schedule import (
    Report,
    TrainingConfig,
    as_metrics,
    require_consistent,
    schedules,
)

_log = logging.getLogger(__name__)
_finite = jax.jit(all_finite)
_POLL_SECONDS = 0.1


def train(
    agent: Agent, run: Run, settings: TrainingConfig, report: Report = lambda *_: None
) -> TrainedRun:
    """Train an agent in one run, or continue its training; call `report` after each interval.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      OutputError: if the environment returns something else than it declares.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      StoppedBySignal: after a stop signal; a checkpoint was saved.
      ValueError: if the budget is less than one unroll, if what the agent asks for is inconsistent
        (`require_consistent`), or if an update is never due (`schedules`).
    """
    environments.require_declared_outputs(run.task)
    stopping.set_unsaved(False)
    with (
        contextlib.closing(Checkpoints(run.folder / "checkpoints", keep=2)) as checkpoints,
        contextlib.closing(_Training(agent, run, settings, checkpoints)) as training,
    ):
        training.train(report)
        return training.result()


@functools.lru_cache(maxsize=64)
def _compiled(static: StaticAgent, donates: bool) -> tuple[Any, Any]:
    """Return compiled `init` and `update`, which donates its state if asked to.

    Agents that differ in their arrays only share them.
    """

    def init(arrays: Any, key: Any) -> Any:
        return initial_state(static.with_arrays(arrays), key)

    def update(arrays: Any, state: Any, batch: Batch, key: Any, name: str) -> Update:
        return static.with_arrays(arrays).update(state, batch, key, name)

    donated = (1,) if donates else ()
    return jax.jit(init), jax.jit(update, static_argnums=4, donate_argnums=donated)


class _Training:
    """A run in training.

    Checkpoints have its learning state and its progress: seconds of training without compilation,
    simulator processes that died and were replaced, and the number of updates by kind.
    """

    def __init__(self, agent: Agent, run: Run, settings: TrainingConfig, checkpoints: Checkpoints):
        dynamics, self._requirements = run.task.dynamics, agent.requirements
        assert isinstance(dynamics, environments.HostEnvironment)
        require_consistent(agent.requirements)
        self._agent, self._run, self._settings = agent, run, settings
        self._checkpoints = checkpoints
        self._schedules = schedules(agent.requirements, settings.num_steps)
        static, self._arrays = split_agent(agent)
        # An agent that acts one behind reads the previous state while the update is computed.
        init, self._compiled_update = _compiled(
            static, donates=not self._requirements.acts_one_behind
        )
        self._state = init(self._arrays, self._key(Purpose.INITIALIZE, 0))
        self._unrolls, self._seconds, self._restarts = 0, 0.0, 0
        self._updates = dict.fromkeys(self._schedules, 0)
        # The kinds of update that were made at least once, and the seconds of the first of each.
        self._was_compiled, self._compile_seconds = set[str](), 0.0
        self._records = Records(run.folder)
        restored = self._restore(dynamics)
        # The seed differs from that before an interruption and from those of other runs.
        seed = environments.seed_of(run.task.name, run.seed, self._unrolls)
        self._pipeline = HostPipeline(
            agent, dynamics, run.task.params, seed, acting_device(), num_steps=settings.num_steps
        )
        self._clock = DeviceClock()
        if restored is not None:
            self._pipeline.resume(restored)

    def close(self) -> None:
        """End the environments."""
        self._pipeline.close()
        self._clock.close()

    def _key(self, purpose: Purpose, *address: int) -> PRNGKeyArray:
        return keys.key(self._run.seed, purpose, keys.code(self._run.task.name), *address)

    def _saved(self, filled_replay: Callable[[], Replay]) -> dict[str, Any]:
        """Return what a checkpoint contains, with the replay if it is part of it."""
        progress = {
            "is_finite": self._records.is_finite,
            "seconds": self._seconds,
            "restarts": self._restarts,
            "updates": self._updates,
        }
        state = {"learner": self._state, "past": jax.tree.map(np.asarray, progress)}
        replay_spec = self._requirements.replay
        return state | (
            {"replay": filled_replay()}
            if replay_spec is not None and replay_spec.in_checkpoints
            else {}
        )

    def _restore(self, dynamics: environments.HostEnvironment) -> Replay | None:
        """Restore the newest checkpoint, if there is one; return the replay that it contains."""
        num_steps, replay_spec = self._settings.num_steps, self._requirements.replay

        def filled(unrolls: int) -> Replay:
            whole: Any = replay.of_agent(self._agent, dynamics, num_steps)
            return replay.filled(replay.make_layout(self._requirements, num_steps), whole, unrolls)

        restored = self._checkpoints.restore(
            lambda unrolls: self._saved(lambda: jax.eval_shape(lambda: filled(unrolls)))
        )
        if restored is None:
            self._records.keep(0)
            return None
        self._unrolls, found = restored
        steps = self._unrolls * self._requirements.steps_per_unroll
        lost = "as they are not saved"
        if replay_spec is not None and not replay_spec.in_checkpoints:
            lost = "and its replay fills anew, as neither is saved"
        _log.warning(
            "%s continues at step %d; its environments start new episodes, %s.",
            self._run.folder,
            steps,
            lost,
        )
        past = jax.tree.map(lambda x: x.item(), found["past"])
        self._seconds, self._restarts = past["seconds"], past["restarts"]
        self._state, self._updates = jax.device_put(found["learner"]), past["updates"]
        self._records.keep(steps)
        self._records.is_finite &= past["is_finite"]
        return found.get("replay")

    def train(self, report: Report) -> None:
        """Make the remaining unrolls."""
        first = saved = self._unrolls
        started = saved_at = time.monotonic()
        seconds_before, restarts_before = self._seconds, self._restarts
        intervals = self._settings.intervals(self._requirements.steps_per_unroll)
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
            if not is_last and self._requirements.acts_one_behind:
                self._request()
            window.add(collected, self._learn(collected.batch))
            stopping.set_unsaved(True)
            if not is_last and not self._requirements.acts_one_behind:
                self._request()
            steps = self._unrolls * self._requirements.steps_per_unroll
            self._records.add_episodes(EpisodeSums.of_one(steps, x) for x in collected.episodes)
            if self._unrolls == first + 1:  # Acting was compiled, and maybe updates.
                started, self._compile_seconds = time.monotonic(), 0.0
            trained = time.monotonic() - started - self._compile_seconds
            self._seconds = seconds_before + trained
            self._restarts = restarts_before + self._pipeline.restarts
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
            episodes=self._records.episodes(),
            is_finite=self._records.is_finite and bool(_finite(self._state)),
            start_seconds=0.0,
            train_seconds=self._seconds,
            restarts=self._restarts,
            learner=jax.device_get(self._state),
        )

    def _request(self) -> None:
        self._pipeline.request(self._agent.acting_state(self._state), self._unrolls)

    def _learn(self, unroll: Batch) -> list[tuple[str, Any]]:
        """Make the updates that are due after an unroll; return each one's kind and metrics."""
        made = []
        for kind, update in enumerate(self._requirements.updates):
            number = self._schedules[update.name].num_due(self._unrolls - 1)
            if not self._pipeline.has_sequences(update):  # The replay of a restored run refills.
                continue
            for i in range(number):
                made.append((update.name, self._update(update, unroll, (kind, i))))
        return made

    def _update(self, update: UpdateSpec, unroll: Batch, address: tuple[int, int]) -> Any:
        """Make one update; return its metrics."""
        began = time.monotonic()
        batch, sequences = self._pipeline.draw(update, unroll, self._unrolls, *address)
        key = self._key(Purpose.TRAIN, self._unrolls, *address)
        updated: Update = self._clock.follow(
            lambda: self._compiled_update(
                self._arrays, self._state, jax.device_put(batch), key, update.name
            ),
            watched=lambda results: results.metrics,
        )
        self._state = updated.state
        self._updates[update.name] += 1
        if update.name not in self._was_compiled:
            jax.block_until_ready(self._state)
            self._was_compiled.add(update.name)
            self._compile_seconds += time.monotonic() - began
        if updated.refreshed is not None:  # Written one update late.
            assert sequences is not None
            self._pipeline.write_back(update, sequences, updated.refreshed)
        return updated.metrics

    def _record(self, window: "_Window", report: Report) -> None:
        steps = self._unrolls * self._requirements.steps_per_unroll
        line = window.summary(self._requirements) | as_metrics(self._updates)
        line["learner_idle_fraction"] = self._clock.idle_fraction()
        self._records.add_metrics(steps, line)
        report(steps, line["environment_steps_per_second"], line["episode_return"])

    def _stop(self, saved: int) -> None:
        """End the run with a checkpoint; `saved` is the number of unrolls that the newest one has.

        An unroll in collection is lost: a restored run starts new episodes anyway.
        """
        if self._unrolls > saved:
            self._save()
        self._checkpoints.wait()
        stopping.set_unsaved(False)
        stopping.raise_if_requested()

    def _save(self) -> None:
        self._records.sync()
        self._checkpoints.save(self._unrolls, self._saved(self._pipeline.filled_replay))


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

    def summary(self, requirements: Requirements) -> dict[str, float | None]:
        """Return speed, means over episodes and updates, and times in seconds per unroll."""
        metrics = jax.device_get(self._metrics)
        count, seconds = len(self._collected), time.monotonic() - self._began
        episodes = [x for collected in self._collected for x in collected.episodes]
        timings = [collected.timing for collected in self._collected]
        means = {
            update.name: _means(metrics.get(update.name, [])) for update in requirements.updates
        }
        return {
            "episode_return": _mean([x.episode_return for x in episodes]),
            "episode_length": _mean([float(x.length) for x in episodes]),
            "episodes": float(len(episodes)),
            "environment_steps_per_second": count * requirements.steps_per_unroll / seconds,
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

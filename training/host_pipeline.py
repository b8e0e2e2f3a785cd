"""Unrolls and batches from host environments, collected while the device learns.

If the trainer calls `HostPipeline.request` before it makes updates, collection and learning
overlap. The agent then acts with its state before these updates.

What updates compute for the replay is written into it one update late. So the next update's batch
is drawn, and the update dispatched, while the device still computes the previous one.
"""

import contextlib
import operator
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np

import environments
from agents.protocol import Agent, Batch, Extras, UpdateSpec
from disco_common import keys
from disco_common.keys import Purpose
from training import replay, replay_sampling
from training.host_collection import Collected, HostActor
from training.replay import Positions, Replay


class HostPipeline:
    """One agent's environments, its replay, and the thread that acts in them.

    Attributes:
      replay_seconds: seconds spent in storing, drawing and writing back so far. Waiting for an
        update does not count.
    """

    def __init__(
        self,
        agent: Agent,
        dynamics: environments.HostEnvironment,
        task_params: Any,
        seed: int,
        device: Any = None,
        workers: int | None = None,
        num_steps: int | None = None,
    ):
        """Reserve the replay's memory and start the environments.

        `device` is for acting; None for that of the agent's state. `workers` are as `HostActor`'s.
        The environment steps of a run bound the replay's; `num_steps` is None for no bound.
        """
        self._requirements, self._seed, self._device = agent.requirements, seed, device
        self._replay, self.replay_seconds = replay.of_agent(agent, dynamics, num_steps, np), 0.0
        # The last update, the positions of its sequences, and their new extras, which may still be
        # in computation; not yet in the replay.
        self._refreshed: tuple[UpdateSpec, Positions, Extras] | None = None
        number = self._requirements.num_environments
        self._actor = HostActor(agent, dynamics, task_params, number, seed, workers)
        self._thread = ThreadPoolExecutor(1, "unrolls")
        self._going: Future[Collected] | None = None
        # The last acting state's leaves as given, and the state on the acting device.
        self._placed: tuple[list[Any], Any] | None = None

    @property
    def restarts(self) -> int:
        """Simulator processes that died and were replaced."""
        return self._actor.restarts

    @property
    def is_requested(self) -> bool:
        """Whether an unroll is in collection, or collected but not taken."""
        return self._going is not None

    def request(self, acting_state: Any, unroll: int) -> None:
        """Start to collect an unroll with an acting state.

        Its randomness depends on its number, `unroll`.
        """
        assert self._going is None, "the last request's unroll was not taken"
        self._going = self._thread.submit(self._collect, acting_state, unroll)

    def wait(self, seconds: float) -> bool:
        """Flush, and wait at most so long for the unroll; return whether `take` waits no more."""
        assert self._going is not None, "nothing was requested"
        self.flush()
        return bool(wait([self._going], seconds).done)

    def take(self) -> Collected:
        """Wait for the requested unroll, store it in the replay, and return it.

        The last update's extras are written into the replay before, as the unroll may overwrite
        their rows.
        """
        assert self._going is not None, "nothing was requested"
        going, self._going = self._going, None
        self.flush()  # While the unroll is in collection.
        collected = going.result()
        if self._replay is not None:
            with self._timed():
                self._replay = replay.insert(self._requirements, self._replay, collected.batch)
        return collected

    def has_sequences(self, update: UpdateSpec) -> bool:
        """Return whether the replay contains the sequences that an update requires."""
        if not update.num_replayed:
            return True
        assert self._replay is not None
        there = replay.num_sequences(self._requirements, self._replay, update)
        return bool(there >= max(1, update.min_sequences))

    def draw(
        self, update: UpdateSpec, unroll: Batch, *address: int
    ) -> tuple[Batch, Positions | None]:
        """Return the batch of an update, NumPy, and the positions of its replayed sequences.

        `unroll` is the one taken last. `address`, non-negative integers, identifies the update, for
        its randomness.
        """
        with self._timed():
            random = np.random.default_rng((self._seed, Purpose.REPLAY, *address))
            self._replay, batch, sequences = replay_sampling.draw(
                self._requirements, self._replay, update, unroll, random
            )
        return batch, sequences

    def write_back(self, update: UpdateSpec, sequences: Positions, refreshed: Extras) -> None:
        """Replace extras of drawn sequences (`agents.protocol.Update.refreshed`), one call late.

        It writes those of the call before; `refreshed` may still be in computation.
        """
        for array in jax.tree.leaves(refreshed):
            array.copy_to_host_async()
        self.flush()
        self._refreshed = update, sequences, refreshed

    def flush(self) -> None:
        """Write the extras of the last `write_back` into the replay, after they are computed."""
        if self._refreshed is None:
            return
        assert self._replay is not None
        (update, sequences, extras), self._refreshed = self._refreshed, None
        extras = jax.device_get(extras)
        with self._timed():
            self._replay = replay_sampling.write_back(
                self._requirements, self._replay, update, sequences, extras
            )

    def filled_replay(self) -> Replay:
        """Return the filled part of the replay, whose arrays the next unroll changes in place."""
        assert self._replay is not None
        self.flush()
        layout = replay.layout_of(self._requirements, self._replay)
        return replay.filled(layout, self._replay, int(self._replay.num_unrolls))

    def resume(self, restored: Replay) -> None:
        """Restore a checkpoint's filled replay, and mark its last episodes as ended."""
        assert self._replay is not None
        self._replay = replay.fill(self._replay, restored)
        replay.cut_episodes(self._requirements, self._replay)

    def close(self) -> None:
        """End the environments and an unroll in collection, and free the replay."""
        self._actor.close()
        self._thread.shutdown()
        self._replay = self._refreshed = self._going = None

    def _collect(self, acting_state: Any, unroll: int) -> Collected:
        key = keys.key(self._seed, Purpose.ACT, unroll)
        if self._device is not None:
            key = jax.device_put(key, self._device)
            acting_state = self._on_device(acting_state)
        return self._actor.collect(acting_state, key, self._requirements.unroll_length)

    def _on_device(self, acting_state: Any) -> Any:
        """Return an acting state on the acting device, sent there only if it changed."""
        leaves = jax.tree.leaves(acting_state)
        if self._placed is None or any(map(operator.is_not, leaves, self._placed[0])):
            self._placed = leaves, jax.device_put(acting_state, self._device)
        return self._placed[1]

    @contextlib.contextmanager
    def _timed(self):
        began = time.perf_counter()
        yield
        self.replay_seconds += time.perf_counter() - began


class DeviceClock:
    """Measures the fraction of time in which the device is idle, without blocking the dispatch."""

    def __init__(self):
        self._watch = ThreadPoolExecutor(1, "device-clock")
        self._began = time.monotonic()
        self._followed: list[tuple[float, Future[float]]] = []

    def follow(self, dispatch: Callable[[], Any], watched: Callable[[Any], Any]) -> Any:
        """Dispatch a computation, and record when it begins and ends.

        `watched` returns some of the results of `dispatch`, for which a thread waits; they must not
        be donated to another computation.
        """
        began = time.monotonic()
        results = dispatch()
        self._followed.append((began, self._watch.submit(_when_done, watched(results))))
        return results

    def idle_fraction(self) -> float:
        """Wait for what is followed; return the idle fraction of the time since the last call."""
        idle, free_from = 0.0, self._began
        for began, done in sorted(self._followed, key=lambda pair: pair[0]):
            idle += max(0.0, began - free_from)
            free_from = max(free_from, done.result())
        now = time.monotonic()
        idle += max(0.0, now - free_from)
        fraction = idle / max(now - self._began, 1e-9)
        self._began, self._followed = now, []
        return fraction

    def close(self) -> None:
        """End the thread."""
        self._watch.shutdown()


def _when_done(computed: Any) -> float:
    jax.block_until_ready(computed)
    return time.monotonic()

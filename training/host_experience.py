"""Batches from host environments, prepared while the device learns from the one before.

`request` starts a thread that acts, stores, and draws the next batch; `take` waits for it. A
trainer that requests before it learns overlaps the two: the agent then acts by its state of one
update ago, for which its batch holds what the behaviour policy was.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

import environments
from agents.protocol import Agent, Batch
from environments.episodes import Episode
from training import batches, host_replay
from training.host_collection import Collected, HostActor, Timing
from training.host_replay import HostReplay, Planned


class PreparedBatch(NamedTuple):
    """A batch, and what happened while it was made.

    Attributes:
      batch: to learn from; NumPy.
      episodes: that ended.
      timing: of the actor.
      replay_seconds: that storing and drawing took.
    """

    batch: Batch
    episodes: list[Episode]
    timing: Timing
    replay_seconds: float


class HostExperience:
    """One agent's environments, its replay, and the thread that works on them."""

    def __init__(
        self,
        agent: Agent,
        dynamics: environments.HostEnvironment,
        task: Any,
        seed: int,
        device: Any = None,
        workers: int | None = None,
    ):
        """Reserve the replay's memory and start the environments.

        Args:
          agent: that acts and learns.
          dynamics: of the environments.
          task: of the environments.
          seed: of all randomness.
          device: to act on; None for that of the agent's state.
          workers: as `HostActor`'s.

        Raises:
          SimulatorError: if an environment cannot be started.
        """
        self._spec, self._seed, self._device = agent.experience, seed, device
        self._update = self._spec.updates[0] if self._spec.updates else None
        self._replay = None
        if self._spec.replay is not None:
            planned = plan("", agent, dynamics)
            self._replay = HostReplay(planned.example, planned.history, planned.capacity)
        number = self._spec.num_environments
        self._actor = HostActor(agent, dynamics, task, number, seed, workers)
        self._thread = ThreadPoolExecutor(1, "experience")
        self._going: Future[PreparedBatch] | None = None

    @property
    def restarts(self) -> int:
        """Simulator processes that died and were replaced."""
        return self._actor.restarts

    @property
    def is_requested(self) -> bool:
        """Whether a batch is being prepared, or waits to be taken."""
        return self._going is not None

    def request(self, acting_state: Any, update: int) -> None:
        """Start to prepare the batch of an update, acting by a state of the agent."""
        assert self._going is None, "the last request's batch was not taken"
        self._going = self._thread.submit(self._prepare, acting_state, update)

    def take(self) -> PreparedBatch:
        """Return the batch that was requested, once it is there.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        assert self._going is not None, "nothing was requested"
        going, self._going = self._going, None
        return going.result()

    def close(self) -> None:
        """End the environments, also while a batch is prepared, and free the replay."""
        self._thread.shutdown()
        self._actor.close()
        self._replay = self._going = None

    def _prepare(self, acting_state: Any, update: int) -> PreparedBatch:
        key = jax.random.fold_in(jax.random.key(self._seed), update)
        if self._device is not None:
            acting_state, key = jax.device_put((acting_state, key), self._device)
        collected: Collected = self._actor.collect(acting_state, key, self._spec.unroll_length)
        began, batch = time.perf_counter(), collected.batch
        if self._replay is not None:
            assert self._update is not None
            self._replay.insert(batch)
            random = np.random.default_rng((self._seed, update))
            replayed = self._replay.sample(random, self._update.num_replayed)
            fresh = self._update.num_replayed < self._update.batch_size
            batch = batches.concatenate([batch, replayed]) if fresh else replayed
        seconds = time.perf_counter() - began
        return PreparedBatch(batch, collected.episodes, collected.timing, seconds)


def plan(
    name: str, agent: Agent, dynamics: environments.HostEnvironment, count: int = 1
) -> Planned:
    """Return the replays of some agents of a kind.

    Args:
      name: of the agents, for messages.
      agent: one of them; it has a replay.
      dynamics: of its environments.
      count: how many.
    """
    spec = agent.experience
    assert spec.replay is not None
    return Planned(
        name=name,
        example=batches.example(agent, dynamics, spec.num_environments, spec.unroll_length),
        history=spec.history,
        capacity=spec.replay.capacity // spec.unroll_length,
        count=count,
    )


def require_memory(
    agents: Sequence[tuple[str, Agent, environments.HostEnvironment, int]],
) -> None:
    """Refuse agents whose replays do not fit in memory together.

    Args:
      agents: of each kind its name for messages, one of them, its environments' dynamics, and how
        many there will be.

    Raises:
      ValueError: saying how large they would be, how much memory is free, and what would fit.
    """
    host_replay.require_memory(
        [plan(*kind) for kind in agents if kind[1].experience.replay is not None]
    )

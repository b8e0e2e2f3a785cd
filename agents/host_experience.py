"""Batches from host environments, prepared while the device learns from the one before.

`request` starts a thread that acts, stores, and draws the next batch; `take` waits for it. A
learner that requests before it learns overlaps the two: it acts by the parameters of one update
ago then, which every rule here allows for, as trajectories hold the policy that acted.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

import disco
import environments
from agents import host_replay
from agents.agent import Agent
from agents.frames import History, Seen
from agents.host_acting import Act, Collected, Episode, HostActor, Timing
from agents.host_replay import HostReplay, Planned
from agents.trajectories import side_by_side


class Experience(NamedTuple):
    """A batch, and what happened while it was made.

    Attributes:
      batch: to learn from; NumPy.
      episodes: that ended.
      timing: of the actor.
      replay_seconds: that storing and drawing took.
    """

    batch: disco.Trajectory
    episodes: list[Episode]
    timing: Timing
    replay_seconds: float


class HostExperience:
    """One agent's environments, its replay, and the thread that works on them."""

    def __init__(
        self,
        agent: Agent,
        act: Act,
        task: Any,
        seed: int,
        device: Any = None,
        workers: int | None = None,
    ):
        """Reserves the replay's memory and starts the environments.

        Args:
          agent: whose config, network and environment these are.
          act: `make_act` of its network.
          task: which of the environments.
          seed: of all randomness.
          device: to act on; None for that of the parameters.
          workers: as `HostActor`'s.

        Raises:
          SimulatorError: if an environment cannot be started.
        """
        config = agent.config
        self._config, self._seed, self._device = config, seed, device
        self._replay = None
        if config.num_replayed:
            self._replay = HostReplay(
                example_trajectory(agent), agent.network.seen, config.replay_capacity
            )
        assert isinstance(agent.environment, environments.HostEnvironment)
        self._actor = HostActor(
            agent.environment, agent.network, act, task, config.num_environments, seed, workers
        )
        self._thread = ThreadPoolExecutor(1, "experience")
        self._going: Future[Experience] | None = None

    @property
    def restarts(self) -> int:
        """Simulator processes that died and were replaced."""
        return self._actor.restarts

    @property
    def is_requested(self) -> bool:
        """Whether a batch is being prepared, or waits to be taken."""
        return self._going is not None

    def request(self, params: disco.Params, update: int) -> None:
        """Starts to prepare the batch of an update, acting by `params`."""
        assert self._going is None, "the last request's batch was not taken"
        self._going = self._thread.submit(self._prepare, params, update)

    def take(self) -> Experience:
        """The batch that was requested, once it is there.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        assert self._going is not None, "nothing was requested"
        going, self._going = self._going, None
        return going.result()

    def close(self) -> None:
        """Ends the environments, also while a batch is prepared, and frees the replay."""
        self._thread.shutdown()
        self._actor.close()
        self._replay = self._going = None

    def _prepare(self, params: disco.Params, update: int) -> Experience:
        config = self._config
        key = jax.random.fold_in(jax.random.key(self._seed), update)
        if self._device is not None:
            params, key = jax.device_put((params, key), self._device)
        collected: Collected = self._actor.collect(params, key, config.unroll_length)
        began, batch = time.perf_counter(), collected.trajectory
        if self._replay is not None:
            self._replay.insert(batch)
            random = np.random.default_rng((self._seed, update))
            replayed = self._replay.sample(random, config.num_replayed)
            fresh = config.num_replayed < config.batch_size
            batch = side_by_side([batch, replayed]) if fresh else replayed
        return Experience(batch, collected.episodes, collected.timing, time.perf_counter() - began)


def require_memory(agents: Sequence[tuple[str, Agent, int]]) -> None:
    """Refuses agents whose replays do not fit in memory together.

    Args:
      agents: of each kind its name for messages, one of them, and how many there will be.

    Raises:
      ValueError: saying how large they would be, how much memory is free, and what would fit.
    """
    host_replay.require_memory(
        [
            Planned(
                name,
                example_trajectory(agent),
                agent.network.seen,
                agent.config.replay_capacity,
                count,
            )
            for name, agent, count in agents
            if agent.config.num_replayed
        ]
    )


def example_trajectory(agent: Agent, num_environments: int | None = None) -> disco.Trajectory:
    """Shapes and dtypes of what an agent's actor collects, `[T, B, ...]`."""
    length = agent.config.unroll_length
    batch_size = num_environments or agent.config.num_environments
    seen: Seen = agent.network.seen
    spec = agent.environment.observation_spec()
    num_actions = environments.num_actions(agent.environment)

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.dtype(dtype))

    num_rows = seen.rows_before + length + 1
    observation: Any = jax.tree.map(
        lambda leaf: array(leaf.dtype, num_rows, batch_size, *leaf.shape), spec
    )
    if seen.is_history:
        age = array(np.int32, seen.burn_in + length + 1, batch_size)
        observation = History(frames=observation, age=age)
    return disco.Trajectory(
        observation=observation,
        action=array(np.int32, length, batch_size),
        reward=array(np.float32, length, batch_size),
        discount=array(np.float32, length, batch_size),
        last=array(bool, length, batch_size),
        behaviour_logits=array(np.float32, length, batch_size, num_actions),
        mask=array(bool, length, batch_size),
        core_state=jax.eval_shape(lambda: agent.network.initial_memory(batch_size)),
    )

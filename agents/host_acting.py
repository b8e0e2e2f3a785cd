"""Collecting trajectories from host environments, while the device computes.

An actor's environments are split in halves, each stepped by a thread of its own: while one
half's engine steps, the policy computes the other half's actions (Hessel et al. 2021,
"Podracer architectures for scalable reinforcement learning", Sebulba). What is collected
depends on the seeds and parameters only, not on which thread was faster.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.frames import History, Seen
from agents.networks import Network

Act = Callable[..., tuple[Int[Array, "B"], Float[Array, "B A"], PyTree[Array]]]

NUM_HALVES = 2


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode that ended.

    Attributes:
      episode_return: its undiscounted return.
      length: its steps.
      results: what the suite tells of it besides.
    """

    episode_return: float
    length: int
    results: Mapping[str, float]


class Timing(NamedTuple):
    """Seconds that the halves' threads spent, summed over them.

    Attributes:
      engine: in environments' steps.
      policy: in waiting for actions.
    """

    engine: float
    policy: float


class Collected(NamedTuple):
    """What an actor brings: NumPy arrays as in `acting.rollout`, and what happened meanwhile."""

    trajectory: disco.Trajectory
    episodes: list[Episode]
    timing: Timing


def make_act(network: Network) -> Act:
    """The compiled policy: `(params, observation, memory, key, step)` to actions and logits.

    To be shared by all actors of a network, so that it is compiled once for all.
    """

    @jax.jit
    def act(params, observation, memory, key, step):
        logits, memory = network.policy(params, observation, memory)
        action = jax.random.categorical(jax.random.fold_in(key, step), logits)
        return action, logits, memory

    return act


class EpisodeTracker:
    """Where the episodes of a batch of simulators stand.

    Attributes:
      ended: which had their last time step, `[B]`.
      age: steps since their first one, `[B]`.
    """

    def __init__(self, batch_size: int):
        """Before the first step of all."""
        self.ended = np.zeros(batch_size, bool)
        self.age = np.zeros(batch_size, np.int32)
        self._return = np.zeros(batch_size, np.float64)
        self._restarts = 0

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where all of them stand."""
        return {"ended": self.ended, "age": self.age, "return": self._return}

    def resume(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Goes back to a snapshot."""
        self.ended, self.age, self._return = (
            np.array(snapshot[name]) for name in ("ended", "age", "return")
        )

    def follow(
        self, timestep: dm_env.TimeStep, results: Mapping[str, np.ndarray], restarts: int
    ) -> list[Episode]:
        """Takes a step's outcome into account; the episodes that ended with it.

        None are told of where `restarts`, the simulators' count of those that died, has grown:
        some were cut by that, which tells nothing of the agent.
        """
        died, self._restarts = restarts > self._restarts, restarts
        started, self.ended = self.ended, timestep.step_type == dm_env.StepType.LAST
        self._return = np.where(started, 0.0, self._return) + timestep.reward
        self.age = np.where(started, 0, self.age + 1).astype(np.int32)
        if died:
            return []
        return [
            Episode(
                episode_return=float(self._return[i]),
                length=int(self.age[i]),
                results={name: float(x[i]) for name, x in results.items()},
            )
            for i in np.flatnonzero(self.ended)
        ]


class _Part(NamedTuple):
    """What a half tells of its stretch, besides the rows that it wrote."""

    memory: PyTree[np.ndarray]
    episodes: list[Episode]
    timing: Timing


class HostActor:
    """B environments of one task, and where their episodes stand."""

    def __init__(
        self,
        environment: environments.HostEnvironment,
        network: Network,
        act: Act,
        task: Any,
        batch_size: int,
        seed: int,
        workers: int | None = None,
    ):
        """Starts the environments.

        Args:
          environment: the family.
          network: of the agent.
          act: made of it.
          task: the environments'.
          batch_size: B.
          seed: of the environments' randomness.
          workers: threads or processes that step each half; None for half of the processors.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        sizes = [len(x) for x in np.array_split(np.arange(batch_size), min(NUM_HALVES, batch_size))]
        workers = workers or -(-environments.available_processors() // len(sizes))
        self._environment, self._seen = environment, network.seen
        self._threads = ThreadPoolExecutor(len(sizes), "actor")
        starting = [
            self._threads.submit(
                _Half,
                environment.start,
                network,
                act,
                (task, size, (seed + 7919 * number) % 2**31, workers),
            )
            for number, size in enumerate(sizes)
        ]
        wait(starting)
        self._halves = [half.result() for half in starting if half.exception() is None]
        if len(self._halves) < len(starting):
            self.close()
            raise next(error for half in starting if (error := half.exception()))

    @property
    def restarts(self) -> int:
        """Simulator processes that died and were replaced."""
        return sum(half.simulators.restarts for half in self._halves)

    def collect(self, params: disco.Params, key: PRNGKeyArray, num_steps: int) -> Collected:
        """Acts by the policy of `params` for `num_steps` in each environment.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        assert num_steps >= self._seen.burn_in
        rows = self._empty_rows(num_steps)
        ends = np.cumsum([half.batch_size for half in self._halves])
        going = [
            self._threads.submit(
                half.collect,
                params,
                jax.random.fold_in(key, number),
                # Halves write side by side, so that nothing is copied to join them.
                jax.tree.map(lambda x, i=end - half.batch_size, j=end: x[:, i:j], rows),
            )
            for number, (half, end) in enumerate(zip(self._halves, ends, strict=True))
        ]
        wait(going)
        parts = [half.result() for half in going]
        if self._seen.is_history:
            observation: Any = History(frames=rows.pop("frames"), age=rows.pop("age"))
        else:
            observation, _ = rows.pop("frames"), rows.pop("age")
        memory = jax.tree.map(lambda *x: np.concatenate(x), *(part.memory for part in parts))
        return Collected(
            trajectory=disco.Trajectory(observation=observation, core_state=memory, **rows),
            episodes=[episode for part in parts for episode in part.episodes],
            timing=Timing(*(sum(times) for times in zip(*(p.timing for p in parts), strict=True))),
        )

    def _empty_rows(self, num_steps: int) -> dict[str, Any]:
        """Room for a trajectory."""
        seen, batch_size = self._seen, sum(half.batch_size for half in self._halves)

        def empty(num_rows: int, dtype: Any, *shape: int) -> np.ndarray:
            return np.empty((num_rows, batch_size, *shape), dtype)

        return {
            "frames": jax.tree.map(
                lambda leaf: empty(seen.rows_before + num_steps + 1, leaf.dtype, *leaf.shape),
                self._environment.observation_spec(),
            ),
            "age": empty(seen.burn_in + num_steps + 1, np.int32),
            "action": empty(num_steps, np.int32),
            "reward": empty(num_steps, np.float32),
            "discount": empty(num_steps, np.float32),
            "last": empty(num_steps, bool),
            "mask": empty(num_steps, bool),
            "behaviour_logits": empty(
                num_steps, np.float32, environments.num_actions(self._environment)
            ),
        }

    def close(self) -> None:
        """Ends the environments, once a stretch that is being collected is there."""
        self._threads.shutdown()
        for half in self._halves:
            half.simulators.close()


class _Half:
    """Some of an actor's environments. Used by one thread at a time."""

    def __init__(self, start, network, act, arguments):
        self._seen: Seen = network.seen
        self._act = act
        self.simulators: environments.Simulators = start(*arguments)
        batch_size = self.batch_size = self.simulators.batch_size
        timestep = self.simulators.reset()
        self._tracker = EpisodeTracker(batch_size)
        self._memory = network.initial_memory(batch_size)
        self._memory_before = jax.device_get(self._memory)
        before = self._seen.rows_before
        # The last observations, of which the newest is the current one; and their ages.
        self._frames = jax.tree.map(
            lambda x: np.zeros((before + 1, *x.shape), x.dtype), timestep.observation
        )
        jax.tree.map(lambda rows, x: _put(rows, -1, x), self._frames, timestep.observation)
        self._ages = np.zeros((self._seen.burn_in + 1, batch_size), np.int32)

    def collect(self, params: disco.Params, key: PRNGKeyArray, rows: dict[str, Any]) -> _Part:
        """Fills the rows, `[T, B, ...]`; of frames and ages, those before are there too."""
        seen, num_steps = self._seen, len(rows["action"])
        before, frames, ages = seen.rows_before, rows["frames"], rows["age"]
        jax.tree.map(lambda kept, x: _put(kept, slice(before + 1), x), frames, self._frames)
        ages[: seen.burn_in + 1] = self._ages
        memory_before = self._memory_before
        episodes, in_engine, in_policy = [], 0.0, 0.0
        for t in range(num_steps):
            if seen.burn_in and t == num_steps - seen.burn_in:
                self._memory_before = jax.device_get(self._memory)
            now = time.perf_counter()
            # The newest S of the rows up to this step's.
            first = t + seen.burn_in
            observation = jax.tree.map(lambda x, i=first, j=t: x[i : j + before + 1], frames)
            if seen.is_history:
                age = ages[first : first + 1]
                observation = History(frames=observation, age=age)
            else:
                observation = jax.tree.map(lambda x: x[0], observation)
            chosen = self._act(params, observation, self._memory, key, np.int32(t))
            self._memory = chosen[2]
            action, step_logits = jax.device_get(chosen[:2])
            in_policy += time.perf_counter() - now
            rows["behaviour_logits"][t] = step_logits
            now = time.perf_counter()
            timestep = self.simulators.step(action)
            in_engine += time.perf_counter() - now
            rows["action"][t], rows["mask"][t] = action, ~self._tracker.ended
            rows["reward"][t], rows["discount"][t] = timestep.reward, timestep.discount
            row = t + before + 1
            jax.tree.map(lambda kept, x, i=row: _put(kept, i, x), frames, timestep.observation)
            simulators = self.simulators
            episodes += self._tracker.follow(timestep, simulators.results, simulators.restarts)
            rows["last"][t], ages[first + 1] = self._tracker.ended, self._tracker.age
        keep = before + 1
        self._frames = jax.tree.map(lambda x: x[-keep:].copy(), frames)
        self._ages = ages[-(seen.burn_in + 1) :].copy()
        if not seen.burn_in:
            self._memory_before = jax.device_get(self._memory)
        return _Part(memory_before, episodes, Timing(in_engine, in_policy))


def _put(rows: np.ndarray, index: Any, row: np.ndarray) -> None:
    rows[index] = row

"""Acting in host environments.

An actor's environments are split into halves, each stepped by its own thread. While one half's
simulators step, the agent computes the other half's actions (Sebulba; Hessel et al. 2021, "Podracer
architectures for scalable reinforcement learning"). What is collected depends on seeds and
parameters only, not on the threads' timing. A `SimulatorError` says that a simulator failed, or
died and could not be replaced.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import environments
from agents.history import History, HistorySpec
from agents.protocol import Agent, Batch, Mode
from environments.simulators import Episode, EpisodeTracker
from training import collection
from training.passes import StaticAgent, split_agent

Act = Callable[..., tuple[PyTree[Array], Array, PyTree[Array]]]

NUM_HALVES = 2
_SECONDS_OF_A_STEP = 1.0


class Timing(NamedTuple):
    """Seconds, summed over the halves' threads.

    Attributes:
      engine: spent in the environments' steps.
      policy: spent waiting for actions.
    """

    engine: float
    policy: float


class Collected(NamedTuple):
    """One unroll of an actor.

    Attributes:
      batch: the unroll, as `collection.collect` returns it, but of NumPy arrays.
      episodes: that ended in it.
      timing: of its threads.
    """

    batch: Batch
    episodes: list[Episode]
    timing: Timing


def make_act(agent: Agent, mode: Mode = Mode.TRAINING) -> Act:
    """Return `agent.act`, compiled, as a function of `(acting_state, memory, timestep, key, step)`.

    Agents that differ in their arrays only share one compilation.
    """
    static, arrays = split_agent(agent)
    return functools.partial(_compiled_act(static, mode), arrays)


@functools.lru_cache(maxsize=64)
def _compiled_act(static: StaticAgent, mode: Mode) -> Any:
    @jax.jit
    def act(arrays, acting_state, memory, timestep, key, step):
        agent = static.with_arrays(arrays)
        return agent.act(acting_state, memory, timestep, jax.random.fold_in(key, step), mode)

    return act


class HostActor:
    """An actor in B environments of one task, with the state of their episodes."""

    def __init__(
        self,
        agent: Agent,
        dynamics: environments.HostEnvironment,
        task_params: Any,
        batch_size: int,
        seed: int,
        workers: int | None = None,
        mode: Mode = Mode.TRAINING,
    ):
        """Start the environments.

        `workers` threads or processes step each half of the batch; by default half of the
        processors, or all of them if the batch is a single environment.

        Raises:
          SimulatorError: if one cannot be started.
        """
        sizes = [len(x) for x in np.array_split(np.arange(batch_size), min(NUM_HALVES, batch_size))]
        workers = workers or -(-environments.available_processors() // len(sizes))
        self._agent, self._dynamics = agent, dynamics
        act = make_act(agent, mode)
        self._history = agent.requirements.history
        self._shapes: dict[int, Batch] = {}  # Shapes of unrolls, by number of steps.
        self._threads = ThreadPoolExecutor(len(sizes), "actor")
        self._going: list[Future[tuple[PyTree[np.ndarray], list[Episode], Timing]]] = []
        starting = [
            self._threads.submit(
                lambda size, seed: _Half(
                    dynamics.start(task_params, size, seed, workers), agent, act, mode
                ),
                size,
                (seed + 7919 * number) % 2**31,
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

    def collect(self, acting_state: Any, key: PRNGKeyArray, num_steps: int) -> Collected:
        """Act with an acting state for `num_steps` in each environment."""
        assert num_steps >= self._history.burn_in
        size = sum(half.batch_size for half in self._halves)
        if num_steps not in self._shapes:
            self._shapes[num_steps] = collection.example(
                self._agent, self._dynamics, size, num_steps, acting_state
            )
        shapes = self._shapes[num_steps]
        batch: Batch = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), shapes)
        rows = dataclasses.replace(batch, memory=None)
        ends = np.cumsum([half.batch_size for half in self._halves])
        self._going = [
            self._threads.submit(
                half.collect,
                acting_state,
                jax.random.fold_in(key, number),
                # Halves write to slices of common arrays, which need no concatenation.
                jax.tree.map(lambda x, i=end - half.batch_size, j=end: x[:, i:j], rows),
            )
            for number, (half, end) in enumerate(zip(self._halves, ends, strict=True))
        ]
        wait(self._going)
        memories, episodes, timings = zip(*(half.result() for half in self._going), strict=True)
        memory = jax.tree.map(lambda *x: np.concatenate(x), *memories)
        return Collected(
            batch=dataclasses.replace(rows, memory=memory if self._history.is_history else None),
            episodes=[episode for ended in episodes for episode in ended],
            timing=Timing(*(sum(seconds) for seconds in zip(*timings, strict=True))),
        )

    def close(self) -> None:
        """End the environments; an unroll in collection ends after the step in progress.

        A step that takes longer than a second is interrupted, if its simulators can be.
        """
        for half in self._halves:
            half.is_closed = True
        wait(self._going, _SECONDS_OF_A_STEP)
        for half in self._halves:
            half.simulators.close()
        self._threads.shutdown()


class _Half:
    """Some of an actor's environments. Only one thread at a time may use it.

    Attributes:
      is_closed: whether an unroll in collection is to end.
    """

    def __init__(self, simulators: environments.Simulators, agent: Agent, act: Act, mode: Mode):
        self._history: HistorySpec = agent.requirements.history
        self._act, self.is_closed = act, False
        self.simulators, batch_size = simulators, simulators.batch_size
        self.batch_size, self._timestep = batch_size, simulators.reset()
        observation = self._timestep.observation
        self._tracker = EpisodeTracker(batch_size)
        # Lives after the last step, where their loss ends an episode.
        self._lives: np.ndarray | None = None
        ends = mode is Mode.TRAINING and agent.requirements.ends_at_life_loss
        if ends and "lives" in simulators.results:
            self._lives = np.zeros(batch_size, np.float32)
        self._memory = agent.initial_memory(batch_size)
        self._memory_before = jax.device_get(self._memory)
        before = self._history.rows_before
        # The last observations, of which the newest is the current one, and their ages.
        self._frames = jax.tree.map(
            lambda x: np.zeros((before + 1, *x.shape), x.dtype), observation
        )
        jax.tree.map(lambda rows, x: _put(rows, -1, x), self._frames, observation)
        self._ages = np.zeros((self._history.burn_in + 1, batch_size), np.int32)

    def collect(
        self, acting_state: Any, key: PRNGKeyArray, rows: Batch
    ) -> tuple[PyTree[np.ndarray], list[Episode], Timing]:
        """Fill an unroll's rows, `[T, B, ...]`; frames and ages also have earlier rows.

        Returns:
          The agent's memory before the unroll's burn-in, the episodes that ended, and times.
        """
        simulators, history, before = self.simulators, self._history, self._history.rows_before
        num_steps = len(rows.action)
        frames, ages = rows.observation, np.empty((0, 0), np.int32)
        if history.is_history:
            frames, ages = rows.observation.frames, rows.observation.age
            ages[: history.burn_in + 1] = self._ages
        jax.tree.map(lambda kept, x: _put(kept, slice(before + 1), x), frames, self._frames)
        memory_before = self._memory_before
        episodes, in_engine, in_policy = [], 0.0, 0.0
        for t in range(num_steps):
            if self.is_closed:
                raise environments.SimulatorError("The simulators were closed during an unroll.")
            if history.burn_in and t == num_steps - history.burn_in:
                self._memory_before = jax.device_get(self._memory)
            now = time.perf_counter()
            seen = self._timestep._replace(observation=self._observation(frames, ages, t))
            chosen = self._act(acting_state, self._memory, seen, key, np.int32(t))
            self._memory = chosen[0]
            action, extras = jax.device_get(chosen[1:])
            in_policy += time.perf_counter() - now
            jax.tree.map(lambda kept, x, i=t: _put(kept, i, x), rows.extras, extras)
            now = time.perf_counter()
            timestep = simulators.step(action)
            in_engine += time.perf_counter() - now
            rows.action[t], rows.mask[t] = action, ~self._tracker.ended
            rows.reward[t], rows.discount[t] = timestep.reward, timestep.discount
            row = t + before + 1
            jax.tree.map(lambda kept, x, i=row: _put(kept, i, x), frames, timestep.observation)
            episodes += self._tracker.follow(timestep, simulators.results, simulators.restarts)
            rows.last[t] = self._tracker.ended
            self._timestep = timestep
            if self._lives is not None:
                self._end_at_life_loss(rows, t)
            if history.is_history:
                ages[t + history.burn_in + 1] = self._tracker.age
        keep = before + 1
        self._frames = jax.tree.map(lambda x: x[-keep:].copy(), frames)
        if history.is_history:
            self._ages = ages[-(history.burn_in + 1) :].copy()
        if not history.burn_in:
            self._memory_before = jax.device_get(self._memory)
        return memory_before, episodes, Timing(in_engine, in_policy)

    def _end_at_life_loss(self, rows: Batch, t: int) -> None:
        """End the agent's episodes in which step t of an unroll took a life, but not the last one.

        With the last life the game ends by itself, in some games a few frames later.
        """
        now = self.simulators.results["lives"]
        lost = (now < self._lives) & (now > 0) & ~self._tracker.ended
        rows.last[t] |= lost
        rows.discount[t] = np.where(lost, 0.0, rows.discount[t])
        first = np.where(lost, dm_env.StepType.FIRST, self._timestep.step_type)
        self._timestep = self._timestep._replace(step_type=first.astype(np.int32))
        self._lives = now.copy()

    def _observation(self, frames: Any, ages: Int[np.ndarray, "R B"], t: int) -> Any:
        """Return the agent's observation at step t of an unroll."""
        if not self._history.is_history:
            return jax.tree.map(lambda x: x[t], frames)
        first = t + self._history.burn_in  # The newest S rows up to this step.
        stop = t + self._history.rows_before + 1
        return History(
            frames=jax.tree.map(lambda x: x[first:stop], frames),
            age=ages[first : first + 1],  # pyright: ignore[reportArgumentType]
        )


def _put(rows: np.ndarray, index: Any, row: np.ndarray) -> None:
    rows[index] = row

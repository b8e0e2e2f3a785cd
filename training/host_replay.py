"""A replay in the host's memory, for trajectories from host environments.

Each environment's steps are kept as one stream, every observation once and in its own dtype,
in a ring. A trajectory is a stretch of T steps of it, at a multiple of T; what lies before it
(for stacked frames and burn-in) and its last observation are its neighbours'. A million
single Atari frames take 6.7 GiB.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from agents.history import History, HistorySpec
from agents.protocol import Batch
from disco_common.memory import free_memory

_MARGIN = 0.9  # Of the free memory, that a replay may take.


class HostReplay:
    """The last trajectories of one agent, from B environments."""

    def __init__(self, example: Batch, history: HistorySpec, capacity: int):
        """Reserves the memory; the system hands it out as it is filled.

        Args:
          example: a trajectory as the actor makes them, arrays or shapes, `[T, B, ...]`.
          history: of its observations.
          capacity: trajectories to keep, rounded up to a multiple of B.
        """
        self._history = history
        self._length, self._num_environments = example.action.shape[:2]
        self._num_kept, self._num_slots = _slots(example, history, capacity)
        self._is_filled = 0  # Trajectories of each environment.
        self._next_slot = 0
        rows, memories = _split(example)
        num_rows = self._num_slots * self._length
        self._rows = jax.tree.map(lambda x: np.zeros((num_rows, *x.shape[1:]), x.dtype), rows)
        self._memories = jax.tree.map(
            lambda x: np.zeros((self._num_slots, *x.shape), x.dtype), memories
        )

    @property
    def num_bytes(self) -> int:
        """Of a full replay."""
        return sum(x.nbytes for x in jax.tree.leaves((self._rows, self._memories)))

    @property
    def size(self) -> int:
        """Trajectories in it."""
        return self._is_filled * self._num_environments

    def insert(self, fresh: Batch) -> None:
        """Adds B trajectories that continue those inserted last."""
        start = self._next_slot * self._length
        num_rows = self._num_slots * self._length
        rows, memories = _split(fresh)
        before = self._history.rows_before

        def write(kept, new):
            kept[start : start + self._length] = new[: self._length]

        def write_observation(kept, new):
            write(kept, new[before:])
            kept[(start + self._length) % num_rows] = new[-1]

        jax.tree.map(write_observation, self._rows["observation"], rows["observation"])
        if self._history.is_history:
            age = rows["age"][self._history.burn_in :]
            write(self._rows["age"], age)
            self._rows["age"][(start + self._length) % num_rows] = age[-1]
        jax.tree.map(write, self._rows["transition"], rows["transition"])

        def write_memory(kept, new):
            kept[self._next_slot] = new

        jax.tree.map(write_memory, self._memories, memories)
        self._next_slot = (self._next_slot + 1) % self._num_slots
        self._is_filled = min(self._is_filled + 1, self._num_kept)

    def sample(self, random: np.random.Generator, count: int) -> Batch:
        """`count` trajectories, drawn uniformly with replacement."""
        back = random.integers(1, self._is_filled + 1, size=count)
        environment = random.integers(self._num_environments, size=count)
        slot = (self._next_slot - back) % self._num_slots
        num_rows, length = self._num_slots * self._length, self._length

        def rows(first, last):
            return (slot * length + np.arange(first, last)[:, None]) % num_rows

        history = self._history
        observed = rows(-history.rows_before, length + 1)
        observation: Any = jax.tree.map(
            lambda x: x[observed, environment], self._rows["observation"]
        )
        memory = None
        if history.is_history:
            aged = rows(-history.burn_in, length + 1)
            observation = History(frames=observation, age=self._rows["age"][aged, environment])
            memory = jax.tree.map(lambda x: x[slot, environment], self._memories)
        taken = rows(0, length)
        transition = jax.tree.map(lambda x: x[taken, environment], self._rows["transition"])
        return Batch(observation=observation, memory=memory, **transition)


class Planned(NamedTuple):
    """Replays that there shall be.

    Attributes:
      name: whose they are, for messages.
      example: of each, as for `HostReplay`.
      history: likewise.
      capacity: likewise.
      count: how many.
    """

    name: str
    example: Batch
    history: HistorySpec
    capacity: int
    # Tuples have a method of that name, which nobody calls here.
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]


def require_memory(replays: Sequence[Planned]) -> None:
    """Refuses replays that do not fit in memory together.

    Raises:
      ValueError: saying how large they would be, how much memory is free, and what would fit.
    """
    sizes = [num_bytes_of(planned) for planned in replays]
    needed, free = sum(sizes), int(_MARGIN * free_memory())
    if needed <= free:
        return
    each = "; ".join(
        f"{planned.count} of {planned.capacity} trajectories of {planned.example.action.shape[0]}"
        f" steps ({planned.name}, {_gib(size)})"
        for planned, size in zip(replays, sizes, strict=True)
    )
    raise ValueError(
        f"agent.replay_capacity asks for more memory than there is: {each}. They need"
        f" {_gib(needed)}, {_gib(free)} are free for replays,"
        f" {_what_fits(replays, free)}."
    )


def _what_fits(replays: Sequence[Planned], free: int) -> str:
    if len(replays) > 1:
        share = free / sum(map(num_bytes_of, replays))
        return f"about {100 * share:.2g}% of that"
    (planned,) = replays
    batch_size = planned.example.action.shape[1]
    one_each = planned._replace(capacity=batch_size)
    smallest = num_bytes_of(one_each)
    per_round = num_bytes_of(planned._replace(capacity=2 * batch_size)) - smallest
    rounds = 1 + (free - smallest) // per_round
    if rounds < 1:
        return "not enough for one trajectory of each environment"
    return f"enough for a capacity of {rounds * batch_size}"


def num_bytes_of(planned: Planned) -> int:
    """Of all replays that are planned, full."""
    rows, memories = _split(planned.example)
    _, num_slots = _slots(planned.example, planned.history, planned.capacity)
    per_row = sum(_num_bytes(x.shape[1:], x.dtype) for x in jax.tree.leaves(rows))
    per_slot = sum(_num_bytes(x.shape, x.dtype) for x in jax.tree.leaves(memories))
    return planned.count * num_slots * (planned.example.action.shape[0] * per_row + per_slot)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"


def _slots(example: Batch, history: HistorySpec, capacity: int) -> tuple[int, int]:
    """Trajectories of each environment that are kept, and that there is room for."""
    length, num_environments = example.action.shape[:2]
    kept = math.ceil(capacity / num_environments)
    # The newest trajectory's last row, and rows before the oldest, need room besides.
    return kept, kept + math.ceil((history.rows_before + 1) / length)


def _num_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _split(batch: Batch) -> tuple[dict[str, PyTree], PyTree]:
    """Return what is kept of every step, and what of every sequence."""
    fields = ("action", "reward", "discount", "last", "mask", "extras")
    rows: dict[str, PyTree] = {
        "observation": batch.observation,
        "transition": {name: getattr(batch, name) for name in fields},
    }
    if isinstance(batch.observation, History):
        rows |= {"observation": batch.observation.frames, "age": batch.observation.age}
    return rows, batch.memory

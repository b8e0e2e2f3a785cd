"""A replay in the host's memory, for trajectories from host environments.

Each environment's steps are kept as one stream, every observation once and in its own dtype,
in a ring. A trajectory is a stretch of T steps of it, at a multiple of T; what lies before it
(for stacked frames and burn-in) and its last observation are its neighbours'. A million
single Atari frames take 6.7 GiB.
"""

import math
from typing import Any

import jax
import numpy as np
import psutil
from jaxtyping import PyTree

import disco
from agents.frames import History, Seen

_MARGIN = 0.9  # Of the free memory, that a replay may take.
_CGROUP_LIMIT, _CGROUP_USE = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"


class HostReplay:
    """The last trajectories of one agent, from B environments."""

    def __init__(self, example: disco.Trajectory, seen: Seen, capacity: int):
        """Reserves the memory; the system hands it out as it is filled.

        Args:
          example: a trajectory as the actor makes them, arrays or shapes, `[T, B, ...]`.
          seen: by the agent.
          capacity: trajectories to keep, rounded up to a multiple of B.

        Raises:
          ValueError: if there is not enough free memory, saying how much there is and what fits.
        """
        self._seen = seen
        self._length, self._num_environments = example.action.shape
        require_memory(example, seen, capacity)
        self._num_kept, self._num_slots = _slots(example, seen, capacity)
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

    def insert(self, fresh: disco.Trajectory) -> None:
        """Adds B trajectories that continue those inserted last."""
        start = self._next_slot * self._length
        num_rows = self._num_slots * self._length
        rows, memories = _split(fresh)
        before = self._seen.rows_before

        def write(kept, new):
            kept[start : start + self._length] = new[: self._length]

        def write_observation(kept, new):
            write(kept, new[before:])
            kept[(start + self._length) % num_rows] = new[-1]

        jax.tree.map(write_observation, self._rows["observation"], rows["observation"])
        if self._seen.is_history:
            age = rows["age"][self._seen.burn_in :]
            write(self._rows["age"], age)
            self._rows["age"][(start + self._length) % num_rows] = age[-1]
        jax.tree.map(write, self._rows["transition"], rows["transition"])

        def write_memory(kept, new):
            kept[self._next_slot] = new

        jax.tree.map(write_memory, self._memories, memories)
        self._next_slot = (self._next_slot + 1) % self._num_slots
        self._is_filled = min(self._is_filled + 1, self._num_kept)

    def sample(self, random: np.random.Generator, count: int) -> disco.Trajectory:
        """`count` trajectories, drawn uniformly with replacement."""
        back = random.integers(1, self._is_filled + 1, size=count)
        environment = random.integers(self._num_environments, size=count)
        slot = (self._next_slot - back) % self._num_slots
        num_rows, length = self._num_slots * self._length, self._length

        def rows(first, last):
            return (slot * length + np.arange(first, last)[:, None]) % num_rows

        seen = self._seen
        observed = rows(-seen.rows_before, length + 1)
        observation: Any = jax.tree.map(
            lambda x: x[observed, environment], self._rows["observation"]
        )
        memory = None
        if seen.is_history:
            aged = rows(-seen.burn_in, length + 1)
            observation = History(frames=observation, age=self._rows["age"][aged, environment])
            memory = jax.tree.map(lambda x: x[slot, environment], self._memories)
        taken = rows(0, length)
        transition = {name: x[taken, environment] for name, x in self._rows["transition"].items()}
        return disco.Trajectory(observation=observation, core_state=memory, **transition)


def require_memory(
    example: disco.Trajectory, seen: Seen, capacity: int, num_replays: int = 1
) -> None:
    """Refuses replays that do not fit in memory together.

    Args:
      example: of each, as for `HostReplay`.
      seen: likewise.
      capacity: likewise.
      num_replays: how many there will be.

    Raises:
      ValueError: saying how large they would be, how much memory is free, and what would fit.
    """
    rows, memories = _split(example)
    _, num_slots = _slots(example, seen, capacity)
    length = example.action.shape[0]
    per_row = sum(_num_bytes(x.shape[1:], x.dtype) for x in jax.tree.leaves(rows))
    per_slot = sum(_num_bytes(x.shape, x.dtype) for x in jax.tree.leaves(memories))
    needed = num_replays * num_slots * (length * per_row + per_slot)
    free = int(_MARGIN * free_memory())
    if needed > free:
        each = f"; {num_replays} replays" if num_replays > 1 else ""
        raise ValueError(
            f"agent.replay_capacity is {capacity} trajectories of {length} steps{each}, which need"
            f" {needed / 2**30:.1f} GiB of memory; {free / 2**30:.1f} GiB are free for replays,"
            f" enough for a capacity of {int(free / needed * capacity)}."
        )


def _slots(example: disco.Trajectory, seen: Seen, capacity: int) -> tuple[int, int]:
    """Trajectories of each environment that are kept, and that there is room for."""
    length, num_environments = example.action.shape
    kept = math.ceil(capacity / num_environments)
    # The newest trajectory's last row, and rows before the oldest, need room besides.
    return kept, kept + math.ceil((seen.rows_before + 1) / length)


def _num_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def free_memory() -> int:
    """Bytes that this process may still use, by the machine's and its container's limits."""
    free = psutil.virtual_memory().available
    try:
        with open(_CGROUP_LIMIT) as limit, open(_CGROUP_USE) as use:
            text = limit.read().strip()
            if text != "max":
                free = min(free, int(text) - int(use.read()))
    except (OSError, ValueError):
        pass  # No container, or one that does not tell.
    return max(free, 0)


def _split(trajectory: disco.Trajectory) -> tuple[dict[str, PyTree], PyTree]:
    """What is kept of every step, and what of every trajectory."""
    fields = ("action", "reward", "discount", "last", "behaviour_logits", "mask")
    rows: dict[str, PyTree] = {
        "observation": trajectory.observation,
        "transition": {name: getattr(trajectory, name) for name in fields},
    }
    if isinstance(trajectory.observation, History):
        rows |= {"observation": trajectory.observation.frames, "age": trajectory.observation.age}
    return rows, trajectory.core_state

"""Experience of many environments, and the latents that the model last made of it.

A batch is formed first of fresh sequences that do not overlap (the online queue), and filled up
with sequences drawn uniformly, whatever episodes they span (the Nature version, "Experience
replay"). Each has one step more than is learned from: the first one's latents are where the model
starts. The latents of the others are written back once they were computed anew.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

Row = Mapping[str, Any]
"""Arrays `[E, ...]` of one step in all environments, by name."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Where the sequences of a batch are.

    Attributes:
      environment: of each sequence, `[B]`.
      first: its first step, counted from the beginning of the run, `[B]`.
    """

    environment: Int[np.ndarray, "B"]
    first: Int[np.ndarray, "B"]


class DreamerReplay:
    """The last steps of E environments.

    Attributes:
      steps: inserted so far in each environment; the last `rows` of them are there.
      rows: that are kept of each environment.
    """

    def __init__(self, example: Row, capacity: int, length: int, *, online: bool = True):
        """Asks for the memory that it will need, which the system gives as steps are written.

        Args:
          example: of a row.
          capacity: steps to remember, of all environments together.
          length: of sequences, without the step before them.
          online: whether there is an online queue.

        Raises:
          ValueError: if not even one sequence of each environment fits.
        """
        self.steps, self._length, self._is_online = 0, length, online
        arrays = {name: np.asarray(x) for name, x in example.items()}
        self._environments = len(next(iter(arrays.values())))
        self.rows = capacity // self._environments
        if self.rows < length + 1:
            raise ValueError(
                f"Dreamer's replay_capacity is {capacity}; expected at least"
                f" {self._environments * (length + 1)}, a sequence of batch_length + 1 steps of"
                " each environment."
            )
        self._kept = {name: np.zeros((self.rows, *x.shape), x.dtype) for name, x in arrays.items()}
        self._queue: collections.deque[tuple[int, int]] = collections.deque()

    @property
    def sequences(self) -> int:
        """Different ones that could be drawn."""
        return max(0, min(self.steps, self.rows) - self._length) * self._environments

    def insert(self, row: Row) -> None:
        """Adds a step of each environment."""
        for name, kept in self._kept.items():
            kept[self.steps % self.rows] = row[name]
        self.steps += 1
        if self._is_online and self.steps > 1 and (self.steps - 1) % self._length == 0:
            first = self.steps - self._length - 1
            self._queue.extend((i, first) for i in range(self._environments))

    def mark_newest(self, flag: str) -> None:
        """Sets a flag of the newest step of each environment."""
        self._kept[flag][(self.steps - 1) % self.rows] = True

    def sample(self, random: np.random.Generator, batch_size: int) -> tuple[dict[str, Any], Drawn]:
        """A batch `[T + 1, B, ...]` by name, and where it is from.

        Raises:
          ValueError: if there is no sequence yet.
        """
        oldest = max(0, self.steps - self.rows)
        newest = self.steps - self._length - 1
        if newest < oldest:
            raise ValueError(
                f"The replay has {self.steps} steps of each environment; expected more than"
                f" {self._length}."
            )
        chosen: list[tuple[int, int]] = []
        while self._queue and len(chosen) < batch_size:
            environment, first = self._queue.popleft()
            if first >= oldest:
                chosen.append((environment, first))
        for _ in range(batch_size - len(chosen)):
            environment = int(random.integers(self._environments))
            chosen.append((environment, int(random.integers(oldest, newest + 1))))
        environment, first = (np.array(x) for x in zip(*chosen, strict=True))
        drawn = Drawn(environment, first)
        rows = self._places(drawn, 0)
        return {name: x[rows, environment] for name, x in self._kept.items()}, drawn

    def refresh(self, drawn: Drawn, latents: Row) -> None:
        """Writes back what the model made of a batch; what was overwritten meanwhile is left.

        Args:
          drawn: of the batch.
          latents: by name, `[T, B, ...]`, of all steps but the first.
        """
        rows = self._places(drawn, 1)
        steps = np.arange(1, self._length + 1)[:, None] + drawn.first
        there = steps >= self.steps - self.rows
        columns = np.broadcast_to(drawn.environment, rows.shape)
        for name, x in latents.items():
            self._kept[name][rows[there], columns[there]] = np.asarray(x)[there]

    def _places(self, drawn: Drawn, skip: int) -> Int[np.ndarray, "T B"]:
        """Rows of sequences, without the first steps."""
        steps = np.arange(skip, self._length + 1)[:, None] + drawn.first
        return steps % self.rows

    def snapshot(self) -> dict[str, Any]:
        """All of it, as arrays whose shapes depend on the replay's sizes only."""
        oldest = max(0, self.steps - self.rows)
        there = [(i, first) for i, first in self._queue if first >= oldest]
        most = (self.rows // self._length + 1) * self._environments
        queue = np.full((most, 2), -1, np.int64)
        queue[: len(there)] = np.array(there, np.int64).reshape(-1, 2)
        return {"steps": np.int64(self.steps), "queue": queue, "kept": self._kept}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Goes back to a snapshot of a replay of the same sizes."""
        for name, kept in self._kept.items():
            kept[...] = snapshot["kept"][name]
        self.steps = int(snapshot["steps"])
        self._queue = collections.deque(
            (int(i), int(first)) for i, first in snapshot["queue"] if i >= 0
        )

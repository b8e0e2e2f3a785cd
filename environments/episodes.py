"""Episodes that ended in simulators."""

import dataclasses
from collections.abc import Mapping

import dm_env
import numpy as np


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode that ended.

    Attributes:
      episode_return: its undiscounted return.
      length: number of its steps.
      results: the suite's own results, by name.
    """

    episode_return: float
    length: int
    results: Mapping[str, float]


class EpisodeTracker:
    """The progress of the episodes of a batch of simulators.

    Attributes:
      ended: whether each simulator's last time step was LAST, `[B]`.
      age: steps since the start of each simulator's episode, `[B]`.
    """

    def __init__(self, batch_size: int):
        """Start before the first step of all simulators."""
        self.ended = np.zeros(batch_size, bool)
        self.age = np.zeros(batch_size, np.int32)
        self._return = np.zeros(batch_size, np.float64)
        self._restarts = 0

    def follow(
        self, timestep: dm_env.TimeStep, results: Mapping[str, np.ndarray], restarts: int
    ) -> list[Episode]:
        """Update the progress by a step, and return the episodes that ended with it.

        No episode is returned if `restarts`, the number of simulators that died, has grown: some
        episodes were then truncated by the restart, and their returns are not the agent's.
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

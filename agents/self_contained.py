"""Agents that bring their own training: other algorithms, in whatever framework.

The trainer gives such an agent a task, a seed, a budget and a folder, and records the episodes that
it reports (`training.self_contained`).
"""

import dataclasses
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import environments
from environments.episodes import Episode


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """What happened in an agent's training since its last report.

    Attributes:
      environment_steps: made so far in the run, in all of its environments together.
      episodes: that ended since the last report.
      metrics: to be recorded, by name: losses, and whatever else. One that is not finite marks the
        run.
    """

    environment_steps: int
    episodes: Sequence[Episode] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Configured(Protocol):
    """An agent's settings, and the runs that it refuses."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that its results depend on besides task, seed and budget; JSON values.

        Runs of other settings are another agent's.
        """
        ...

    def check(self, task: environments.Environment, num_steps: int) -> None:
        """Refuse a run before anything starts.

        Args:
          task: to learn.
          num_steps: environment steps of the whole run.

        Raises:
          ValueError: if it cannot act there, or cannot learn from so few or so many steps; the
            message says what it found and expected.
        """
        ...


@runtime_checkable
class SelfContainedAgent(Configured, Protocol):
    """An algorithm that acts and learns by itself. To be picklable, for sweeps on Ray."""

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[TrainingReport]:
        """Train an agent, or continue to, and report progress.

        Args:
          task: to learn; `environments.start` steps it, whatever its kind.
          seed: of all randomness.
          num_steps: environment steps of the whole run. Reports must reach them; after the one that
            does, the generator is closed. Episodes of reports beyond do not count.
          folder: of the run, there already; for checkpoints. An agent that draws its behaviour at
            the end writes `strip.png` there, and its model's predictions `prediction.png`
            (`agents.pictures`), before its last report.
          checkpoint_seconds: between two checkpoints, for agents that save any.

        Yields:
          First, without episodes, the step that it begins with: 0, or where a checkpoint in the
          folder has it continue. Then reports, each of later steps than the last, often enough for
          a learning curve: an episode counts as ended at the steps of its report. A report is
          recorded before the next one is asked for, so an agent that saves a checkpoint after it
          yielded loses nothing. When the run is stopped the generator is closed: an agent that then
          saves a checkpoint loses nothing either.
        """
        ...

"""Agents with their own training loop: other algorithms, in any framework.

The trainer passes such an agent a task, a seed, a budget and a folder, and records the episodes
that it reports (`training.self_contained`).
"""

import dataclasses
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import environments
from environments.episodes import Episode


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """An agent's progress since its last report.

    Attributes:
      environment_steps: of the run so far, over all of its environments.
      episodes: that ended since the last report.
      metrics: to record, by name, such as losses. A metric that is not finite marks the run as not
        finite.
    """

    environment_steps: int
    episodes: Sequence[Episode] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Configured(Protocol):
    """An agent's settings, and a check of the runs that it supports."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that its results depend on besides task, seed and budget; JSON values.

        Runs with different settings are runs of different agents.
        """
        ...

    def check(self, task: environments.Environment, num_steps: int) -> None:
        """Check that the agent supports a run, before anything starts.

        Args:
          task: to learn.
          num_steps: environment steps of the whole run.

        Raises:
          ValueError: if it does not support the task's specs or the number of steps; the message
            says what it found and expected.
        """
        ...


@runtime_checkable
class SelfContainedAgent(Configured, Protocol):
    """An algorithm with its own training loop. It must be picklable, for sweeps on Ray."""

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[TrainingReport]:
        """Train an agent, or continue its training, and report progress.

        Args:
          task: to learn; `environments.start` makes its simulators, of JAX and host environments.
          seed: of all randomness.
          num_steps: environment steps of the whole run. Reports must reach this number. The
            generator is closed after the report that does. Episodes of a report of more steps do
            not count.
          folder: of the run; it exists. The agent saves its checkpoints there. An agent that draws
            its behaviour writes `strip.png` there, and its model's predictions `prediction.png`
            (`agents.pictures`), before its last report. A report shows all PNG files of the folder.
          checkpoint_seconds: seconds between two checkpoints, for agents that save any.

        Yields:
          First a report without episodes of the step that it begins with: 0, or the step of a
          checkpoint in the folder. Then reports of increasing steps, often enough for a learning
          curve: an episode counts as ended at the steps of its report. Each report is recorded
          before the generator resumes, so a checkpoint saved after a `yield` agrees with the
          records. When the run is stopped the generator is closed. The agent may save a checkpoint
          then, too.
        """
        ...

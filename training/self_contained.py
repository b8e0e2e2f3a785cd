"""Training of algorithms with their own training loop (`agents.registry`).

A run's folder contains the records of all runs (`training.records`), and the agent's own files.
"""

import contextlib
import time

from agents.protocol import TrainingReport
from agents.registry import ConfiguredAlgorithm
from disco_common import stopping
from training.records import EpisodeSums, Records, Run, TrainedRun
from training.schedule import Report, TrainingConfig

_SECONDS = "seconds"


def train(
    algorithm: ConfiguredAlgorithm,
    run: Run,
    settings: TrainingConfig,
    report: Report = lambda *_: None,
) -> TrainedRun:
    """Run a self-contained agent's training, or continue it.

    `report` is called at each of the agent's reports.

    Returns:
      The result of the run.

    Raises:
      StoppedBySignal: after a stop signal; the agent's generator is closed first.
      ValueError: if the agent reports steps that do not increase, ends before its budget, or
        reports nothing of the steps that scores are taken from. Other errors of the agent are
        raised, too.
    """
    training, num_steps = _Training(run), settings.num_steps
    stopping.set_unsaved(True)
    progress = algorithm.train(
        run.task, run.seed, num_steps, run.folder, settings.checkpoint_seconds
    )
    with contextlib.closing(progress) as reports:
        for one in reports:
            try:
                training.follow(one, num_steps)
                report(
                    min(training.steps, num_steps), training.steps_per_second, training.mean_return
                )
            except BaseException as error:  # The agent must not save steps without records.
                with contextlib.suppress(StopIteration):
                    reports.throw(error)
                raise
            if training.steps >= num_steps:
                break
            stopping.raise_if_requested()
    if training.steps < num_steps:
        raise ValueError(
            f"The agent ended after {max(training.steps, 0)} of {num_steps} environment steps."
        )
    return training.result(settings.scored_from)


class _Training:
    """A run of a self-contained agent, and its records.

    Attributes:
      steps: environment steps at the last report.
      mean_return: of the last report's episodes; None without any.
    """

    def __init__(self, run: Run):
        self._records = Records(run.folder)
        self.steps, self._last_within, self._seconds = -1, 0, 0.0
        self.mean_return: float | None = None

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per second since the first report of this call; None before others."""
        past = self._seconds - self._seconds_before
        return (self.steps - self._first) / past if past else None

    def follow(self, progress: TrainingReport, num_steps: int) -> None:
        """Record a report; the first one gives the step at which the run begins or continues."""
        if self.steps < 0:
            self._begin(progress)
            return
        steps = int(progress.environment_steps)
        if steps <= self.steps:
            raise ValueError(
                f"The agent reports step {steps} after step {self.steps}; expected a later one."
            )
        self.steps = steps
        self._seconds = self._seconds_before + time.monotonic() - self._started
        returns = [episode.episode_return for episode in progress.episodes]
        self.mean_return = sum(returns) / len(returns) if returns else None
        if steps <= num_steps:
            self._last_within = steps
            self._records.add_episodes(EpisodeSums.of_one(steps, x) for x in progress.episodes)
        self._records.add_metrics(steps, {**progress.metrics, _SECONDS: self._seconds})

    def _begin(self, progress: TrainingReport) -> None:
        self.steps = self._first = int(progress.environment_steps)
        if self.steps < 0 or progress.episodes:
            raise ValueError(
                f"The agent's first report has step {self.steps} and {len(progress.episodes)}"
                " episodes; expected the step that it begins with, and none."
            )
        self._records.keep(self.steps)
        past = self._records.metrics()
        self._seconds_before = self._seconds = past[-1][_SECONDS] if past else 0.0
        self._started = time.monotonic()

    def result(self, scored_from: int) -> TrainedRun:
        """Return the result of the run, unless nothing was reported of the scored steps."""
        if self._last_within <= scored_from:
            raise ValueError(
                f"The agent's last report within the budget is of step {self._last_within};"
                f" expected some after step {scored_from}, from where on scores are taken."
            )
        return TrainedRun(
            episodes=self._records.episodes(),
            is_finite=self._records.is_finite,
            start_seconds=0.0,
            train_seconds=self._seconds,
        )

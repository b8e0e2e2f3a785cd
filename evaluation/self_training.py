"""Runs of agents that bring their own training (`agents.self_contained`).

A run's folder has

    episodes.jsonl   return, length and the suite's own results of each episode that ended
    metrics.jsonl    what the agent tells of its learning, and the seconds that it took
    ...              what the agent keeps itself
"""

import contextlib
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

from agents.self_contained import SelfContainedAgent, Stretch
from common.json_lines import JsonLines
from evaluation import host_training
from evaluation.config import EvaluationConfig
from evaluation.results import RunResult, Tally

_STEPS, _SECONDS = "environment_steps", "seconds"


def train(
    agent: SelfContainedAgent,
    task: Any,
    seed: int,
    config: EvaluationConfig,
    folder: pathlib.Path,
    report: Callable[[int, float | None, float | None], None] = lambda *_: None,
) -> RunResult:
    """Has an agent train itself, or continue to.

    Args:
      agent: which.
      task: to learn.
      seed: of the run.
      config: of the evaluation.
      folder: of the run.
      report: see `evaluation.training.train_on_device`.

    Raises:
      ValueError: if the agent tells of steps in another order than that in which they were made,
        ends before its budget, or tells nothing of the time of the score. What else it raises is
        raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(folder)
    per_update, num_steps = config.agent.steps_per_update, config.num_steps
    training = agent.train(task, seed, num_steps, folder, config.checkpoint_seconds)
    with contextlib.closing(training) as stretches:
        for stretch in stretches:
            run.follow(stretch, num_steps)
            report(min(run.steps, num_steps) // per_update, run.steps_per_second, run.mean_return)
            if run.steps >= num_steps:
                break
    if run.steps < num_steps:
        raise ValueError(
            f"The agent ended after {max(run.steps, 0)} of {num_steps} environment steps."
        )
    tally = Tally(1, config)
    if run.last_within <= tally.window_start * per_update:
        raise ValueError(
            f"The agent's last stretch within the budget ends at step {run.last_within}; expected"
            f" some after step {tally.window_start * per_update}, from where on scores are taken."
        )
    for line in run.episodes.read():
        episode = host_training.from_json(line)
        sums = {"count": 1.0, "return": episode.episode_return, "length": float(episode.length)}
        tally.add(-(-line[_STEPS] // per_update), dict(episode.results) | sums)
    return tally.result(
        0,
        is_finite=run.is_finite,
        start_seconds=0.0,
        train_seconds=run.seconds,
        devices="its own",
    )


class _Run:
    """A run on its way, and its records.

    Attributes:
      episodes: all that ended.
      steps: that the last stretch reached.
      last_within: that the last stretch within the budget reached.
      seconds: of wall time, over all of the run's parts.
      mean_return: of the last stretch's episodes; None without any.
      is_finite: whether all metrics were.
    """

    def __init__(self, folder: pathlib.Path):
        self.episodes = JsonLines(folder / "episodes.jsonl")
        self._metrics = JsonLines(folder / "metrics.jsonl")
        self.steps, self.last_within, self.seconds = -1, 0, 0.0
        self.mean_return: float | None = None
        self.is_finite = True

    @property
    def steps_per_second(self) -> float | None:
        """Since this part of the run began; None before its first stretch."""
        past = self.seconds - self._seconds_before
        return (self.steps - self._first) / past if past else None

    def follow(self, stretch: Stretch, num_steps: int) -> None:
        """Records a stretch; the first one says where the run goes on."""
        if self.steps < 0:
            self._begin(stretch)
            return
        steps = int(stretch.environment_steps)
        if steps <= self.steps:
            raise ValueError(
                f"The agent tells of step {steps} after step {self.steps}; expected a later one."
            )
        self.steps = steps
        self.seconds = self._seconds_before + time.monotonic() - self._started
        returns = [episode.episode_return for episode in stretch.episodes]
        self.mean_return = sum(returns) / len(returns) if returns else None
        if steps <= num_steps:
            self.last_within = steps
            self.episodes.append(
                {_STEPS: steps, **host_training.to_json(x)} for x in stretch.episodes
            )
        metrics = {
            name: float(x) if math.isfinite(x) else None for name, x in stretch.metrics.items()
        }
        self.is_finite &= None not in metrics.values()
        self._metrics.append([{**metrics, _STEPS: steps, _SECONDS: self.seconds}])

    def _begin(self, stretch: Stretch) -> None:
        self.steps = self._first = int(stretch.environment_steps)
        if self.steps < 0 or stretch.episodes:
            raise ValueError(
                f"The agent's first stretch has step {self.steps} and {len(stretch.episodes)}"
                " episodes; expected the step that it begins with, and none."
            )
        for records in (self.episodes, self._metrics):
            records.keep(_STEPS, self.steps if self.steps else -1)
        past = self._metrics.read()
        self.is_finite = all(x is not None for line in past for x in line.values())
        self._seconds_before = self.seconds = past[-1][_SECONDS] if past else 0.0
        self._started = time.monotonic()

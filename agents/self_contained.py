"""Agents that bring their own training: other algorithms, in whatever framework.

An evaluation gives such an agent a task, a seed, a budget and a folder, and takes the episodes that
it tells of. Other packages add agents by an entry point of the group `disco.agents`, which has the
agent's name and is a function that makes it (`docs/extending.md`).
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from dm_env import specs

import environments
from agents.host_acting import Episode, EpisodeTracker
from common import plugins

PLUGINS = "disco.agents"


@dataclasses.dataclass(frozen=True)
class Stretch:
    """What an agent tells of its training since the last stretch.

    Attributes:
      environment_steps: made so far in the run, in all of its environments together.
      episodes: that ended since the last stretch.
      metrics: to be recorded, by name: losses, and whatever else. One that is not finite marks the
        run.
    """

    environment_steps: int
    episodes: Sequence[Episode] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class SelfContainedAgent(Protocol):
    """An algorithm that acts and learns by itself. To be picklable, for sweeps on Ray."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that its results depend on besides task, seed and budget; JSON values.

        Runs of other settings are another agent's.
        """
        ...

    def check(self, task: environments.Environment, num_steps: int) -> None:
        """Refuses a run before anything starts.

        Args:
          task: to learn.
          num_steps: environment steps of the whole run.

        Raises:
          ValueError: if it cannot act there, or cannot learn from so few or so many steps; the
            message says what it found and expected.
        """
        ...

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[Stretch]:
        """Trains a fresh agent, or continues to, and tells how it goes.

        Args:
          task: to learn; `environments.start` steps it, whatever its kind.
          seed: of all randomness.
          num_steps: environment steps of the whole run. Stretches must reach them; after the one
            that does, the generator is closed. No episode counts that ended in a stretch beyond.
          folder: of the run, there already; for checkpoints. An agent that draws what it does at
            the end writes `strip.png` there, and what its model expects `prediction.png`
            (`agents.pictures`), before its last stretch.
          checkpoint_seconds: between two checkpoints, for agents that save any.

        Yields:
          First, without episodes, the step that it begins with: 0, or where a checkpoint in the
          folder has it continue. Then stretches, each of later steps than the last, and
          often enough for a learning curve: an episode counts as ended where its stretch did. What
          a stretch tells is recorded before the next one is asked for, so an agent that saves a
          checkpoint after it yielded loses nothing.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Actions of any kind, uniformly random within their bounds; learns nothing.

    Attributes:
      num_environments: that it acts in at once.
    """

    num_environments: int = 8

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        pass

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[Stretch]:
        number, spec = self.num_environments, task.dynamics.action_spec()
        random, tracker = np.random.default_rng(seed), EpisodeTracker(number)
        shape = (number, *spec.shape)
        simulators = environments.start(task, number, environments.seed_of(task.name, seed, 0))
        with contextlib.closing(simulators):
            simulators.reset()
            yield Stretch(0)
            for steps in range(number, num_steps + number, number):
                if isinstance(spec, specs.DiscreteArray):
                    action = random.integers(spec.num_values, size=shape)
                else:
                    action = random.uniform(spec.minimum, spec.maximum, shape).astype(spec.dtype)
                timestep = simulators.step(action)
                episodes = tracker.follow(timestep, simulators.results, simulators.restarts)
                if episodes or steps >= num_steps:
                    yield Stretch(steps, episodes)


def make(name: str) -> SelfContainedAgent:
    """The agent of this name; what stands behind a slash is handed to the function that makes it.

    Raises:
      ValueError: if there is none.
    """
    family, _, parameters = name.partition("/")
    plugin = plugins.find(PLUGINS, family)
    if plugin is None:
        raise ValueError(
            f"There is no agent {name!r}; known are {plugins.names(PLUGINS) or 'none'}. Packages"
            f" add some by an entry point of the group {PLUGINS!r}."
        )
    return plugin(parameters)

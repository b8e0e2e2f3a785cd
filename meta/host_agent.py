"""One agent's host environments."""

import contextlib
from typing import Any

import numpy as np

import environments
from agents.protocol import Batch
from meta.groups import Group
from training.host_collection import Collected, HostActor
from training.host_experience import HostExperience


class HostAgentExperience:
    """The environments and the replay of one agent, from one reset to the next.

    Attributes:
      experience: collects and replays the batches that the agent learns from.
      validation: collects validation trajectories.
    """

    def __init__(
        self,
        group: Group,
        task: Any,
        address: tuple[int, ...],
        num_validation: int,
        workers: int,
    ):
        """Start the environments.

        Args:
          group: of the agent.
          task: of the environments.
          address: non-negative integers from which their seeds are derived.
          num_validation: validation environments.
          workers: threads or processes for each half of the environments.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        agent, dynamics = group.agent, group.dynamics
        (self._update,) = agent.experience.updates
        assert isinstance(dynamics, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.experience = HostExperience(agent, dynamics, task, int(seeds[0]), workers=workers)
            started.callback(self.experience.close)
            self.validation = HostActor(
                agent, dynamics, task, num_validation, int(seeds[1]), workers
            )
            started.pop_all()

    def take(self, update: int) -> tuple[Collected, Batch]:
        """Return what was collected for an update, and the batch that it learns from.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        collected = self.experience.take()
        return collected, self.experience.draw(self._update, collected.batch, update).batch

    @property
    def restarts(self) -> int:
        """Number of simulators that died and were replaced."""
        return self.experience.restarts + self.validation.restarts

    def close(self) -> None:
        """Stop the environments."""
        with contextlib.closing(self.validation):
            self.experience.close()

"""One agent's host environments."""

import contextlib
from typing import Any

import numpy as np

import environments
from meta.groups import Group
from training.host_collection import HostActor
from training.host_experience import HostExperience


class HostAgent:
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
        assert isinstance(dynamics, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.experience = HostExperience(agent, dynamics, task, int(seeds[0]), workers=workers)
            started.callback(self.experience.close)
            self.validation = HostActor(
                agent, dynamics, task, num_validation, int(seeds[1]), workers
            )
            started.pop_all()

    @property
    def restarts(self) -> int:
        """Number of simulators that died and were replaced."""
        return self.experience.restarts + self.validation.restarts

    def close(self) -> None:
        """Stop the environments."""
        with contextlib.closing(self.validation):
            self.experience.close()

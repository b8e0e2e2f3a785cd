"""One agent's host environments."""

import contextlib
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

import disco
import environments
from agents.protocol import Batch
from meta.config import MetaConfig
from meta.groups import Group
from training import collection
from training.host_collection import Collected, HostActor
from training.host_pipeline import HostPipeline


class HostAgent:
    """The environments and the replay of one agent, from one reset to the next.

    Attributes:
      pipeline: collects and replays the batches that the agent learns from.
    """

    def __init__(
        self,
        group: Group,
        task: Any,
        address: tuple[int, ...],
        meta: MetaConfig,
        workers: int,
    ):
        """Start the environments.

        `address`, non-negative integers, gives their seeds. `workers` threads or processes step
        each half of the environments.

        Raises:
          SimulatorError: if a simulator cannot be started.
        """
        agent, dynamics = group.agent, group.dynamics
        (self._update,) = agent.experience.updates
        assert isinstance(dynamics, environments.HostEnvironment)
        seeds = np.random.SeedSequence(address).generate_state(2) % 2**31
        with contextlib.ExitStack() as started:
            self.pipeline = HostPipeline(agent, dynamics, task, int(seeds[0]), workers=workers)
            started.callback(self.pipeline.close)
            self._meta, self._validation = meta, None
            self._num_unrolls = group.validation_unrolls(meta)
            if not self._num_unrolls:
                number = meta.validation_trajectories
                self._validation = HostActor(agent, dynamics, task, number, int(seeds[1]), workers)
            started.pop_all()

    def take(self, update: int) -> tuple[Collected, Batch]:
        """Return what was collected for an update, and the batch that it learns from.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        collected = self.pipeline.take()
        return collected, self.pipeline.draw(self._update, collected.batch, update).batch

    def validate(
        self, params: disco.Params, key: PRNGKeyArray, unroll: int
    ) -> tuple[list[Collected], Batch]:
        """Return what an updated agent collects for validation, and the trajectories in it.

        Without validation environments it acts in the training environments, which go on.

        No unroll is requested before. `unroll` is the number of the first unroll of the training
        environments.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
        """
        number, collected = self._meta.validation_trajectories, []
        if self._validation is not None:
            collected.append(self._validation.collect(params, key, self._meta.validation_length))
        for i in range(self._num_unrolls):
            self.pipeline.request(params, unroll + i)
            collected.append(self.pipeline.take())
        every = collection.concatenate([part.batch for part in collected])
        # The last unroll may have more than are needed.
        return collected, collection.map_batch(
            lambda axis, x: x[:number] if axis == 0 else x[:, :number], every
        )

    @property
    def restarts(self) -> int:
        """Number of simulators that died and were replaced."""
        others = self._validation.restarts if self._validation is not None else 0
        return self.pipeline.restarts + others

    def close(self) -> None:
        """Stop the environments."""
        with contextlib.ExitStack() as closing:
            if self._validation is not None:
                closing.callback(self._validation.close)
            self.pipeline.close()

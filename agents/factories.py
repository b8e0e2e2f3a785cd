"""What the factories of agents with a learning rate share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

import environments
from agents.encoders import has_images


@dataclasses.dataclass(frozen=True)
class ConfiguredFactory:
    """A factory (`agents.registry.AgentFactory`) of one kind of agent.

    Agents that differ in nothing but the learning rate share a compiled program, as it is one of
    their arrays.

    Attributes:
      config: all settings of the agent, among them `learning_rate`.
      for_images: the settings where observations are images, if they are others.
      images: side in pixels and channels of the images, in environments that offer a choice; None
        for the environments' own.
      kind: class of the agent. It has `create(config, dynamics)` and a field `learning_rate`.
    """

    config: Any
    for_images: Any = None
    images: tuple[int, int] | None = None
    kind: ClassVar[Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        own = dataclasses.asdict(self.config)
        if self.for_images is not None:
            own["for_images"] = dataclasses.asdict(self.for_images)
        return own | ({"images": self.images} if self.images else {})

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return a task with the paper's images, where it offers a choice."""
        return environments.with_images(task, *self.images) if self.images else task

    def with_images_network(self, network: Any, frame_stack: int) -> "ConfiguredFactory":
        """Return the factory with a network for images, if it has no convolutions for them.

        Args:
          network: an `agents.networks.NetworkConfig` with convolutions.
          frame_stack: images that the network reads at once.
        """
        if self.for_images is not None or self.config.network.channels:
            return self
        own = dataclasses.replace(self.config, network=network, frame_stack=frame_stack)
        return dataclasses.replace(self, for_images=own)

    def for_run(self, num_steps: int) -> "ConfiguredFactory":
        """Return the factory for runs of a length, over which learning rates fall that may.

        Args:
          num_steps: environment steps of a run.
        """
        return dataclasses.replace(
            self,
            config=_for_run(self.config, num_steps),
            for_images=_for_run(self.for_images, num_steps),
        )

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> Any:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        own = self.config
        if self.for_images is not None and has_images(task.dynamics.observation_spec()):
            own = self.for_images
        agent = self.kind.create(dataclasses.replace(own, learning_rate=1.0), task.dynamics)
        return dataclasses.replace(agent, learning_rate=jnp.float32(own.learning_rate))


def _for_run(config: Any, num_steps: int) -> Any:
    """Return an agent's settings with the length of the run where they leave it open."""
    if getattr(config, "total_steps", 0) is None:
        return dataclasses.replace(config, total_steps=num_steps)
    if getattr(config, "end_learning_rate", 1.0) < 1.0 and not config.lifetime:
        return dataclasses.replace(config, lifetime=num_steps)
    return config

"""What the factories of agents with a learning rate share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

import environments


@dataclasses.dataclass(frozen=True)
class ConfiguredFactory:
    """A factory (`agents.registry.AgentFactory`) of one kind of agent.

    Agents that differ in nothing but the learning rate share a compiled program, as it is one of
    their arrays.

    Attributes:
      config: all settings of the agent, among them `learning_rate`.
      images: side in pixels and channels of the images, in environments that offer a choice; None
        for the environments' own.
      kind: class of the agent. It has `create(config, dynamics)` and a field `learning_rate`.
    """

    config: Any
    images: tuple[int, int] | None = None
    kind: ClassVar[Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        images = {"images": self.images} if self.images else {}
        return dataclasses.asdict(self.config) | images

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return a task with the paper's images, where it offers a choice."""
        return environments.with_images(task, *self.images) if self.images else task

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> Any:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        config = dataclasses.replace(self.config, learning_rate=1.0)
        agent = self.kind.create(config, task.dynamics)
        return dataclasses.replace(agent, learning_rate=jnp.float32(self.config.learning_rate))

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
      kind: class of the agent. It has `create(config, dynamics)` and a field `learning_rate`.
    """

    config: Any
    kind: ClassVar[Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.config)

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

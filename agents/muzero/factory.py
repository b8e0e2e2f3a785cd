"""MuZero by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

import environments
from agents.muzero.agent import MuZeroAgent
from agents.muzero.config import PAPER, MuZeroConfig
from agents.settings import preset_with_overrides


@dataclasses.dataclass(frozen=True)
class MuZero:
    """MuZero (`agents.registry.AgentFactory`).

    Attributes:
      config: all of its settings.
    """

    config: MuZeroConfig

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.config)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> MuZeroAgent:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        # The learning rate is an array, so that agents that differ only in it share programs.
        agent = MuZeroAgent.create(
            dataclasses.replace(self.config, learning_rate=1.0), task.dynamics
        )
        return dataclasses.replace(agent, learning_rate=jnp.float32(self.config.learning_rate))


PRESETS: Mapping[str, MuZeroConfig] = {"laptop": MuZeroConfig(), "paper": PAPER}


def make(parameters: str = "") -> MuZero:
    """Return the factory of the agent `"muzero"`, or `"muzero/paper,num_simulations=8"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    return MuZero(preset_with_overrides("MuZero", PRESETS, parameters))

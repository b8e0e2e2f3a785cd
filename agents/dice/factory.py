"""DiCE by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

import environments
from agents.dice.agent import DiceAgent
from agents.dice.config import PAPER, DiceConfig
from agents.settings import preset_with_overrides


@dataclasses.dataclass(frozen=True)
class Dice:
    """DiCE (`agents.registry.AgentFactory`).

    Attributes:
      config: all of its settings.
    """

    config: DiceConfig

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.config)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> DiceAgent:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        # The learning rate is an array, so that agents that differ only in it share programs.
        agent = DiceAgent.create(dataclasses.replace(self.config, learning_rate=1.0), task.dynamics)
        return dataclasses.replace(agent, learning_rate=jnp.float32(self.config.learning_rate))


PRESETS: Mapping[str, DiceConfig] = {"laptop": DiceConfig(), "paper": PAPER}


def make(parameters: str = "") -> Dice:
    """Return the factory of the agent `"dice"`, or `"dice/paper,exploration=random"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    return Dice(preset_with_overrides("DiCE", PRESETS, parameters))

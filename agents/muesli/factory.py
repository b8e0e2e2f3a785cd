"""Muesli by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

import environments
from agents.muesli.agent import MuesliAgent
from agents.muesli.config import PAPER, MuesliConfig
from agents.settings import preset_with_overrides


@dataclasses.dataclass(frozen=True)
class Muesli:
    """Muesli (`agents.registry.AgentFactory`).

    Attributes:
      config: all of its settings.
    """

    config: MuesliConfig

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.config)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> MuesliAgent:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        # The learning rate is an array, so that agents that differ only in it share programs.
        agent = MuesliAgent.create(
            dataclasses.replace(self.config, learning_rate=1.0), task.dynamics
        )
        return dataclasses.replace(agent, learning_rate=jnp.float32(self.config.learning_rate))


PRESETS: Mapping[str, MuesliConfig] = {"laptop": MuesliConfig(), "paper": PAPER}


def make(parameters: str = "") -> Muesli:
    """Return the factory of the agent `"muesli"`, or `"muesli/paper,model_steps=3"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    return Muesli(preset_with_overrides("Muesli", PRESETS, parameters))

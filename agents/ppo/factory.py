"""PPO and DPO by name."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

import environments
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from agents.settings import split_parameters, with_overrides


@dataclasses.dataclass(frozen=True)
class PPO:
    """PPO (`agents.registry.AgentFactory`).

    Attributes:
      config: all of its settings.
    """

    config: PPOConfig

    @property
    def settings(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.config)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        del num_steps
        self.make(task)

    def make(self, task: environments.Environment) -> PPOAgent:
        """Return the agent for a task.

        Raises:
          ValueError: if its actions are not discrete.
        """
        # The learning rate is an array, so that agents that differ only in it share programs.
        agent = PPOAgent.create(dataclasses.replace(self.config, learning_rate=1.0), task.dynamics)
        return dataclasses.replace(agent, learning_rate=jnp.float32(self.config.learning_rate))


def make(parameters: str = "", *, drift: str = "clip") -> PPO:
    """Return the factory of the agent `"ppo"`, or `"ppo/learning_rate=1e-3,num_epochs=2"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    unclear, settings = split_parameters(parameters)
    if unclear:
        raise ValueError(f"{unclear[0]!r} is no setting of PPO; expected some as num_epochs=2.")
    return PPO(with_overrides("PPO", PPOConfig(drift=drift), settings))


make_dpo = functools.partial(make, drift="dpo")

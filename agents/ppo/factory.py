"""PPO and DPO by name."""

import dataclasses
import functools

from agents.factories import ConfiguredFactory
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from agents.settings import split_parameters, with_overrides


@dataclasses.dataclass(frozen=True)
class PPO(ConfiguredFactory):
    """PPO (`agents.registry.AgentFactory`)."""

    config: PPOConfig
    kind = PPOAgent


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

"""DiCE by name."""

import dataclasses
from collections.abc import Mapping

from agents.dice.agent import DiceAgent
from agents.dice.config import PAPER, DiceConfig
from agents.factories import ConfiguredFactory
from agents.settings import preset_with_overrides

PRESETS: Mapping[str, DiceConfig] = {"laptop": DiceConfig(total_steps=None), "paper": PAPER}


@dataclasses.dataclass(frozen=True)
class Dice(ConfiguredFactory):
    """DiCE (`agents.registry.AgentFactory`)."""

    config: DiceConfig
    kind = DiceAgent


def make(parameters: str = "") -> Dice:
    """Return the factory of the agent `"dice"`, or `"dice/paper,exploration=random"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    return Dice(preset_with_overrides("DiCE", PRESETS, parameters))

"""Muesli by name."""

import dataclasses
from collections.abc import Mapping

from agents.factories import ConfiguredFactory
from agents.muesli.agent import MuesliAgent
from agents.muesli.config import PAPER, MuesliConfig
from agents.settings import preset_with_overrides, split_parameters

PRESETS: Mapping[str, MuesliConfig] = {"laptop": MuesliConfig(), "paper": PAPER}
PAPER_IMAGES = 96, 3  # Side and channels.


@dataclasses.dataclass(frozen=True)
class Muesli(ConfiguredFactory):
    """Muesli (`agents.registry.AgentFactory`)."""

    config: MuesliConfig
    kind = MuesliAgent


def make(parameters: str = "") -> Muesli:
    """Return the factory of the agent `"muesli"`, or `"muesli/paper,model_steps=3"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    config = preset_with_overrides("Muesli", PRESETS, parameters)
    is_paper = "paper" in split_parameters(parameters)[0]
    return Muesli(config, images=PAPER_IMAGES if is_paper else None)

"""MuZero by name."""

import dataclasses
from collections.abc import Mapping

from agents.factories import ConfiguredFactory
from agents.muzero.agent import MuZeroAgent
from agents.muzero.config import PAPER, MuZeroConfig
from agents.settings import preset_with_overrides, split_parameters

PRESETS: Mapping[str, MuZeroConfig] = {"laptop": MuZeroConfig(total_steps=None), "paper": PAPER}
PAPER_IMAGES = 96, 3  # Side and channels.


@dataclasses.dataclass(frozen=True)
class MuZero(ConfiguredFactory):
    """MuZero (`agents.registry.AgentFactory`)."""

    config: MuZeroConfig
    kind = MuZeroAgent


def make(parameters: str = "") -> MuZero:
    """Return the factory of the agent `"muzero"`, or `"muzero/paper,num_simulations=8"`.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    config = preset_with_overrides("MuZero", PRESETS, parameters)
    is_paper = "paper" in split_parameters(parameters)[0]
    return MuZero(config, images=PAPER_IMAGES if is_paper else None)

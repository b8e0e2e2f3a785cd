"""PPO and DPO by name."""

import dataclasses
import functools
from collections.abc import Mapping

from agents.factories import ConfiguredFactory
from agents.networks import NetworkConfig
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from agents.settings import preset_with_overrides, split_parameters

# CleanRL's `ppo.py` for classic control, and PureJaxRL's.
_CLEANRL = PPOConfig(
    learning_rate=2.5e-4,
    total_steps=None,
    num_environments=4,
    unroll_length=128,
    num_epochs=4,
    num_minibatches=4,
    value_clip=0.2,
    value_cost=0.5,
    entropy_cost=0.01,
)
# CleanRL's `ppo_atari.py`, with IMPALA's residual net in place of the three convolutions.
_ATARI = dataclasses.replace(
    _CLEANRL,
    network=NetworkConfig(torso=(256,), channels=(16, 32, 32)),
    separate_value_network=False,
    num_environments=8,
    clip=0.1,
    value_clip=0.1,
    frame_stack=4,
)
# gymnax-blines' settings of all MinAtar games, without their warm-up of the learning rate.
_MINATAR = dataclasses.replace(
    _CLEANRL,
    network=NetworkConfig(torso=(256, 256)),
    learning_rate=5e-4,
    total_steps=0,
    num_environments=64,
    num_minibatches=8,
    discount=0.999,
)
PRESETS: Mapping[str, PPOConfig] = {
    "sb3": PPOConfig(),
    "cleanrl": _CLEANRL,
    "minatar": _MINATAR,
    "atari": _ATARI,
}
# The paper of DPO has settings of Brax only: these are PPO's, with another drift.
_DPO_PRESETS = {
    name: dataclasses.replace(PRESETS[name], drift="dpo")
    for name in ("cleanrl", "minatar", "atari")
}


@dataclasses.dataclass(frozen=True)
class PPO(ConfiguredFactory):
    """PPO (`agents.registry.AgentFactory`)."""

    config: PPOConfig
    for_images: PPOConfig | None = None
    kind = PPOAgent


def make(
    parameters: str = "", *, name: str = "PPO", presets: Mapping[str, PPOConfig] = PRESETS
) -> PPO:
    """Return the factory of the agent `"ppo"`, or `"ppo/cleanrl,num_epochs=2"`.

    Without a preset it has the first one, and `atari` on images.

    Raises:
      ValueError: if a setting is unknown, cannot be parsed, or is out of range.
    """
    config = preset_with_overrides(name, presets, parameters)
    if split_parameters(parameters)[0]:
        return PPO(config)
    try:
        return PPO(config, preset_with_overrides(name, presets, f"atari,{parameters}"))
    except ValueError as error:
        raise ValueError(
            f"{error} So it is on images, where {name} has the preset atari; to have one preset on"
            f" all tasks, name it first: {next(iter(presets))},{parameters}."
        ) from None


make_dpo = functools.partial(make, name="DPO", presets=_DPO_PRESETS)

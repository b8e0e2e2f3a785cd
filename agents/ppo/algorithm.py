"""PPO and DPO by name."""

import dataclasses
import functools
from collections.abc import Mapping

from agents.making import make_agent
from agents.networks import NetworkConfig
from agents.ppo.agent import PPOAgent
from agents.ppo.config import PPOConfig
from agents.registry import Algorithm
from agents.rule_agent import AgentConfig
from agents.search_space import (
    ENTROPY,
    RATE,
    SIZES,
    TRACES,
    Choice,
    Ranges,
    Settings,
    Shared,
    on_policy_settings,
)

_SMALLEST_MINIBATCH = 8  # Transitions, over which a tuned PPO normalises advantages.

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
_PRESETS: Mapping[str, PPOConfig] = {
    "sb3": PPOConfig(),
    "cleanrl": _CLEANRL,
    "minatar": _MINATAR,
    "atari": _ATARI,
}
_RANGES: Ranges = {
    **SIZES,
    "unroll_length": Choice((16, 64, 256, 1024), may_be_lower=True, may_be_higher=True),
    "learning_rate": RATE,
    "entropy_cost": ENTROPY,
    "num_epochs": Choice((1, 2, 4, 8, 16), may_be_higher=True),
    "num_minibatches": Choice((1, 4, 16, 64), may_be_higher=True),
    "gae_lambda": TRACES,
}


def _tuned(shared: Shared, settings: Settings, drift: str = "clip") -> PPOConfig:
    return PPOConfig(
        **on_policy_settings(shared, settings),
        separate_value_network=False,
        drift=drift,
        num_epochs=settings.get("num_epochs", 4),
        num_minibatches=_num_minibatches(shared.agent, settings.get("num_minibatches", 4)),
        gae_lambda=settings.get("gae_lambda", PPOConfig.gae_lambda),
        value_cost=0.5,
        entropy_cost=settings["entropy_cost"],
    )


def _num_minibatches(agent: AgentConfig, wanted: int) -> int:
    """Return the number wanted, or as many as have enough samples."""
    if agent.network.memory:
        return min(wanted, agent.num_environments)
    return max(1, min(wanted, agent.steps_per_update // _SMALLEST_MINIBATCH))


PPO = Algorithm(
    name="ppo",
    paper="Proximal Policy Optimization, Schulman et al. 2017, arXiv 1707.06347",
    presets=_PRESETS,
    images="atari",
    make=functools.partial(make_agent, PPOAgent),
    ranges=_RANGES,
    tuned=_tuned,
)
# The paper of DPO has settings of Brax only: these are PPO's, with another drift.
DPO = dataclasses.replace(
    PPO,
    name="dpo",
    paper="Discovered Policy Optimisation, Lu et al. 2022, arXiv 2210.05639",
    presets={
        name: dataclasses.replace(_PRESETS[name], drift="dpo")
        for name in ("cleanrl", "minatar", "atari")
    },
    tuned=functools.partial(_tuned, drift="dpo"),
)

"""Evaluation on a laptop: minutes on two cores.

The settings depend on the family of the first environment or suite: `--suite=crafter` without
`--config` uses `get_config("crafter")`. On the small tasks, Disco103 does well at these learning
rates. Networks are small, and images are cut into patches. Grid-worlds, gymnax and all others that
are not named here have the defaults of `evaluation.config`.
"""

import dataclasses

from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig

_IMAGES = (
    "images",  # Of a family whose environments observe different things.
    *("atari", "atari100k", "procgen", "procgen_unseen", "procgen_all", "crafter"),
    *("dmlab", "dmlab_test", "dmlab_r2d2", "dmlab_r2d2_test"),
)
_AGENT = RuleAgentConfig(
    network=NetworkConfig(torso=(256,), model=64, head=(64,)),
    learning_rate=1e-2,
    num_environments=8,
    unroll_length=16,
    batch_size=16,
    replay_ratio=0.5,
    replay_capacity=1_024,
)


def get_config(family: str = "") -> EvaluationConfig:
    """Return the settings of an evaluation.

    Args:
      family: of the environments: the part of their names before the slash. Unknown families have
        the settings for vector and grid observations.
    """
    if family in (*_IMAGES, "nethack"):
        network = NetworkConfig(
            torso=(64,), channels=(16, 32), blocks=1, patch=4, model=64, head=(64,)
        )
        stack = 1 if family == "nethack" else 4
        return EvaluationConfig(
            dataclasses.replace(_AGENT, network=network, learning_rate=3e-4, frame_stack=stack),
            seeds=2,
            # Episodes are long, above all those of untrained agents in NetHack.
            budget=60_000 if family == "nethack" else 20_000,
            score_window=0.5,
            baselines=("ppo",),
        )
    if family in ("sokoban", "minatar"):
        network = dataclasses.replace(_AGENT.network, channels=(16,), blocks=0)
        agent = dataclasses.replace(_AGENT, network=network)
        config = EvaluationConfig(agent, seeds=3, budget=200_000, baselines=("ppo",))
        if family == "sokoban":
            return config
        # Chosen on breakout (docs/measurements/contenders.md). Rules learn four times from a
        # transition, in updates of 128.
        return dataclasses.replace(
            config,
            rule_num_environments=2,
            rule_replay_ratio=0.75,
            rule_lifetime=0,
            rule_reward_scale=0.1,
        )
    if family == "bsuite":
        # bsuite's scores are defined for one environment. Its budgets are small, so replay is high.
        agent = dataclasses.replace(_AGENT, num_environments=1, replay_ratio=1.0)
        return EvaluationConfig(agent, seeds=3, budget=30_000, baselines=("ppo",))
    if family in ("control_proprio", "control_vision"):
        # Actions are continuous, and rules need discrete ones.
        return EvaluationConfig(seeds=3, budget=50_000, baselines=())
    return EvaluationConfig()

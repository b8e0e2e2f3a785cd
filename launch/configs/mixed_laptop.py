"""A small discovery on mixed suites: two Atari games, ProcGen, NetHack, two grid-worlds.

A demonstration on two cores: a few minutes of compilation, then ten seconds per meta-step. So few
tasks are not enough for a useful rule.
"""

import dataclasses

from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from launch.configs import grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig, ProbeConfig

SUITE = (
    "atari/Breakout",
    "atari/Pong",
    "procgen/coinrun",
    "nethack/NetHackScore",
    "grid57/00_dense_fixed",
    "grid57/03_sparse_random",
)


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    laptop = grid57_laptop.get_config()
    return dataclasses.replace(
        laptop,
        suite=",".join(SUITE),
        meta_steps=20,
        checkpoint_interval=10,
        log_interval=1,
        agent=RuleAgentConfig(
            network=NetworkConfig(
                torso=(32,), channels=(4, 8), blocks=1, patch=4, model=32, head=(32,)
            ),
            learning_rate=1e-3,
            num_environments=4,
            unroll_length=16,
            batch_size=8,
            replay_ratio=0.5,
            replay_capacity=256,
            frame_stack=2,
        ),
        population=dataclasses.replace(laptop.population, size=len(SUITE)),
        meta=dataclasses.replace(
            laptop.meta,
            num_updates=4,
            validation_trajectories=4,
            validation_from_training=False,
        ),
        probe=ProbeConfig(),
    )

"""IRIS' presets: the paper's settings by game, and those of `tiles`, for a laptop."""

import dataclasses

from agents.iris.config import IrisConfig

_64_TOKENS = (1, 1, 1, 1)  # One resolution less than for 16 tokens.
# 30 GiB of frames of 64x64 RGB pixels: config/datasets/default.yaml, max_ram_usage.
_LONG_REPLAY = 2_600_000

# Games of the paper's settings that differ (appendices E and H).
GAMES = {
    "atari100k/Freeway": {"temperature": 0.01},
}


def paper(tokens: int = 16) -> IrisConfig:
    """Return the paper's settings for Atari 100k, with 16 or 64 tokens per frame (appendix E)."""
    config = IrisConfig()
    return dataclasses.replace(config, multipliers=_64_TOKENS) if tokens == 64 else config


def long_run(config: IrisConfig) -> IrisConfig:
    """Return the settings for 10 million steps: one update in 50 steps (appendix F).

    The replay has as many steps as the authors' limit of memory holds.
    """
    updates = max(1, config.epoch_updates // 50)
    return dataclasses.replace(config, epoch_updates=updates, replay_capacity=_LONG_REPLAY)


def tiles() -> IrisConfig:
    """Return the variant for simple images: small networks, few updates, on two cores."""
    return IrisConfig(
        vocabulary=32,
        code_size=32,
        latent_channels=32,
        channels=32,
        groups=8,
        tile=16,
        multipliers=(1,),
        residual_blocks=1,
        attention_resolutions=(),
        memory_steps=5,
        layers=2,
        heads=4,
        width=64,
        dropout=0.0,
        actor_channels=(32, 32),
        lstm_size=64,
        horizon=5,
        burn_in=4,
        discount=0.97,
        entropy_cost=0.01,
        learning_rate=1e-3,
        tokenizer_batch=16,
        world_model_batch=8,
        actor_critic_batch=16,
        epoch_steps=64,
        epoch_updates=16,
        tokenizer_start=2,
        world_model_start=28,
        actor_critic_start=160,
        replay_capacity=20_000,
        num_environments=8,
    )

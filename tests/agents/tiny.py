"""World models as small as can be."""

import dataclasses
from typing import Any

from agents import registry
from agents.dreamer.config import DreamerConfig, preset
from agents.iris.config import IrisConfig
from agents.registry import ConfiguredAlgorithm

DREAMER = dataclasses.replace(
    preset("nature"),
    deterministic=32,
    latents=4,
    classes=4,
    units=16,
    layers=1,
    horizon=4,
    imagine_last=3,
    num_environments=2,
    batch_size=2,
    batch_length=8,
    prefill=8,
    replay_capacity=200,
    replay_ratio=4.0,
)

IRIS = IrisConfig(
    vocabulary=8,
    code_size=4,
    latent_channels=8,
    channels=8,
    groups=2,
    tile=32,
    multipliers=(1,),
    residual_blocks=1,
    memory_steps=4,
    layers=1,
    heads=2,
    width=16,
    actor_channels=(2, 2),
    lstm_size=8,
    horizon=3,
    burn_in=2,
    tokenizer_batch=4,
    world_model_batch=3,
    actor_critic_batch=2,
    epoch_steps=16,
    epoch_updates=3,
    tokenizer_start=0,
    world_model_start=1,
    actor_critic_start=2,
    replay_capacity=512,
    num_environments=2,
)


def dreamer(config: DreamerConfig) -> Any:
    return ConfiguredAlgorithm(registry.find("dreamer"), config)


def iris(config: IrisConfig) -> Any:
    return ConfiguredAlgorithm(registry.find("iris"), config)

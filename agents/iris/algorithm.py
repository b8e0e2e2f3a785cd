"""IRIS by name: its settings on a task, and the checks of a run."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dm_env import specs

import environments
from agents.iris import tokenizer
from agents.iris.agent import IrisAgent
from agents.iris.config import IrisConfig, paper, tiles
from agents.iris.model import Model
from agents.registry import Algorithm
from disco_common.configuration import upgrade_settings


def make(config: IrisConfig, task: environments.Environment) -> IrisAgent:
    """Return the agent for an environment.

    Raises:
      ValueError: if IRIS does not support the observations or actions, or the file of the
        perceptual loss is none.
    """
    spec: Any = task.dynamics.observation_spec()
    if not isinstance(task.dynamics.action_spec(), specs.DiscreteArray):
        raise ValueError(
            f"IRIS cannot act in {task.name}, whose actions are"
            f" {task.dynamics.action_spec()}; expected a choice."
        )
    _check_image(config, task.name, spec)
    number = environments.num_actions(task.dynamics)
    params = _perceptual(config.perceptual_file) if config.perceptual_file else None
    return IrisAgent(Model(config, spec.shape[0], spec.shape[2], number), params)


@functools.lru_cache(maxsize=2)
def _perceptual(file: str) -> Any:
    """Return a file's parameters of the perceptual loss, read once."""
    return tokenizer.load(file)


def _check(config: IrisConfig, task: environments.Environment, num_steps: int) -> None:
    make(config, task)
    needed = config.epoch_steps * (config.tokenizer_start + 1)
    if num_steps < needed:
        raise ValueError(
            f"IRIS learns from environment step {needed} on (tokenizer_start"
            f" {config.tokenizer_start}, epoch_steps {config.epoch_steps}); the run on"
            f" {task.name} has {num_steps} steps."
        )


def _check_image(config: IrisConfig, name: str, spec: Any) -> None:
    shape = getattr(spec, "shape", None)
    if not isinstance(spec, specs.Array) or len(spec.shape) != 3 or spec.dtype != np.uint8:
        raise ValueError(
            f"IRIS cannot learn {name}, whose observation is {spec}; expected one image, uint8"
            " [side, side, channels]. pixels/<name> draws a board as one."
        )
    height, width, channels = spec.shape
    # Each convolution of the actor-critic halves the side.
    actor = config.actor_patch * 2 ** len(config.actor_channels)
    divisor = math.lcm(config.downsampling, actor)
    if height != width or height % divisor or channels not in (1, 3):
        raise ValueError(
            f"IRIS cannot learn {name}, whose images are of {shape}; expected a square of a side"
            f" that {divisor} divides, with 1 or 3 channels."
        )
    if config.perceptual_file and channels != 3:
        raise ValueError(
            f"IRIS' perceptual_file is for images of 3 channels; those of {name} have {channels}."
        )


def configs(words: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    """Return the settings that the words of `"iris/WORD,WORD..."` name.

    A word is `tiles`, for the variant of simple images, the default; `paper`, for the paper's IRIS;
    with it `64_tokens`, for 64 tokens per frame instead of 16, or `10m`, for the paper's setting of
    10 million steps.

    Raises:
      ValueError: if a word is none of these.
    """
    if not (set(words) <= {"tiles"} or {"paper"} <= set(words) <= {"paper", "64_tokens", "10m"}):
        raise ValueError(
            f"{','.join(words)!r} does not say which IRIS; expected tiles, or paper, or paper with"
            " some of 64_tokens and 10m, as paper,64_tokens; or settings as horizon=10."
        )
    if "paper" not in words:
        return tiles(), {}
    config = paper(64 if "64_tokens" in words else 16, is_long="10m" in words)
    # The one game whose settings differ (appendix H).
    return config, {"atari100k/Freeway": dataclasses.replace(config, temperature=0.01)}


def _display_name(name: str) -> str:
    """Return a name that says which IRIS it is."""
    family, _, parameters = name.partition("/")
    words = [x.strip() for x in parameters.split(",") if x.strip()]
    if not {"paper", "tiles"} & set(words):
        words = ["tiles", *words]
    return f"{family}/{','.join(words)}"


def _variant(config: IrisConfig) -> str:
    return "tiles" if config.tile else "paper"


# What settings of earlier versions always are now.
_GONE = {
    "commitment_cost": 1.0,
    "lambda_": 0.95,
    "epsilon": 0.01,
    "evaluation_temperature": 0.5,
    "weight_decay": 0.01,
    "max_gradient_norm": 10.0,
    "ends_at_life_loss": True,
}


def _upgrade(stored: Mapping[str, Any], config: IrisConfig) -> Mapping[str, Any]:
    """Return settings that an earlier version stored, with a switch for each difference."""
    if "commitment_cost" not in stored:
        return stored
    gone = _GONE | {
        "tile": config.tile,
        "patch": config.tile or 1,
        "actor_patch": config.actor_patch,
        "squared_cost": 10.0 if config.tile else 0.0,
        "revival_updates": 400 if config.tile else 0,
        "tokenizer_decay_updates": 1600 if config.tile else 0,
        "learns_after_end": not config.tile,
    }
    return upgrade_settings("IRIS", stored, config, gone)


IRIS = Algorithm(
    name="iris",
    paper="IRIS, Micheli et al. 2023, arXiv 2209.00588",
    presets={"tiles": tiles()},
    make=make,
    check=_check,
    configs=configs,
    display_name=_display_name,
    variant=_variant,
    upgrade=_upgrade,
)

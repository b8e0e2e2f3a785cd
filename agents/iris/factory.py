"""IRIS by name: its settings on a task, and the checks of a run."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env import specs

import environments
from agents import earlier_settings
from agents.iris import perceptual
from agents.iris.agent import IrisAgent
from agents.iris.config import IrisConfig
from agents.iris.model import Model
from agents.iris.presets import GAMES, long_run, paper, tiles
from agents.settings import split_parameters, with_overrides
from agents.update_memory import require_fit


@dataclasses.dataclass(frozen=True)
class Iris:
    """IRIS (`agents.registry.AgentFactory`).

    Attributes:
      config: all of its settings.
      of_game: settings for some environments, by name, instead of `config`.
      table_name: what it is called beside others.
    """

    config: IrisConfig
    of_game: Mapping[str, IrisConfig] = dataclasses.field(default_factory=dict)
    table_name: str = "iris"

    @property
    def settings(self) -> Mapping[str, Any]:
        games = {name: dataclasses.asdict(x) for name, x in self.of_game.items()}
        return dataclasses.asdict(self.config) | ({"of_game": games} if games else {})

    def present(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `settings` that an earlier version stored as today's.

        Raises:
          ValueError: if they are of an autoencoder that is gone.
        """
        if "commitment_cost" not in stored:
            return stored
        own = {"of_game": self.of_game}
        return earlier_settings.present("IRIS", _switches, stored, self.config, **own)

    def config_for(self, task: environments.Environment) -> IrisConfig:
        """Return the settings on a task."""
        return self.of_game.get(task.name, self.config)

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return a task with images of 64x64 RGB pixels, where it offers a choice."""
        return environments.with_images(task, side=64, channels=3)

    def make(self, task: environments.Environment) -> IrisAgent:
        """Return the agent for an environment; for equal specs it returns the same object.

        Raises:
          ValueError: if IRIS does not support the observations or actions, or the file of the
            perceptual loss is none.
        """
        config = self.config_for(task)
        spec: Any = task.dynamics.observation_spec()
        if not isinstance(task.dynamics.action_spec(), specs.DiscreteArray):
            raise ValueError(
                f"IRIS cannot act in {task.name}, whose actions are"
                f" {task.dynamics.action_spec()}; expected a choice."
            )
        _check_image(config, task.name, spec)
        return _agent(config, spec.shape[0], spec.shape[2], environments.num_actions(task.dynamics))

    def check(self, task: environments.Environment, num_steps: int) -> None:
        agent = self.make(task)
        config = agent.model.config
        needed = config.epoch_steps * (config.tokenizer_start + 1)
        if num_steps < needed:
            raise ValueError(
                f"IRIS learns from environment step {needed} on (tokenizer_start"
                f" {config.tokenizer_start}, epoch_steps {config.epoch_steps}); the run on"
                f" {task.name} has {num_steps} steps."
            )
        require_fit(
            "IRIS",
            agent.update_bytes(),
            f"tokenizer_batch (now {config.tokenizer_batch}) or world_model_batch"
            f" ({config.world_model_batch})",
        )


def _switches(config: IrisConfig, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    del stored
    patches = {"patch": config.tile or 1, "actor_patch": config.actor_patch}
    return patches | {"tile": config.tile}


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


@functools.lru_cache(maxsize=8)
def _agent(config: IrisConfig, size: int, channels: int, num_actions: int) -> IrisAgent:
    """Return an agent; equal arguments give the same object, so that it is compiled once."""
    model = Model(config, size, channels, num_actions)
    params = perceptual.load(config.perceptual_file) if config.perceptual_file else None
    return IrisAgent(model, params)


_WORDS = ("tiles", "paper", "64_tokens", "10m")


def make(parameters: str = "") -> Iris:
    """Return the factory of the agent `"iris"`, or `"iris/WORD,WORD..."`.

    A word is `tiles`, for the variant of simple images, the default; `paper`, for the paper's IRIS;
    with it `64_tokens`, for 64 tokens per frame instead of 16, and `10m`, for the paper's setting
    of 10 million steps; or a setting, such as `horizon=10`. Settings are applied last.

    Raises:
      ValueError: if a word is none of these, or a setting cannot be parsed.
    """
    words, settings = split_parameters(parameters)
    if unknown := [word for word in words if word not in _WORDS]:
        raise ValueError(
            f"{unknown[0]!r} does not say which IRIS; expected some of {', '.join(_WORDS)}, or"
            " settings as horizon=10."
        )
    if "tiles" in words and len(words) > 1:
        raise ValueError(f"{parameters!r} names two IRIS; expected tiles, or words of the paper's.")
    if "paper" not in words and words not in ([], ["tiles"]):
        raise ValueError(
            f"{words[0]!r} is a variant of the paper's IRIS; expected paper,{words[0]}."
        )
    variant = [] if {"tiles", "paper"} & set(words) else ["tiles"]
    named = f"iris/{','.join([*variant, *map(str.strip, filter(None, parameters.split(',')))])}"
    if "paper" not in words:
        return Iris(with_overrides("IRIS", tiles(), settings), table_name=named)
    config = paper(64 if "64_tokens" in words else 16)
    if "10m" in words:
        config = long_run(config)
    of_game = {
        name: with_overrides("IRIS", dataclasses.replace(config, **changes), settings)
        for name, changes in GAMES.items()
    }
    return Iris(with_overrides("IRIS", config, settings), of_game, named)

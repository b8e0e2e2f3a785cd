"""Dreamer by name: its settings on a task, and the checks of a run."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dm_env import specs

import environments
from agents.dreamer.agent import ActionRange, DreamerAgent, named
from agents.dreamer.config import (
    ABLATIONS,
    FAMILIES,
    SIZES,
    VERSIONS,
    DreamerConfig,
    laptop,
    preset,
)
from agents.dreamer.distributions import Specs, is_image
from agents.dreamer.model import Model
from agents.dreamer.networks import ActionSpace
from agents.registry import Algorithm
from disco_common.configuration import upgrade_settings

_SMALLEST_IMAGE = 8


def make(config: DreamerConfig, task: environments.Environment) -> DreamerAgent:
    """Return the agent for a task.

    Raises:
      ValueError: if Dreamer cannot encode its observations, or act there.
    """
    observations = named(task.dynamics.observation_spec())
    _check_observations(task.name, observations)
    spec = task.dynamics.action_spec()
    is_discrete, action_range = isinstance(spec, specs.DiscreteArray), None
    if not is_discrete:
        action_range = _action_range(task.name, spec)
    size = environments.num_actions(task.dynamics) if is_discrete else spec.shape[0]
    model = Model.make(config, observations, ActionSpace(size, is_discrete))
    return DreamerAgent(model, action_range)


def _check(config: DreamerConfig, task: environments.Environment, num_steps: int) -> None:
    """Refuse a run whose replay can never have `prefill` sequences."""
    make(config, task)
    number = config.num_environments
    rows = max(-(-num_steps // number), config.batch_length + 1)
    most = number * (min(config.replay_capacity // number, rows) - config.batch_length)
    if most < config.prefill:
        raise ValueError(
            f"Dreamer learns once its replay has {config.prefill} sequences (prefill); this one can"
            f" have {max(most, 0)}, with replay_capacity {config.replay_capacity}, batch_length"
            f" {config.batch_length} and {number} environments in a run of {num_steps} steps."
        )


def _check_observations(task: str, observations: Specs) -> None:
    if not observations:
        raise ValueError(f"{task} has no observation; Dreamer expects some.")
    for name, spec in observations.items():
        is_known = isinstance(spec, specs.Array) and spec.dtype.kind in "biuf"
        is_small = is_known and is_image(spec) and min(spec.shape[:2]) < _SMALLEST_IMAGE
        if not is_known or is_small or not math.prod(spec.shape):
            raise ValueError(
                f"Dreamer cannot encode {task}'s observation {name!r}, {spec}; expected an array of"
                f" some numbers, and images with sides of at least {_SMALLEST_IMAGE}."
            )
    images = {x.shape[:2] for x in observations.values() if is_image(x)}
    if len(images) > 1:
        raise ValueError(f"{task} has images of {sorted(images)}; Dreamer expects one size.")


def _action_range(task: str, spec: Any) -> ActionRange:
    """Return the bounds of continuous actions, which must be finite."""
    is_bounded = (
        isinstance(spec, specs.BoundedArray)
        and len(spec.shape) == 1
        and np.issubdtype(spec.dtype, np.floating)
        and np.isfinite([spec.minimum, spec.maximum]).all()
    )
    if not is_bounded:
        raise ValueError(
            f"Dreamer cannot act in {task}, whose actions are {spec}; expected a choice, or a"
            " vector of numbers between finite bounds."
        )
    low, high = (np.broadcast_to(x, spec.shape).tolist() for x in (spec.minimum, spec.maximum))
    return ActionRange(tuple(low), tuple(high))


def configs(words: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    """Return the settings that the words of `"dreamer/WORD,WORD..."` name.

    A word is a version (`nature` or `v1`), a size of it, an ablation (`config.ABLATIONS`), or
    `paper` for the paper's size, replay ratio and number of environments on each benchmark instead
    of a laptop's.

    Raises:
      ValueError: if a word is none of these.
    """
    version = next((word for word in words if word in VERSIONS), VERSIONS[0])
    kinds = {"version": VERSIONS, "size": SIZES[version], "ablation": ABLATIONS}
    kinds["scale"] = ("paper",)
    taken: dict[str, str] = {}
    for word in words:
        kind = next((kind for kind, known in kinds.items() if word in known), "")
        if not kind or kind in taken:
            known = "; ".join(f"{kind}: {', '.join(known)}" for kind, known in kinds.items())
            raise ValueError(
                f"{word!r} does not say which Dreamer; expected at most one of each of {known};"
                " or settings as horizon=10."
            )
        taken[kind] = word
    own = {kind: taken[kind] for kind in ("size", "ablation") if kind in taken}
    if "scale" not in taken:
        return laptop(version, **own), {}
    by_task = {family: preset(version, **own, family=family) for family in FAMILIES}
    return preset(version, **own), by_task


# What settings of earlier versions always are now.
_GONE = {
    "convolutions": "pooled",
    "bins": 255,
    "reconstruction_cost": 1.0,
    "reward_cost": 1.0,
    "continue_cost": 1.0,
    "actor_cost": 1.0,
    "critic_cost": 1.0,
    "recorded_first_weight": False,
    "lambda_": 0.95,
    "return_norm_decay": 0.99,
    "slow_critic_decay": 0.98,
    "rms_decay": 0.999,
}


def _upgrade(stored: Mapping[str, Any], config: DreamerConfig) -> Mapping[str, Any]:
    """Return settings that an earlier version stored, with a switch for each difference."""
    if "architecture" not in stored:
        return stored
    gone = _GONE | {
        "architecture": config.version,
        "hidden": stored.get("units"),
        "norm": config.norm,
        "learns_discount": not config.is_v1,
        "dynamics_gradients": config.is_v1,
        "critic_replay_cost": 0.0 if config.is_v1 else 0.3,
        "optimizer": "adam" if config.is_v1 else "laprop",
        "online_queue": not config.is_v1,
        "stored_latents": not config.is_v1,
    }
    return upgrade_settings("Dreamer", stored, config, gone)


DREAMER = Algorithm(
    name="dreamer",
    paper="DreamerV3, Hafner et al. 2025, Nature 640, arXiv 2301.04104",
    presets={"laptop": laptop()},
    make=make,
    check=_check,
    configs=configs,
    variant=operator.attrgetter("version"),
    upgrade=_upgrade,
)

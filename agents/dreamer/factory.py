"""Dreamer by name: its settings on a task, and the checks of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dm_env import specs

import environments
from agents.dreamer import learner
from agents.dreamer.agent import ACTION, ActionRange, DreamerAgent, named
from agents.dreamer.config import ABLATIONS, VERSIONS, DreamerConfig
from agents.dreamer.model import Model, make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.observations import Specs, is_image
from agents.dreamer.presets import FAMILIES, laptop, preset, sizes
from agents.registry import Algorithm, Configs
from agents.settings import present_settings
from agents.update_memory import device_memory, free_memory, require_fit

_SMALLEST_IMAGE = 8


def make(config: DreamerConfig, task: environments.Environment) -> DreamerAgent:
    """Return the agent for a task.

    Raises:
      ValueError: if Dreamer cannot encode its observations, or act there.
    """
    _check_observations(task)
    _check_actions(task)
    spec = task.dynamics.action_spec()
    is_discrete = isinstance(spec, specs.DiscreteArray)
    size = environments.num_actions(task.dynamics) if is_discrete else spec.shape[0]
    model = make_model(config, _observations(task), {ACTION: ActionPart(size, is_discrete)})
    return DreamerAgent(model, None if is_discrete else _action_range(spec))


def _check(config: DreamerConfig, task: environments.Environment, num_steps: int) -> None:
    _check_sizes(make(config, task).model, num_steps, task.is_host)


def _observed(config: DreamerConfig, task: environments.Environment) -> environments.Environment:
    """Return a task with the paper's images, where it offers a choice."""
    return environments.with_images(task, config.image_side, config.image_channels)


def _check_observations(task: environments.Environment) -> None:
    observations = _observations(task)
    if not observations:
        raise ValueError(f"{task.name} has no observation; Dreamer expects some.")
    for name, spec in observations.items():
        if not isinstance(spec, specs.Array):
            raise ValueError(
                f"Dreamer cannot encode {task.name}'s observation {name!r}, which is"
                f" {type(spec).__name__}; expected an array, or a dictionary of arrays."
            )
        if not math.prod(spec.shape):
            raise ValueError(
                f"Dreamer cannot encode {task.name}'s observation {name!r} of {spec.shape};"
                " expected some numbers."
            )
        if spec.dtype.kind not in "biuf":
            raise ValueError(
                f"Dreamer cannot encode {task.name}'s observation {name!r} of {spec.dtype};"
                " expected numbers."
            )
        if is_image(spec) and min(spec.shape[:2]) < _SMALLEST_IMAGE:
            raise ValueError(
                f"Dreamer cannot encode {task.name}'s image {name!r} of {spec.shape}; expected"
                f" sides of at least {_SMALLEST_IMAGE}."
            )
    images = {x.shape[:2] for x in observations.values() if is_image(x)}
    if len(images) > 1:
        raise ValueError(f"{task.name} has images of {sorted(images)}; Dreamer expects one size.")


def _check_actions(task: environments.Environment) -> None:
    spec = task.dynamics.action_spec()
    is_bounded = (
        isinstance(spec, specs.BoundedArray)
        and len(spec.shape) == 1
        and np.issubdtype(spec.dtype, np.floating)
        and np.isfinite([spec.minimum, spec.maximum]).all()
    )
    if not isinstance(spec, specs.DiscreteArray) and not is_bounded:
        raise ValueError(
            f"Dreamer cannot act in {task.name}, whose actions are {spec}; expected a choice,"
            " or a vector of numbers between finite bounds."
        )


def configs(words: Sequence[str]) -> Configs:
    """Return the settings that the words of `"dreamer/WORD,WORD..."` name.

    A word is a version (`nature` or `v1`), a size of it, an ablation (`config.ABLATIONS`), or
    `paper` for the paper's size, replay ratio and number of environments on each benchmark instead
    of a laptop's.

    Raises:
      ValueError: if a word is none of these.
    """
    taken: dict[str, str] = {}
    version = next((word for word in words if word in VERSIONS), VERSIONS[0])
    kinds = {"version": VERSIONS, "size": sizes(version), "ablation": ABLATIONS}
    kinds["scale"] = ("paper",)
    for word in words:
        kind = next((kind for kind, known in kinds.items() if word in known), "")
        if not kind or kind in taken:
            known = "; ".join(f"{kind}: {', '.join(known)}" for kind, known in kinds.items())
            raise ValueError(
                f"{word!r} does not say which Dreamer; expected at most one of each of {known};"
                " or settings as horizon=10."
            )
        taken[kind] = word
    own = {x: taken.get(x, "") for x in ("size", "ablation")}
    if "scale" not in taken:
        return Configs(laptop(version, **own))
    by_task = {family: preset(version, **own, family=family) for family in FAMILIES}
    return Configs(preset(version, **own), by_task)


def _replay_steps(config: DreamerConfig, num_steps: int) -> int:
    """Return the replay's capacity in steps of all environments, at most what a run fills."""
    number = config.num_environments
    rows = max(-(-num_steps // number), config.batch_length + 1)
    return number * min(config.replay_capacity // number, rows)


def _check_sizes(model: Model, num_steps: int, is_host: bool) -> None:
    """Check that a run can learn and fits in memory, before anything is allocated or compiled.

    For host environments the replay is in the host's memory, otherwise in the device's. On the host
    it counts twice, because a checkpoint copies it.

    Raises:
      ValueError: if the replay of such a run can never contain `prefill` sequences, or if an update
        or the replay does not fit in memory.
    """
    config, capacity = model.config, _replay_steps(model.config, num_steps)
    most = capacity - config.num_environments * config.batch_length
    if most < config.prefill:
        raise ValueError(
            f"Dreamer learns once its replay has {config.prefill} sequences (prefill); this one can"
            f" have {max(most, 0)}, with replay_capacity {config.replay_capacity}, batch_length"
            f" {config.batch_length} and {config.num_environments} environments in a run of"
            f" {num_steps} steps."
        )
    needed = learner.update_bytes(model)
    require_fit(
        "Dreamer",
        needed,
        f"size, batch_size (now {config.batch_size}), batch_length ({config.batch_length}) or"
        f" horizon ({config.horizon})",
    )
    own, host = device_memory(), free_memory()
    replay, left = capacity * _step_bytes(model), host - (0 if own else needed)
    copy = ""
    if own and not is_host:
        left = own - needed
    else:
        replay, copy = 2 * replay, " with the copy that a checkpoint takes"
    if replay > left:
        raise ValueError(
            f"Dreamer's replay needs {replay / 1e9:.1f} GB{copy},"
            f" and {left / 1e9:.1f} GB are free; expected a smaller replay_capacity (now"
            f" {config.replay_capacity})."
        )


def _step_bytes(model: Model) -> int:
    """Return the replay's bytes per environment step."""
    config = model.config
    seen = sum(math.prod(x.shape) * x.dtype.itemsize for x in model.observations.values())
    done = 4 * sum(1 if part.is_discrete else part.size for part in model.actions.values())
    latents = 4 * config.deterministic + config.latents if config.stores_latents else 0
    reward_and_discount, flags = 8, 2
    # The environment's action, and the agent's own.
    return seen + 2 * done + latents + reward_and_discount + flags


def _observations(task: environments.Environment) -> Specs:
    return named(task.dynamics.observation_spec())


def _action_range(spec: Any) -> ActionRange:
    """Return the bounds of continuous actions."""
    low, high = (np.broadcast_to(x, spec.shape).tolist() for x in (spec.minimum, spec.maximum))
    return ActionRange(tuple(low), tuple(high))


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
_GONE_BY_VERSION = {
    "nature": {
        "norm": "rms",
        "learns_discount": True,
        "dynamics_gradients": False,
        "critic_replay_cost": 0.3,
        "optimizer": "laprop",
        "online_queue": True,
        "stored_latents": True,
    },
    "v1": {
        "norm": "layer",
        "learns_discount": False,
        "dynamics_gradients": True,
        "critic_replay_cost": 0.0,
        "optimizer": "adam",
        "online_queue": False,
        "stored_latents": False,
    },
}


def _present(stored: Mapping[str, Any], config: DreamerConfig) -> Mapping[str, Any]:
    """Return settings that an earlier version stored, with a switch for each difference."""
    if "architecture" not in stored:
        return stored
    own = {"architecture": config.version, "hidden": stored.get("units")}
    gone = own | _GONE | _GONE_BY_VERSION[config.version]
    return present_settings("Dreamer", stored, config, gone)


DREAMER = Algorithm(
    name="dreamer",
    paper="DreamerV3, Hafner et al. 2025, Nature 640, arXiv 2301.04104",
    presets={"laptop": laptop()},
    make=make,
    check=_check,
    configs=configs,
    observed=_observed,
    present=_present,
)

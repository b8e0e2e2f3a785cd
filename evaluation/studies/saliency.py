"""Saliency: the parts of an observation on which an agent's predictions depend."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

import disco
from agents.history import History
from agents.rule_agent import RuleAgent
from disco import values
from disco.discovered import DiscoveredRule
from disco.types import taken
from evaluation.studies.predictions import slice_trajectory


def saliency(
    rule: DiscoveredRule,
    agent: RuleAgent,
    params: disco.Params,
    trajectory: disco.Trajectory,
    row: int,
    key: PRNGKeyArray,
    num_probes: int = 16,
) -> dict[str, Float[np.ndarray, "*parts"]]:
    """Return how strongly y, z, policy and value depend on each part of an observation.

    For each quantity this is the norm of the derivatives of all its numbers. It is estimated with
    random signs (Hutchinson's estimator), because y and z have hundreds of numbers.

    Args:
      rule: which defines the bins of q.
      agent: whose network it is.
      params: of the network.
      trajectory: of one environment.
      row: index of the observation, which must not be the last.
      key: for the random signs.
      num_probes: number of draws of signs.

    Returns:
      By quantity, an array like the observation (like the newest frame, if frames are stacked).

    Raises:
      ValueError: if the observation is not one array of numbers.
    """
    if agent.network.history.memory:
        trajectory = slice_trajectory(agent, trajectory, 0, row + 1)
    else:
        trajectory, row = slice_trajectory(agent, trajectory, row, 1), 0
    frames, before = _frames(agent, trajectory)
    floats = jnp.asarray(frames, jnp.float32)

    @jax.jit
    def derivatives(frames: Array, signs: dict[str, Array]) -> dict[str, Array]:
        _, pull_back = jax.vjp(lambda x: _numbers(rule, agent, params, trajectory, x, row), frames)
        zeros = jax.tree.map(jnp.zeros_like, signs)
        return {
            name: pull_back(zeros | {name: sign})[0][row + before, 0]
            for name, sign in signs.items()
        }

    shapes = jax.eval_shape(lambda x: _numbers(rule, agent, params, trajectory, x, row), floats)
    squares: dict[str, np.ndarray] = {}
    for probe in range(num_probes):
        signs = _random_signs(shapes, jax.random.fold_in(key, probe))
        for name, x in derivatives(floats, signs).items():
            squares[name] = squares.get(name, 0.0) + np.square(np.asarray(x)) / num_probes
    return {name: np.sqrt(x) for name, x in squares.items()}


def _frames(
    agent: RuleAgent, trajectory: disco.Trajectory
) -> tuple[Num[np.ndarray | Array, "rows batch *parts"], int]:
    """Return the trajectory's frames, and how many of them precede the first observation."""
    before, frames = 0, trajectory.observation
    if isinstance(frames, History):
        before, frames = agent.network.history.rows_before, frames.frames
    if not isinstance(frames, np.ndarray | jax.Array):
        raise ValueError(f"Observations are {sorted(frames)}; expected one array.")
    return frames, before


def _numbers(
    rule: DiscoveredRule,
    agent: RuleAgent,
    params: disco.Params,
    trajectory: disco.Trajectory,
    frames: Num[Array, "rows batch *parts"],
    row: int,
) -> dict[str, Float[Array, "_"]]:
    """Return the numbers of each quantity at a row of the trajectory, given its frames."""
    observation: Any = trajectory.observation
    is_stacked = isinstance(observation, History)
    observation = dataclasses.replace(observation, frames=frames) if is_stacked else frames
    moved = dataclasses.replace(trajectory, observation=observation)
    outputs = agent.network.unroll(params, moved)
    policy = jax.nn.softmax(outputs["logits"][row, 0])
    q = values.decode_value(outputs["q"][row, 0], rule.max_value)
    return {
        "y": outputs["y"][row, 0],
        "z": outputs[taken("z")][row, 0],
        "policy": outputs["logits"][row, 0],
        "value": jnp.sum(policy * q)[None],
    }


def _random_signs(
    shapes: dict[str, jax.ShapeDtypeStruct], key: PRNGKeyArray
) -> dict[str, Float[Array, "_"]]:
    return {
        name: jax.random.rademacher(jax.random.fold_in(key, i), x.shape, x.dtype)
        for i, (name, x) in enumerate(shapes.items())
    }

"""An agent's predictions: along a trajectory, by parts of an observation, and as influences.

DiscoRL, figure 4 and Methods, "Analysis". `quantities` says how confident the predictions are along
an episode, `saliency` on which parts of an observation they depend, and `influence` how a change of
a future prediction changes the current targets; `evaluation.studies.ablations` has a rule from
which this influence on its predictions is removed, to be trained for comparison.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

import disco
from agents.history import History
from agents.rule_agent import LearnerState, RuleAgent
from disco import values
from disco.discovered import DiscoveredRule
from disco.types import taken
from evaluation.results import divide


def outputs_along(
    agent: RuleAgent, params: disco.Params, trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "rows batch *sizes"]]:
    """Return the network's outputs `[T+1, B, ...]`; of z only at the actions taken, `[T, B, Y]`."""
    found: dict[str, list[np.ndarray]] = {}
    unroll = jax.jit(agent.network.unroll)
    for i in range(trajectory.action.shape[1]):  # One by one: z of all actions is large.
        outputs = jax.device_get(unroll(params, one_environment(trajectory, i)))
        for name, x in outputs.items():
            if name not in ("z", "aux_pi"):
                found.setdefault(name, []).append(x)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def learner_outputs(
    agent: RuleAgent, learner: LearnerState, trajectory: disco.Trajectory
) -> tuple[disco.Outputs, disco.Outputs | None]:
    """Return all outputs of an agent's network, and of its target network if there is one."""
    unroll = jax.jit(agent.network.unroll)
    target = learner.rule_state.target_params
    return unroll(learner.params, trajectory), None if target is None else unroll(
        target, trajectory
    )


def quantities(
    rule: DiscoveredRule, outputs: Mapping[str, np.ndarray], trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Return confidence (negative entropy) of y and z, the policy's entropy, value and reward.

    z is that of the action taken. Agents without y and z have no confidence.

    `outputs` are those of `outputs_along`.
    """
    policy = np.asarray(jax.nn.softmax(outputs["logits"][:-1]))
    q = np.asarray(values.decode_value(jnp.asarray(outputs["q"][:-1]), rule.max_value))
    found = {}
    if rule.has_predictions:
        found["confidence of y (nats)"] = -_entropy(outputs["y"][:-1])
        found["confidence of z (nats)"] = -_entropy(outputs[taken("z")])
    return found | {
        "policy's entropy (nats)": _entropy(outputs["logits"][:-1]),
        "value": np.sum(policy * q, axis=-1),
        "reward": np.asarray(trajectory.reward, np.float64),
    }


def slice_trajectory(
    agent: RuleAgent, trajectory: disco.Trajectory, first: int, length: int
) -> disco.Trajectory:
    """Return some transitions of a trajectory, with the frames that the agent's network needs.

    If the network has a memory, `first` must be 0.
    """
    spec, observation = agent.network.history, trajectory.observation
    assert first == 0 or not spec.memory
    rows = slice(first, first + length + 1)
    if isinstance(observation, History):
        before = slice(first, first + length + 1 + spec.rows_before)
        ages = slice(first, first + length + 1 + spec.burn_in)
        observation = History(
            frames=jax.tree.map(lambda x: x[before], observation.frames),
            age=observation.age[ages],
        )
    else:
        observation = jax.tree.map(lambda x: x[rows], observation)
    steps = dataclasses.replace(trajectory, observation=None, core_state=None)
    steps = jax.tree.map(lambda x: x[first : first + length], steps)
    return dataclasses.replace(steps, observation=observation, core_state=trajectory.core_state)


def one_environment(trajectory: disco.Trajectory, number: int) -> disco.Trajectory:
    """Return the part of one environment, still with an axis B."""
    which = slice(number, number + 1)
    return dataclasses.replace(
        jax.tree.map(lambda x: x[:, which], dataclasses.replace(trajectory, core_state=None)),
        core_state=jax.tree.map(lambda x: x[which], trajectory.core_state),
    )


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

    The trajectory is of one environment, `row` the index of the observation, which must not be the
    last, and `num_probes` the number of draws of signs.

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


def influence(
    rule: disco.Rule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
    prediction: Float[Array, "rows B A Y"],
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return how much a change of z at a later state changes the current targets, by distance.

    z of one state at a time is perturbed with normal noise of z's own standard deviation.

    Args:
      rule: any; one that does not read z is not influenced by it.
      outputs: of an agent on the trajectory, `[T+1, B, ...]`.
      target_outputs: of its target network; None for a rule that has none.
      trajectory: of T transitions.
      state: of the rule.
      prediction: z to pass to the rule, and to perturb.
      key: for the noise.

    Returns:
      By kind of target (every array of `targets` with a value per transition), the root mean square
      change at distances 0 to T, over all pairs of a transition and a later state of the same
      episode; NaN if there is no such pair.
    """
    rows = trajectory.action.shape[0] + 1
    noise = jnp.std(prediction) * jax.random.normal(key, prediction.shape)

    def targets(z: Array) -> dict[str, Array]:
        made, _ = rule.targets({**outputs, "z": z}, target_outputs, trajectory, state)
        return {
            jax.tree_util.keystr(path).strip(".[]'"): x
            for path, x in jax.tree.leaves_with_path(made)
            if jnp.shape(x)[:2] == trajectory.action.shape
        }

    # The last one is unperturbed, by the same program, so that differences are not from rounding.
    perturbed = jnp.arange(rows + 1) % rows
    scales = jnp.ones(rows + 1).at[-1].set(0.0)

    @jax.jit
    def all_targets():
        return jax.lax.map(
            lambda x: targets(prediction.at[x[0]].add(x[1] * noise[x[0]])), (perturbed, scales)
        )

    found = {name: np.asarray(x) for name, x in all_targets().items()}
    squares = {
        name: np.square(x[:-1] - x[-1]).reshape(rows, *trajectory.action.shape, -1).mean(axis=-1)
        for name, x in found.items()
    }
    return _root_mean_by_distance(squares, np.asarray(trajectory.last))


def _root_mean_by_distance(
    squares: dict[str, Float[np.ndarray, "rows T B"]], last: np.ndarray
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return root means over pairs of a transition and a later state of the same episode.

    Args:
      squares: by the later state, and the transition.
      last: whether an episode ends with each transition, `[T, B]`.
    """
    num_transitions = len(last)
    ends = last.cumsum(axis=0)
    ends = np.concatenate([np.zeros_like(ends[:1]), ends])  # Before each state.
    later, now = np.meshgrid(
        np.arange(num_transitions + 1), np.arange(num_transitions), indexing="ij"
    )
    same = (later >= now)[..., None] & (ends[later] == ends[now])
    distance = np.broadcast_to((later - now)[..., None], same.shape)
    counts = np.bincount(distance[same], minlength=num_transitions + 1)
    return {
        name: np.sqrt(divide(np.bincount(distance[same], x[same], num_transitions + 1), counts))
        for name, x in squares.items()
    }


def _entropy(logits: Float[np.ndarray, "*batch choices"]) -> Float[np.ndarray, "*batch"]:
    log_p = np.asarray(jax.nn.log_softmax(logits))
    return -np.sum(np.exp(log_p) * log_p, axis=-1)

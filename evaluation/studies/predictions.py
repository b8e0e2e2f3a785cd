"""An agent's predictions (DiscoRL, figure 4 and Methods, "Analysis").

`quantities` says how confident the predictions are along an episode, `saliency` on which parts of
an observation they depend, and `information` how well probes predict the near future from them.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, Shaped
from scipy.special import entr, softmax
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import disco
from agents.history import History
from agents.networks import Network
from agents.rule_agent import LearnerState, RuleAgent
from disco import values
from disco.discovered import DiscoveredRule
from disco.types import taken

# Layers of the probes; wider ones for y and z, which have hundreds of numbers (DiscoRL, Methods).
_PROBE, _WIDE_PROBE, _WIDE_INPUT = (128, 64, 32), (256, 256, 256), 64
_FOLDS = 5

Split = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""The samples of a fold `[training]` and `[test]`, by index."""


@partial(jax.jit, static_argnums=0)
def _unroll(network: Network, params: disco.Params, trajectory: disco.Trajectory) -> disco.Outputs:
    return network.unroll(params, trajectory)


def outputs_along(
    agent: RuleAgent, params: disco.Params, trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "rows batch *sizes"]]:
    """Return the network's outputs `[T+1, B, ...]`; of z only at the actions taken, `[T, B, Y]`."""
    found: dict[str, list[np.ndarray]] = {}
    for i in range(trajectory.action.shape[1]):  # One by one: z of all actions is large.
        outputs = jax.device_get(_unroll(agent.network, params, one_environment(trajectory, i)))
        for name, x in outputs.items():
            if name not in ("z", "aux_pi"):
                found.setdefault(name, []).append(x)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def learner_outputs(
    agent: RuleAgent, learner: LearnerState, trajectory: disco.Trajectory
) -> tuple[disco.Outputs, disco.Outputs | None]:
    """Return all outputs of an agent's network, and of its target network if there is one."""
    network, target = agent.network, learner.rule_state.target_params
    target_outputs = None if target is None else _unroll(network, target, trajectory)
    return _unroll(network, learner.params, trajectory), target_outputs


def quantities(
    rule: DiscoveredRule, outputs: Mapping[str, np.ndarray], trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Return confidence (negative entropy) of y and z, the policy's entropy, value and reward.

    z is that of the action taken. Agents without y and z have no confidence.

    `outputs` are those of `outputs_along`.
    """
    policy = softmax(outputs["logits"][:-1], axis=-1)
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


def slice_trajectory(trajectory: disco.Trajectory, first: int, length: int) -> disco.Trajectory:
    """Return some transitions, with the observations after them and the stacked frames before them.

    For a network with a memory, `first` must be 0.
    """
    left = len(trajectory.action) - first - length  # Transitions after them.
    sliced = jax.tree.map(
        lambda x: x[first : len(x) - left], dataclasses.replace(trajectory, core_state=None)
    )
    return dataclasses.replace(sliced, core_state=trajectory.core_state)


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

    The trajectory is of one environment, whose observations are single arrays, `row` the index of
    the observation, which must not be the last, and `num_probes` the number of draws of signs.

    Returns:
      By quantity, an array like the observation (like the newest frame, if frames are stacked).
    """
    if agent.network.history.memory:
        trajectory = slice_trajectory(trajectory, 0, row + 1)
    else:
        trajectory, row = slice_trajectory(trajectory, row, 1), 0
    observation: Any = trajectory.observation
    is_stacked = isinstance(observation, History)
    before = agent.network.history.rows_before if is_stacked else 0

    def numbers(frames: Num[Array, "rows batch *parts"]) -> dict[str, Float[Array, "_"]]:
        seen = dataclasses.replace(observation, frames=frames) if is_stacked else frames
        outputs = agent.network.unroll(params, dataclasses.replace(trajectory, observation=seen))
        logits = outputs["logits"][row, 0]
        q = values.decode_value(outputs["q"][row, 0], rule.max_value)
        return {
            "y": outputs["y"][row, 0],
            "z": outputs[taken("z")][row, 0],
            "policy": logits,
            "value": jnp.sum(jax.nn.softmax(logits) * q)[None],
        }

    @jax.jit
    def squares(frames: Array, key: PRNGKeyArray) -> dict[str, Array]:
        found, pull_back = jax.vjp(numbers, frames)
        zeros = jax.tree.map(jnp.zeros_like, found)
        signs = {
            name: jax.random.rademacher(jax.random.fold_in(key, i), x.shape, x.dtype)
            for i, (name, x) in enumerate(found.items())
        }
        return {
            name: jnp.square(pull_back(zeros | {name: sign})[0][row + before, 0])
            for name, sign in signs.items()
        }

    frames = jnp.asarray(observation.frames if is_stacked else observation, jnp.float32)
    draws = [squares(frames, jax.random.fold_in(key, i)) for i in range(num_probes)]
    return {name: np.sqrt(np.mean([draw[name] for draw in draws], axis=0)) for name in draws[0]}


def _entropy(logits: Float[np.ndarray, "*batch choices"]) -> Float[np.ndarray, "*batch"]:
    return np.sum(entr(softmax(logits, axis=-1)), axis=-1)


def information(
    rule: DiscoveredRule,
    outputs: Mapping[str, np.ndarray],
    trajectory: disco.Trajectory,
    horizon: int,
    seed: int,
    max_iter: int = 60,
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return how well probes predict the near future from y, z, policy and value.

    Probes are MLPs, evaluated by five-fold cross-validation. Each fold is one contiguous interval,
    so test steps are not interleaved with training steps. Steps whose targets share future steps
    with the targets of a test step are not trained on.

    `outputs` are those of `outputs_along`, `horizon` the number of future transitions to predict,
    and `max_iter` the most passes over the data.

    Returns:
      By probing target and input, mean and standard deviation over the folds. The targets are the
      policy's mean entropy over the horizon (R²), and whether a large reward comes within it
      (accuracy). A reward is large if it is positive and at least the 90th percentile of the
      positive rewards. The input `"chance"` predicts the mean, or the more frequent class. A target
      is left out if it is constant, or if a fold's training data have fewer than two samples of a
      class.
    """
    known = quantities(rule, outputs, trajectory)
    usable = trajectory.action.shape[0] - horizon
    rewards = known["reward"]
    inputs = {
        "y": outputs["y"][:usable],
        "z": outputs[taken("z")][:usable],
        "policy": outputs["logits"][:usable],
        "value": known["value"][:usable, :, None],
    }
    entropy = _ahead(known["policy's entropy (nats)"], horizon)
    targets = {
        "future entropy (R²)": entropy.mean(axis=-1),
        "large reward (accuracy)": _ahead(_is_large(rewards), horizon).any(axis=-1),
    }
    splits = _splits(usable, rewards.shape[1], horizon)
    return {
        name: _scores(inputs, target.ravel(), splits, seed, max_iter)
        for name, target in targets.items()
        if _can_be_probed(target.ravel(), splits)
    }


def _is_large(rewards: Float[np.ndarray, "T B"]) -> Bool[np.ndarray, "T B"]:
    positive = rewards[rewards > 0]
    return rewards >= (np.quantile(positive, 0.9) if positive.size else np.inf)


def _ahead(x: Shaped[np.ndarray, "T B"], horizon: int) -> Shaped[np.ndarray, "usable B horizon"]:
    """Return x at 1 to `horizon` transitions after each transition that has as many."""
    return np.lib.stride_tricks.sliding_window_view(x[1:], horizon, axis=0)


def _splits(usable: int, batch: int, horizon: int) -> list[Split]:
    """Return the training and test samples of each fold, among flattened `[usable, batch]`."""
    steps = np.repeat(np.arange(usable), batch)
    found = []
    for interval in np.array_split(np.arange(usable), _FOLDS):
        first, last = interval[0], interval[-1]
        is_apart = (steps <= first - horizon) | (steps >= last + horizon)
        is_test = (steps >= first) & (steps <= last)
        found.append((np.flatnonzero(is_apart), np.flatnonzero(is_test)))
    return found


def _can_be_probed(target: Shaped[np.ndarray, "samples"], splits: Sequence[Split]) -> bool:
    """Return whether a target varies; a class needs two training samples for early stopping."""
    if target.dtype != bool:
        return len(np.unique(target)) >= 2
    return all(np.bincount(target[training], minlength=2).min() >= 2 for training, _ in splits)


def _scores(
    inputs: Mapping[str, Float[np.ndarray, "usable B _"]],
    target: Shaped[np.ndarray, "samples"],
    splits: Sequence[Split],
    seed: int,
    max_iter: int,
) -> dict[str, tuple[float, float]]:
    """Return the mean score of a probe for each input, and its deviation over folds."""
    is_class, found = target.dtype == bool, {}
    chance = DummyClassifier(strategy="prior") if is_class else DummyRegressor()
    for name, x in (*inputs.items(), ("chance", inputs["value"])):
        network = (MLPClassifier if is_class else MLPRegressor)(
            hidden_layer_sizes=_WIDE_PROBE if x.shape[-1] >= _WIDE_INPUT else _PROBE,
            early_stopping=True,
            max_iter=max_iter,
            random_state=seed,
        )
        model: Any = chance if name == "chance" else make_pipeline(StandardScaler(), network)
        samples = x.reshape(target.size, -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `max_iter` is a bound.
            scores = cross_val_score(
                model,
                samples,
                target,
                cv=splits,
                error_score="raise",  # pyright: ignore
            )
        found[name] = float(np.mean(scores)), float(np.std(scores))
    return found

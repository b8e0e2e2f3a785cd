"""Probing: how well the near future can be predicted from an agent's predictions."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import disco
from disco.discovered import DiscoveredRule
from disco.types import taken
from evaluation.studies.predictions import quantities

# Layers of the probes; wider ones for y and z, which have hundreds of numbers (DiscoRL, Methods).
_PROBE, _WIDE_PROBE, _WIDE_INPUT = (128, 64, 32), (256, 256, 256), 64
_FOLDS = 5

Split = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""The samples of a fold `[training]` and `[test]`, by index."""


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

    `outputs` are those of `evaluation.studies.predictions.outputs_along`, `horizon` the number of
    future transitions to predict, and `max_iter` the most passes over the data.

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
        "future entropy (R²)": entropy.mean(axis=0),
        "large reward (accuracy)": _ahead(_is_large(rewards), horizon).any(axis=0),
    }
    splits = _splits(usable, rewards.shape[1], horizon)
    return {
        name: {
            source: _cross_validate(model, x, target.ravel(), splits)
            for source, (model, x) in _models(inputs, target, seed, max_iter).items()
        }
        for name, target in targets.items()
        if _can_be_probed(target.ravel(), splits)
    }


def _is_large(rewards: Float[np.ndarray, "T B"]) -> Bool[np.ndarray, "T B"]:
    positive = rewards[rewards > 0]
    return rewards >= (np.quantile(positive, 0.9) if positive.size else np.inf)


def _ahead(x: Shaped[np.ndarray, "T B"], horizon: int) -> Shaped[np.ndarray, "horizon usable B"]:
    """Return x at 1 to `horizon` transitions after each transition that has as many."""
    usable = len(x) - horizon
    return np.stack([x[1 + i : 1 + i + usable] for i in range(horizon)])


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


def _models(
    inputs: Mapping[str, Float[np.ndarray, "usable B _"]],
    target: Shaped[np.ndarray, "usable B"],
    seed: int,
    max_iter: int,
) -> dict[str, tuple[Any, Float[np.ndarray, "samples _"]]]:
    """Return a probe for each input, and one that ignores its input, with their inputs."""
    is_class = target.dtype == bool
    models: dict[str, tuple[Any, np.ndarray]] = {
        name: (_probe(x.shape[-1], is_class, seed, max_iter), x.reshape(target.size, -1))
        for name, x in inputs.items()
    }
    dummy = DummyClassifier(strategy="prior") if is_class else DummyRegressor()
    return models | {"chance": (dummy, inputs["value"].reshape(target.size, -1))}


def _probe(size: int, is_class: bool, seed: int, max_iter: int) -> Any:
    kind = MLPClassifier if is_class else MLPRegressor
    layers = _WIDE_PROBE if size >= _WIDE_INPUT else _PROBE
    network = kind(
        hidden_layer_sizes=layers, early_stopping=True, max_iter=max_iter, random_state=seed
    )
    return make_pipeline(StandardScaler(), network)


def _cross_validate(
    model: Any,
    x: Float[np.ndarray, "samples _"],
    target: Shaped[np.ndarray, "samples"],
    splits: Sequence[Split],
) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `max_iter` is a bound.
        scores = cross_val_score(
            model,
            x,
            target,
            cv=splits,
            error_score="raise",  # pyright: ignore
        )
    return float(np.mean(scores)), float(np.std(scores))

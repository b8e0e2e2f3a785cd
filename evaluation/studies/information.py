"""Information: how well the near future can be predicted from an agent's predictions."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, cross_val_score
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


def information(
    rule: DiscoveredRule,
    outputs: Mapping[str, np.ndarray],
    trajectory: disco.Trajectory,
    horizon: int,
    seed: int,
    max_iter: int = 60,
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return how well the near future can be predicted from y, z, policy and value.

    Probes are MLPs, evaluated by five-fold cross-validation. The folds are intervals of time, so
    that no test data lie between training data.

    Args:
      rule: which defines the bins of q.
      outputs: of `evaluation.studies.predictions.outputs_along`.
      trajectory: of the outputs.
      horizon: number of future transitions to predict.
      seed: of the probes.
      max_iter: maximum number of passes over the data.

    Returns:
      By question and input, mean and standard deviation over the folds. The questions are the
      policy's mean entropy over the horizon (R²), and whether a large reward comes within it
      (accuracy); large are the largest tenth of the rewards that are not 0. The input `"chance"`
      predicts the mean, or the more frequent class. Constant answers are not asked for.
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
    answers = {
        "future entropy (R²)": entropy.mean(axis=0),
        "large reward (accuracy)": _ahead(_is_large(rewards), horizon).any(axis=0),
    }
    folds = np.broadcast_to(
        (np.arange(usable) * _FOLDS // usable)[:, None], (usable, rewards.shape[1])
    ).ravel()
    return {
        question: {
            name: _cross_validate(model, x, answer.ravel(), folds)
            for name, (model, x) in _models(inputs, answer, seed, max_iter).items()
        }
        for question, answer in answers.items()
        if len(np.unique(answer)) >= 2
    }


def _is_large(rewards: Float[np.ndarray, "T B"]) -> Bool[np.ndarray, "T B"]:
    nonzero = np.abs(rewards[rewards != 0])
    return rewards >= (np.quantile(nonzero, 0.9) if nonzero.size else np.inf)


def _ahead(x: Shaped[np.ndarray, "T B"], horizon: int) -> Shaped[np.ndarray, "horizon usable B"]:
    """Return x at 1 to `horizon` transitions after each transition that has as many."""
    usable = len(x) - horizon
    return np.stack([x[1 + i : 1 + i + usable] for i in range(horizon)])


def _models(
    inputs: Mapping[str, Float[np.ndarray, "usable B _"]],
    answer: Shaped[np.ndarray, "usable B"],
    seed: int,
    max_iter: int,
) -> dict[str, tuple[Any, Float[np.ndarray, "samples _"]]]:
    """Return a probe for each input, and one that ignores its input, with their inputs."""
    is_class = answer.dtype == bool
    models: dict[str, tuple[Any, np.ndarray]] = {
        name: (_probe(x.shape[-1], is_class, seed, max_iter), x.reshape(answer.size, -1))
        for name, x in inputs.items()
    }
    dummy = DummyClassifier(strategy="prior") if is_class else DummyRegressor()
    return models | {"chance": (dummy, inputs["value"].reshape(answer.size, -1))}


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
    answer: Shaped[np.ndarray, "samples"],
    folds: Shaped[np.ndarray, "samples"],
) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `max_iter` is a bound.
        scores = cross_val_score(
            model,
            x,
            answer,
            groups=folds,
            cv=GroupKFold(_FOLDS),
            error_score="raise",  # pyright: ignore
        )
    return float(np.mean(scores)), float(np.std(scores))

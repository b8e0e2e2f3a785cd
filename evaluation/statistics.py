"""Statistics over runs. Missing scores are NaN and are never imputed."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Estimate(NamedTuple):
    """A mean over tasks with a confidence interval."""

    mean: float
    low: float
    high: float


def mean(values: Float[np.ndarray, "*s seeds"]) -> Float[np.ndarray, "*s"]:
    """Mean over the runs that are there; NaN if none is."""
    count = np.sum(np.isfinite(values), axis=-1)
    return np.where(count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan)


def standard_error(values: Float[np.ndarray, "*s seeds"]) -> Float[np.ndarray, "*s"]:
    """Of the mean over the runs that are there; NaN if they are fewer than two."""
    count = np.sum(np.isfinite(values), axis=-1)
    squares = np.nansum(np.square(values - mean(values)[..., None]), axis=-1)
    variance = squares / np.maximum(count - 1, 1)
    return np.where(count > 1, np.sqrt(variance / np.maximum(count, 1)), np.nan)


def bootstrap_means(
    scores: Float[np.ndarray, "tasks seeds"], resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples"]:
    """Means over tasks of resampled runs: a stratified bootstrap.

    Each resample draws every task's runs anew, with replacement, from that task's runs, as many
    as there are (Agarwal et al. 2021, arXiv 2108.13264, section 4).

    Raises:
      ValueError: if a task has no run.
    """
    totals = np.zeros(resamples)
    for task, row in enumerate(scores):
        runs = row[np.isfinite(row)]
        if not len(runs):
            raise ValueError(f"Task {task} has no run to resample; expected at least one.")
        totals += np.mean(runs[rng.integers(len(runs), size=(resamples, len(runs)))], axis=1)
    return totals / len(scores)


def estimate(
    scores: Float[np.ndarray, "tasks seeds"],
    minus: Float[np.ndarray, "tasks seeds"] | None = None,
    *,
    resamples: int,
    confidence: float,
    seed: int,
) -> Estimate:
    """Mean over tasks of the runs' means, with a stratified bootstrap interval (percentiles).

    Args:
      scores: of each run, NaN where missing; at least one task, and a run of each.
      minus: scores to subtract, of other runs on the same tasks, resampled independently.
      resamples: of the bootstrap.
      confidence: of the interval, for example 0.95.
      seed: of the resampling.
    """
    rng = np.random.default_rng(seed)
    value = np.mean(mean(scores))
    samples = bootstrap_means(scores, resamples, rng)
    if minus is not None:
        value = value - np.mean(mean(minus))
        samples = samples - bootstrap_means(minus, resamples, rng)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(samples, [tail, 100.0 - tail])
    return Estimate(mean=float(value), low=float(low), high=float(high))

"""Crafter's achievements: success rates, and the Crafter score (Hafner 2021, arXiv 2109.06780)."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from environments.suites import crafter
from evaluation.results import LearningCurves


@dataclasses.dataclass(frozen=True)
class CrafterScores:
    """One contender's results on a Crafter task.

    Attributes:
      success_rates: of each achievement, in percent of the scored episodes, the mean over runs.
      scores: the Crafter score of each run, in percent.
    """

    success_rates: dict[str, float]
    scores: Float[np.ndarray, "runs"]


def crafter_score(
    success_rates: Float[np.ndarray, "runs achievements"],
) -> Float[np.ndarray, "runs"]:
    """Return the geometric mean of each run's success rates, offset by 1%, in percent.

    Args:
      success_rates: fractions of the episodes in which each achievement was unlocked.
    """
    return np.expm1(np.mean(np.log1p(100.0 * success_rates), axis=-1))


def score_achievements(
    contender_curves: Mapping[str, LearningCurves], task: int
) -> dict[str, CrafterScores]:
    """Return the scores of each contender on a task; without those that have no achievements.

    Args:
      contender_curves: the learning curves by contender.
      task: index on the curves' first axis.
    """
    return {
        name: scores
        for name, curves in contender_curves.items()
        if (scores := _score(curves, task)) is not None
    }


def _score(curves: LearningCurves, task: int) -> CrafterScores | None:
    if not set(crafter.ACHIEVEMENTS) <= set(curves.results):
        return None
    rates = np.stack([curves.results[name][task] for name in crafter.ACHIEVEMENTS], axis=-1)
    rates = rates[np.isfinite(rates).all(axis=-1)]
    if not len(rates):
        return None
    percent = 100.0 * rates.mean(axis=0)
    return CrafterScores(
        success_rates=dict(zip(crafter.ACHIEVEMENTS, percent, strict=True)),
        scores=crafter_score(rates),
    )

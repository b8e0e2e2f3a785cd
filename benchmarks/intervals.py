"""95% intervals of means over seeds."""

import numpy as np
from jaxtyping import Float
from scipy import stats

from evaluation.scoring.statistics import Estimate, standard_error


def of_mean(x: Float[np.ndarray, "seeds"]) -> Estimate:
    """Return the mean over seeds with Student's interval."""
    mean, error = float(np.mean(x)), float(standard_error(x))
    half = float(stats.t.ppf(0.975, len(x) - 1)) * error
    return Estimate(mean, mean - half, mean + half)


def of_difference(
    first: Float[np.ndarray, "seeds"], second: Float[np.ndarray, "seeds"]
) -> Estimate:
    """Return the first mean minus the second, with Welch's interval."""
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    value = float(np.mean(first) - np.mean(second))
    return Estimate(value, float(interval.low), float(interval.high))

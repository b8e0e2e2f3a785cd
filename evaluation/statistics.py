"""Statistics over runs on tasks, after Agarwal et al. 2021 (arXiv 2108.13264).

Scores are arrays `[*s, tasks, runs]`. Missing runs are NaN and are never imputed: what there is of
a task counts, and a task without any run is an error.

The aggregates (mean, median, interquartile mean, optimality gap, performance profile, probability
of improvement) are those of the `rliable` library wherever every task has as many runs, and the
tests compare them. The intervals are not: `rliable` resamples as many runs as there are, and with 3
runs per task its 95% intervals cover the true value in 86% to 90% of cases, with 5 or 10 in 91%.
Ours cover it in 93% to 97%, with 2 runs in 91% to 94% (`benchmarks.coverage`). Here each task's
resamples have one run fewer than there are, which makes their variance that of the estimate (the
rescaled bootstrap of stratified samples, Rao and Wu 1988, doi 10.1080/01621459.1988.10478591).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float

Statistic = Callable[..., np.ndarray]

# Numbers that a bootstrap resamples at once: 64 MiB.
_CHUNK = 2**23


class Estimate(NamedTuple):
    """A statistic with a confidence interval; its ends are NaN where no task has two runs."""

    value: float
    low: float
    high: float

    def text(self, decimals: int) -> str:
        """For a reader; without the interval where it is unknown."""
        value, low, high = (f"{x:.{decimals}f}" for x in self)
        return value if np.isnan(self.low) else f"{value} [{low}, {high}]"


def mean(values: Float[np.ndarray, "*s runs"]) -> Float[np.ndarray, "*s"]:
    """Mean over the runs that are there; NaN if none is."""
    count = np.sum(np.isfinite(values), axis=-1)
    return np.where(count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan)


def standard_error(values: Float[np.ndarray, "*s runs"]) -> Float[np.ndarray, "*s"]:
    """Of the mean over the runs that are there; NaN if they are fewer than two."""
    count = np.sum(np.isfinite(values), axis=-1)
    squares = np.nansum(np.square(values - mean(values)[..., None]), axis=-1)
    variance = squares / np.maximum(count - 1, 1)
    return np.where(count > 1, np.sqrt(variance / np.maximum(count, 1)), np.nan)


def mean_over_tasks(scores: Float[np.ndarray, "*s tasks runs"]) -> Float[np.ndarray, "*s"]:
    """Mean over tasks of the runs' means."""
    return np.mean(mean(scores), axis=-1)


def median_over_tasks(scores: Float[np.ndarray, "*s tasks runs"]) -> Float[np.ndarray, "*s"]:
    """Median over tasks of the runs' means."""
    return np.median(mean(scores), axis=-1)


def interquartile_mean(scores: Float[np.ndarray, "*s tasks runs"]) -> Float[np.ndarray, "*s"]:
    """Mean of the middle half of all runs on all tasks.

    Of n runs, the least and the largest floor(n / 4) are left out. A task with more runs weighs
    more.
    """
    runs = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # NaN at the end.
    count = np.sum(np.isfinite(runs), axis=-1, keepdims=True)
    cut = count // 4
    place = np.arange(runs.shape[-1])
    is_middle = (place >= cut) & (place < count - cut)
    return np.sum(np.where(is_middle, runs, 0.0), axis=-1) / np.sum(is_middle, axis=-1)


def optimality_gap(
    scores: Float[np.ndarray, "*s tasks runs"], target: float = 1.0
) -> Float[np.ndarray, "*s"]:
    """How far runs stay below a target score: mean of max(target - score, 0)."""
    return mean_over_tasks(np.maximum(target - scores, 0.0))


def probability_of_improvement(
    scores: Float[np.ndarray, "*s tasks runs"], others: Float[np.ndarray, "*s tasks other_runs"]
) -> Float[np.ndarray, "*s"]:
    """Mean over tasks of P(a run's score is larger than another's), ties counting half."""
    differences = scores[..., :, None] - others[..., None, :]
    wins = np.where(np.isfinite(differences), 0.5 * (np.sign(differences) + 1.0), np.nan)
    return mean_over_tasks(wins.reshape(*wins.shape[:-2], -1))


def performance_profile(
    scores: Float[np.ndarray, "*s tasks runs"], thresholds: Float[np.ndarray, "thresholds"]
) -> Float[np.ndarray, "*s thresholds"]:
    """Fraction of runs whose score is larger than each threshold, tasks weighing the same."""
    larger = [
        mean_over_tasks(np.where(np.isfinite(scores), scores > threshold, np.nan))
        for threshold in thresholds
    ]
    return np.stack(larger, axis=-1)


def normalize(
    scores: Float[np.ndarray, "*s tasks runs"],
    low: Float[np.ndarray, "tasks"],
    high: Float[np.ndarray, "tasks"],
    cap: float = np.inf,
) -> Float[np.ndarray, "*s tasks runs"]:
    """Scores on a scale on which `low` is 0 and `high` 1, and no score is above `cap`.

    Between random and human scores that is the human-normalised score; between random scores and
    human world records, capped at 2, it is SABER (Toromanoff et al. 2019, arXiv 1908.04683).
    """
    return np.minimum((scores - low[:, None]) / (high - low)[:, None], cap)


def crafter_score(
    success_rates: Float[np.ndarray, "*s achievements"],
) -> Float[np.ndarray, "*s"]:
    """Geometric mean of success rates, offset by 1% (Hafner 2021, arXiv 2109.06780).

    Args:
      success_rates: fractions of the episodes in which each achievement was unlocked.

    Returns:
      The score, in percent.
    """
    return np.expm1(np.mean(np.log1p(100.0 * success_rates), axis=-1))


def bootstrap(
    statistic: Statistic,
    samples: Sequence[Float[np.ndarray, "tasks _"]],
    resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "resamples *s"]:
    """A statistic of resampled runs: a stratified bootstrap.

    Each resample draws every task's runs anew, with replacement, from that task's runs, one fewer
    than there are (see the module). The only run of a task is in every resample.

    Args:
      statistic: of arrays `[resamples, tasks, runs]`, one for each of `samples`.
      samples: scores on the same tasks, resampled independently.
      resamples: how many.
      rng: to draw with.

    Raises:
      ValueError: if a task has no run.
    """
    compact = [_compact(scores) for scores in samples]
    chunk = max(1, _CHUNK // max(scores.size for scores in compact))
    parts = []
    for start in range(0, resamples, chunk):
        number = min(chunk, resamples - start)
        parts.append(statistic(*(_resampled(scores, number, rng) for scores in compact)))
    return np.concatenate(parts)


def estimate(
    statistic: Statistic,
    *samples: Float[np.ndarray, "tasks _"],
    resamples: int,
    confidence: float,
    seed: int,
) -> Estimate:
    """A statistic of runs with its `interval`, whose arguments and errors it shares."""
    low, high = interval(statistic, *samples, resamples=resamples, confidence=confidence, seed=seed)
    value = statistic(*(scores[None] for scores in samples))[0]
    return Estimate(value=float(value), low=float(low), high=float(high))


def interval(
    statistic: Statistic,
    *samples: Float[np.ndarray, "tasks _"],
    resamples: int,
    confidence: float,
    seed: int,
) -> tuple[Float[np.ndarray, "*s"], Float[np.ndarray, "*s"]]:
    """A stratified bootstrap interval of a statistic of runs.

    It lies between percentiles, a little further out than the confidence says where runs are few:
    at the normal distribution's value of Student's quantile (the expanded percentile interval,
    Hesterberg 2015, doi 10.1080/00031305.2015.1089789), of the degrees of freedom that a mean over
    the tasks has (`_freedom`).

    Args:
      statistic: see `bootstrap`.
      samples: likewise; at least one task, and a run of each.
      resamples: of the bootstrap.
      confidence: of the interval, for example 0.95.
      seed: of the resampling.

    Raises:
      ValueError: if a task has no run.
    """
    values = bootstrap(statistic, samples, resamples, np.random.default_rng(seed))
    freedom = _freedom(samples)
    if freedom == 0:
        unknown = np.full(values.shape[1:], np.nan)
        return unknown, unknown
    tail = scipy.stats.norm.cdf(scipy.stats.t.ppf(0.5 * (1.0 - confidence), freedom))
    low, high = np.quantile(values, [tail, 1.0 - tail], axis=0)
    return low, high


def _freedom(samples: Sequence[Float[np.ndarray, "tasks _"]]) -> float:
    """Degrees of freedom of the variance of means over tasks whose spreads differ.

    Fewer than there are runs beyond one per task, as a few tasks with wide spreads count for most:
    Satterthwaite's, by Welch's estimate (1947, doi 10.1093/biomet/34.1-2.28), which is right for as
    few as two runs of each.
    """
    tasks = [x[np.isfinite(x)] for scores in samples for x in scores]
    several = [x for x in tasks if len(x) > 1]
    if not several:
        return 0.0
    runs = np.array([len(x) for x in several])
    variances = np.array([np.var(x, ddof=1) for x in several]) / runs
    most = float(np.sum(runs - 1))
    if not variances.any():
        return most
    found = np.square(np.sum(variances)) / np.sum(np.square(variances) / (runs + 1)) - 2.0
    return float(np.clip(found, np.min(runs - 1), most))


def _compact(scores: Float[np.ndarray, "tasks runs"]) -> Float[np.ndarray, "tasks runs"]:
    """Each task's runs first, then NaN."""
    count = np.sum(np.isfinite(scores), axis=-1)
    if not count.all():
        raise ValueError(
            f"Task {int(np.argmin(count))} has no run to resample; expected at least one."
        )
    return np.take_along_axis(scores, np.argsort(~np.isfinite(scores), axis=-1, kind="stable"), -1)


def _resampled(
    scores: Float[np.ndarray, "tasks runs"], resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples tasks drawn"]:
    """Of compact scores, one run fewer than there are of each task."""
    count = np.sum(np.isfinite(scores), axis=-1)
    drawn = np.maximum(count - 1, 1)
    shape = (resamples, len(scores), int(drawn.max()))
    which = rng.integers(count[:, None], size=shape)
    values = np.take_along_axis(np.broadcast_to(scores, (resamples, *scores.shape)), which, -1)
    return np.where(np.arange(shape[-1]) < drawn[:, None], values, np.nan)

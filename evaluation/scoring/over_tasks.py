"""Intervals for tasks that were not evaluated: two levels, or three with several discoveries.

The tasks are a sample of those that a claim is about, the runs of a task are a sample of its seeds,
and discovered rules are a sample of what the discovery finds.

Two levels: a resample draws T - 1 of T tasks, each with all its runs. The spread of the tasks'
scores contains that of their seeds. A bootstrap that also draws seeds within the drawn tasks counts
the seeds' variance twice (Davison and Hinkley 1997, section 3.8; Field and Welsh 2007, doi
10.1111/j.1467-9868.2007.00593.x).

Three levels: rules and tasks are crossed. Tasks are resampled with all rules, and rules, D - 1 of
D, with all tasks; the two deviations from the statistic add up. Both contain the interaction of
rules and tasks, whose variance is therefore subtracted once. It is that of the deviation with rules
and tasks drawn together, minus the other two. (The pigeonhole bootstrap, of rules and tasks drawn
together alone, counts it three times: Owen 2007, doi 10.1214/07-AOAS122.)

The interval is Student's, with the resamples' standard deviation and T - 1 degrees of freedom
(three levels: Satterthwaite's). Scores of tasks are skewed, as some are solved and some are not.
Each end is therefore at least as far out as the expanded percentile of the resamples, that of
Student's quantile in place of the normal one (Hesterberg 2015, doi 10.1080/00031305.2015.1089789).
`benchmarks.coverage` measures how often these intervals cover the true value.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float, Int

FEWEST_TASKS = 4
"""With fewer tasks there is no interval: Student's quantile is above 4."""

_ROUNDING = 1e-9  # Relative difference of resamples' deviations that are the same.

# Number of scores that a bootstrap holds in memory at once: 64 MiB.
CHUNK = 2**23

Statistic = Callable[..., Float[np.ndarray, "*s"] | np.float64]


class Estimate(NamedTuple):
    """A statistic with its confidence intervals.

    Attributes:
      value: the statistic.
      low, high: ends of the interval over seeds, or over discoveries, with the given tasks; NaN if
        no task has two runs.
      low_over_tasks, high_over_tasks: ends of the interval over tasks and seeds, and discoveries
        (see the module); NaN with few tasks, or without an interval over seeds.
    """

    value: float
    low: float
    high: float
    low_over_tasks: float = np.nan
    high_over_tasks: float = np.nan

    def text(self, decimals: int) -> str:
        """Return the value and the intervals that are known, for a reader."""
        value, low, high, low_over_tasks, high_over_tasks = (f"{x:.{decimals}f}" for x in self)
        seeds = "" if np.isnan(self.low) else f" [{low}, {high}]"
        unknown = np.isnan(self.low_over_tasks)
        return value + seeds + ("" if unknown else f", tasks [{low_over_tasks}, {high_over_tasks}]")

    def is_above(self, level: float) -> bool:
        """Return whether all known intervals, so the widest one, are above a level."""
        return bool(np.fmin(self.low, self.low_over_tasks) > level)

    def is_below(self, level: float) -> bool:
        """Return whether all known intervals are below a level."""
        return bool(np.fmax(self.high, self.high_over_tasks) < level)

    def mirrored(self, total: float) -> "Estimate":
        """Return the estimate of a total minus the statistic."""
        value, low, high, low_over_tasks, high_over_tasks = (total - x for x in self)
        return Estimate(value, high, low, high_over_tasks, low_over_tasks)


def interval(
    statistic: Statistic,
    rules: Float[np.ndarray, "rules tasks _"],
    others: Sequence[Float[np.ndarray, "tasks _"]],
    *,
    resamples: int,
    confidence: float,
    seed: int,
    bounds: tuple[float, float],
    least: Callable[[int], float],
) -> tuple[float, float]:
    """Return the interval of a statistic over tasks and seeds, and over rules if there are several.

    Args:
      statistic: of arrays `[*s, tasks, runs]`, of the rules' joined runs and each of `others`.
      rules: scores of each rule's runs on the same tasks; a contender that is no discovery is one.
      others: scores to compare with, whose tasks are drawn together with the rules'.
      resamples: number of resamples.
      confidence: of the interval.
      seed: of the resampling.
      bounds: of the statistic, which the interval does not exceed.
      least: half the interval's width where no resample differs, by the number of trials.

    Returns:
      The ends; NaN with fewer than `FEWEST_TASKS` tasks.
    """
    number, tasks = rules.shape[:2]
    if tasks < FEWEST_TASKS:
        return np.nan, np.nan
    rng, joined = np.random.default_rng(seed), join(rules)

    def of_tasks(drawn: Int[np.ndarray, "_ _"]) -> np.ndarray:
        return np.asarray(statistic(joined[drawn], *(x[drawn] for x in others)))

    def of_rules(drawn: Int[np.ndarray, "_ _"]) -> np.ndarray:
        beside = (np.broadcast_to(x, (len(drawn), *x.shape)) for x in others)
        return np.asarray(statistic(join(rules[drawn]), *beside))

    def of_both(drawn: Int[np.ndarray, "_ _"]) -> np.ndarray:
        of, at = drawn[:, : tasks - 1], drawn[:, tasks - 1 :]
        own = rules[at[:, :, None], of[:, None]]
        return np.asarray(statistic(join(own), *(x[of] for x in others)))

    value = np.asarray(statistic(joined[None], *(x[None] for x in others))).item()
    size = joined.size + sum(x.size for x in others)
    drawn = [rng.integers(tasks, size=(resamples, tasks - 1))]
    deviations = [in_parts(lambda part: of_tasks(drawn[0][part]), resamples, size) - value]
    counts, interaction = [tasks], np.zeros(resamples)
    if number > 1:
        drawn.append(rng.integers(number, size=(resamples, number - 1)))
        deviations.append(in_parts(lambda part: of_rules(drawn[1][part]), resamples, size) - value)
        counts.append(number)
        together = np.concatenate(drawn, axis=1)
        both = in_parts(lambda part: of_both(together[part]), resamples, size) - value
        interaction = both - sum(deviations)
    low, high = _ends(np.stack(deviations), interaction, np.array(counts), confidence, least)
    return max(value + low, bounds[0]), min(value + high, bounds[1])


def _ends(
    deviations: Float[np.ndarray, "levels resamples"],
    interaction: Float[np.ndarray, "resamples"],
    counts: Int[np.ndarray, "levels"],
    confidence: float,
    least: Callable[[int], float],
) -> tuple[float, float]:
    """Return an interval's ends minus the statistic: see the module and `interval`."""
    largest = np.max(np.abs(deviations))
    if np.ptp(deviations, axis=1).max() <= _ROUNDING * largest:
        half = max(least(int(counts.min())), float(largest))
        return -half, half
    variances = np.var(deviations / largest, axis=1)  # Squares of deviations may overflow.
    degrees = np.square(variances.sum()) / np.sum(np.square(variances) / (counts - 1))
    once = max(variances.sum() - np.var(interaction / largest), variances.max())
    quantile = scipy.stats.t.ppf(0.5 * (1.0 + confidence), degrees)
    half = quantile * largest * np.sqrt(once)
    levels = scipy.stats.norm.cdf([-quantile, quantile])
    low, high = np.quantile(deviations.sum(axis=0), levels) * np.sqrt(once / variances.sum())
    return float(min(low, -half)), float(max(high, half))


def join(rules: Float[np.ndarray, "*s rules tasks runs"]) -> Float[np.ndarray, "*s tasks all_runs"]:
    """Return the runs of all rules as runs of one."""
    found = np.moveaxis(rules, -3, -2)
    return found.reshape(*found.shape[:-2], -1)


def in_parts(
    statistic: Callable[[slice], np.ndarray], resamples: int, size: int
) -> Float[np.ndarray, "resamples *s"]:
    """Return a statistic of each resample, which has `size` scores, in parts that fit memory."""
    most = max(1, CHUNK // size)
    starts = range(0, resamples, most)
    return np.concatenate([statistic(slice(x, min(x + most, resamples))) for x in starts])

"""A statistic of an evaluation, with its confidence intervals."""

from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A statistic with its confidence intervals.

    Attributes:
      value: the statistic.
      low, high: ends of the interval over seeds, or over discoveries, with the given tasks; NaN if
        no task has two runs.
      low_over_tasks, high_over_tasks: ends of the interval over tasks and seeds, and discoveries
        (`evaluation.scoring.over_tasks`); NaN with few tasks, or without an interval over seeds.
    """

    value: float
    low: float
    high: float
    low_over_tasks: float = np.nan
    high_over_tasks: float = np.nan

    def text(self, decimals: int) -> str:
        """Return the value and the intervals that are known, for a reader."""
        over_tasks = self.text_over_tasks(decimals)
        return self.text_over_seeds(decimals) + (f", tasks {over_tasks}" if over_tasks else "")

    def text_over_seeds(self, decimals: int) -> str:
        """Return the value and, if known, the interval with the given tasks."""
        value, low, high = (f"{x:.{decimals}f}" for x in self[:3])
        return value if np.isnan(self.low) else f"{value} [{low}, {high}]"

    def text_over_tasks(self, decimals: int) -> str:
        """Return the interval over tasks and seeds; empty if it is not known."""
        low, high = (f"{x:.{decimals}f}" for x in self[3:])
        return "" if np.isnan(self.low_over_tasks) else f"[{low}, {high}]"

    def is_above(self, level: float) -> bool:
        """Return whether all known intervals, so the widest one, are above a level."""
        return bool(np.fmin(self.low, self.low_over_tasks) > level)

    def is_below(self, level: float) -> bool:
        """Return whether all known intervals are below a level."""
        return self.mirrored(0.0).is_above(-level)

    def mirrored(self, total: float) -> "Estimate":
        """Return the estimate of a total minus the statistic."""
        value, low, high, low_over_tasks, high_over_tasks = (total - x for x in self)
        return Estimate(value, high, low, high_over_tasks, low_over_tasks)

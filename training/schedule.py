"""The schedule of updates: a function of the number of unrolls, equal on device and host."""

import bisect
import dataclasses
import fractions
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from agents.protocol import Experience, UpdateSpec
from training import replay
from training.records import name_by_kind
from training.replay import ReplayLayout

_LARGEST_PRODUCT = 2**30  # Of a schedule's `part` and `of`, so that these are 32-bit integers.


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The number of updates of one kind after each unroll.

    After each unroll from `first` on, `whole + part / of` updates are due on average, in numbers as
    equal as integers allow.

    Attributes:
      first: number of the first unroll with updates, from 0.
      whole: integer part of the mean number of updates.
      part: numerator of its fractional part, less than `of`.
      of: denominator of its fractional part.
    """

    first: int = 0
    whole: int = 1
    part: int = 0
    of: int = 1

    @property
    def is_always_one(self) -> bool:
        """Whether one update is due after every unroll."""
        return (self.first, self.whole, self.part) == (0, 1, 0)

    def num_due(self, unroll: Any) -> Any:
        """Return the number of updates that are due after an unroll.

        Args:
          unroll: its number, from 0 on; an integer, or `[]`.
        """
        place = (unroll - self.first) % self.of
        due = self.whole + (place + 1) * self.part // self.of - place * self.part // self.of
        if isinstance(unroll, int):
            return due if unroll >= self.first else 0
        return jnp.where(unroll >= self.first, due, 0)

    def num_made(self, num_unrolls: int) -> int:
        """Return the total number of updates after a run's first `num_unrolls` unrolls."""
        count = max(0, num_unrolls - self.first)
        return count * self.whole + count * self.part // self.of


def schedules(experience: Experience, num_steps: int) -> dict[str, Schedule]:
    """Return the schedule of each kind of update, by name.

    Raises:
      ValueError: if a replay can never contain the sequences that an update requires, or an update
        is never due.
    """
    layout = None if experience.replay is None else replay.layout(experience, num_steps)
    return {update.name: schedule(experience, update, layout) for update in experience.updates}


def as_metrics(num_updates: Mapping[str, int]) -> dict[str, float]:
    """Return numbers of updates by kind as metrics, `updates` or `kind/updates`."""
    return name_by_kind({kind: {"updates": float(made)} for kind, made in num_updates.items()})


def schedule(experience: Experience, update: UpdateSpec, layout: ReplayLayout | None) -> Schedule:
    """Return the schedule of one kind of update.

    Raises:
      ValueError: as of `schedules`.
    """
    per_unroll = experience.steps_per_unroll
    first = max(0, math.ceil(update.first_step / per_unroll) - 1)
    if update.num_replayed and layout is not None:
        first = max(first, _first_filled(update, layout))
    if update.updates_per_step is None:
        return Schedule(first)
    whole, rest = divmod(fractions.Fraction(update.updates_per_step) * per_unroll, 1)
    largest = math.isqrt(int(_LARGEST_PRODUCT / max(rest, fractions.Fraction(1, _LARGEST_PRODUCT))))
    rest = rest.limit_denominator(largest)
    whole, rest = whole + int(rest), rest % 1  # 1/24 of 24 steps is, as a float, below 1.
    if not whole and not rest:
        raise ValueError(
            f"The update {update.name!r} has {update.updates_per_step:g} updates per environment"
            f" step (updates_per_step); expected at least one in {_LARGEST_PRODUCT} unrolls of"
            f" {per_unroll} steps."
        )
    return Schedule(first, whole, rest.numerator, rest.denominator)


def _first_filled(update: UpdateSpec, layout: ReplayLayout) -> int:
    """Return the first unroll after which a replay contains the sequences an update requires."""
    needed = max(1, update.min_sequences)
    unrolls = range(layout.num_kept)
    found = bisect.bisect_left(
        unrolls, needed, key=lambda unroll: int(layout.num_sequences(update, unroll + 1))
    )
    if found < layout.num_kept:
        return found
    raise ValueError(
        f"The update {update.name!r} waits for {needed} sequences (min_sequences); the replay has"
        f" at most {int(layout.num_sequences(update, layout.num_kept))}, with a capacity of"
        f" {layout.spec.capacity} environment steps in {layout.num_environments} environments and"
        f" the run's budget."
    )

"""The length of a run, its intervals between records, and the schedule of its updates.

A schedule is a function of the number of unrolls, equal on device and host.
"""

import bisect
import dataclasses
import fractions
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from agents.protocol import Requirements, UpdateSpec
from training import replay
from training.records import name_by_kind
from training.replay import ReplayLayout

Report = Callable[[int, float | None, float | None], None]
"""A callback on the progress, at least at the end of each interval.

Args:
  steps: environment steps so far of one run, over all of its environments.
  speed: environment steps per second of wall time, updates included. `training.device` counts those
    of all its runs since compilation, `training.host` those of the last interval (the first one
    includes compilation), `training.self_contained` those since the agent's first report in this
    call (None before another one).
  mean_return: of the episodes that ended in the last interval, over all runs of the call; None if
    none ended.
"""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The length of a run and of its intervals.

    Attributes:
      num_steps: environment steps of a run.
      boundaries: environment steps at which an interval of the records ends, ascending.
      interval: maximum environment steps of an interval.
      scored_from: environment steps after which episodes count for the run's score.
      checkpoint_seconds: seconds between two checkpoints.
      runs_at_once: runs of a vectorised pass; see `training.passes.agents_per_pass`.
    """

    num_steps: int
    boundaries: tuple[int, ...] = ()
    interval: int = 10_000
    scored_from: int = 0
    checkpoint_seconds: float = 600.0
    runs_at_once: int | None = None

    def num_unrolls(self, steps_per_unroll: int) -> int:
        """Return the number of unrolls that fit into the budget.

        Raises:
          ValueError: if there is none.
        """
        if self.num_steps < steps_per_unroll:
            raise ValueError(
                f"The budget is {self.num_steps} environment steps; expected at least one unroll's"
                f" {steps_per_unroll}."
            )
        return self.num_steps // steps_per_unroll

    def intervals(self, steps_per_unroll: int) -> Iterator[tuple[int, int]]:
        """Yield the first unroll of each interval, and the first unroll of the next interval."""
        num_unrolls = self.num_unrolls(steps_per_unroll)
        ends = {min(-(-steps // steps_per_unroll), num_unrolls) for steps in self.boundaries}
        longest = max(1, self.interval // steps_per_unroll)
        for begin, end in itertools.pairwise(sorted({0, *ends, num_unrolls})):
            for first in range(begin, end, longest):
                yield first, min(first + longest, end)


def require_consistent(requirements: Requirements) -> None:
    """Raise a `ValueError` that names all inconsistencies in what an agent asks for."""
    replay_spec, asked = requirements.replay, []
    if len({update.name for update in requirements.updates}) < len(requirements.updates):
        asked.append("two kinds of update of one name")
    if replay_spec is not None and replay_spec.online and not replay_spec.anywhere:
        asked.append("an online queue of unrolls (expected ReplaySpec.anywhere)")
    if replay_spec is not None and replay_spec.online and len(requirements.updates) > 1:
        asked.append("an online queue for several kinds of update")
    if replay_spec is not None and replay_spec.anywhere and requirements.history.memory:
        asked.append(
            "a recurrent memory stored with each unroll beside sequences that begin anywhere"
            " (expected `act` to return it among the extras)"
        )
    if requirements.ends_at_life_loss and requirements.history.is_history:
        asked.append("episodes that end at the loss of a life beside a history of observations")
    for update in requirements.updates:
        asked.extend(
            f"{what} for {update.name!r}" for what in _inconsistencies(requirements, update)
        )
    if asked:
        raise ValueError(
            f"The agent asks for {'; '.join(asked)}; see agents.protocol.UpdateSpec and ReplaySpec."
        )


def _inconsistencies(requirements: Requirements, update: UpdateSpec) -> Iterator[str]:
    replay_spec, number = requirements.replay, requirements.num_environments
    fresh = update.batch_size - update.num_replayed
    is_any = replay_spec is not None and replay_spec.anywhere and not fresh
    is_online = replay_spec is not None and replay_spec.online
    if fresh not in (0, number):
        yield (
            f"a batch with {fresh} fresh sequences (expected none, or one of each of {number}"
            " environments)"
        )
    if update.num_replayed and replay_spec is None:
        yield "replayed sequences without a replay"
    if (update.length is not None or update.context) and not is_any:
        yield (
            "sequences of another length than the unroll's (expected all of them replayed, and"
            " ReplaySpec.anywhere)"
        )
    if update.extras_rows and fresh:
        yield "some rows of extras (expected all sequences replayed)"
    if update.priority and (not is_any or is_online):
        yield "draws by priority (expected all sequences replayed, and ReplaySpec.anywhere alone)"
    if update.priority and update.context:
        yield "draws by priority beside a context"
    if is_online and update.length is None:
        yield "an online queue of sequences without a length"
    if update.updates_per_step is not None and not update.updates_per_step > 0:
        yield f"{update.updates_per_step} updates per step (expected a positive number)"


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
        """Return the number of updates due after an unroll, given by its number, from 0 on."""
        place = (unroll - self.first) % self.of
        due = self.whole + (place + 1) * self.part // self.of - place * self.part // self.of
        if isinstance(unroll, int):
            return due if unroll >= self.first else 0
        return jnp.where(unroll >= self.first, due, 0)

    def num_made(self, num_unrolls: int) -> int:
        """Return the total number of updates after a run's first `num_unrolls` unrolls."""
        count = max(0, num_unrolls - self.first)
        return count * self.whole + count * self.part // self.of


def schedules(requirements: Requirements, num_steps: int) -> dict[str, Schedule]:
    """Return the schedule of each kind of update, by name.

    Raises:
      ValueError: if a replay can never contain the sequences that an update requires, or an update
        is never due.
    """
    layout = None if requirements.replay is None else replay.make_layout(requirements, num_steps)
    return {update.name: schedule(requirements, update, layout) for update in requirements.updates}


def as_metrics(num_updates: Mapping[str, int]) -> dict[str, float]:
    """Return numbers of updates by kind as metrics, `updates` or `kind/updates`."""
    return name_by_kind({kind: {"updates": float(made)} for kind, made in num_updates.items()})


def schedule(
    requirements: Requirements, update: UpdateSpec, layout: ReplayLayout | None
) -> Schedule:
    """Return the schedule of one kind of update; raise the errors of `schedules`."""
    per_unroll = requirements.steps_per_unroll
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
        f" {layout.replay_spec.capacity} environment steps in {layout.num_environments}"
        f" environments and the run's budget."
    )

"""When updates are due."""

import fractions
from typing import Any

import jax
import numpy as np
import pytest

from agents.protocol import ReplaySpec, Requirements, UpdateSpec
from training.schedule import Schedule, as_metrics, schedules


def of(update: UpdateSpec, num_steps: int = 10**9, **requirements) -> Schedule:
    sizes: dict[str, Any] = {"num_environments": 4, "unroll_length": 1} | requirements
    return schedules(Requirements(**sizes, updates=(update,)), num_steps)[update.name]


@pytest.mark.parametrize("rate", [0.25, 0.1, 1 / 3, 2.0, 7 / 16, 1.3])
def test_updates_are_as_many_as_asked_for_and_evenly_spread(rate):
    when = of(UpdateSpec(batch_size=4, updates_per_step=rate))
    due = [when.num_due(unroll) for unroll in range(1000)]
    made = np.cumsum(due)
    exact = fractions.Fraction(rate).limit_denominator(1000) * 4
    assert made.tolist() == [exact * n // 1 for n in range(1, 1001)]
    assert [when.num_made(n) for n in range(1, 1001)] == made.tolist()
    traced = jax.jit(jax.vmap(when.num_due))(np.arange(1000, dtype=np.int32))
    assert np.asarray(traced).tolist() == due


def test_large_numbers_of_unrolls_do_not_overflow():
    when = of(UpdateSpec(batch_size=4, updates_per_step=0.123456789))
    unrolls = 2**31 - 1 - np.arange(100, dtype=np.int32)
    traced = np.asarray(jax.jit(jax.vmap(when.num_due))(unrolls))
    assert traced.tolist() == [when.num_due(int(x)) for x in unrolls]
    assert set(traced) <= {0, 1}
    assert when.num_made(10**9) == pytest.approx(4 * 0.123456789 * 10**9, rel=1e-6)


@pytest.mark.parametrize("rate", [1e-8, 2.3456789e-7, 1.5e-5, 0.123456789, 1 - 1e-7, 7 + 1e-6])
def test_rates_are_kept_to_one_part_in_ten_thousand(rate):
    when = of(UpdateSpec(batch_size=4, updates_per_step=rate), num_environments=1)
    assert when.whole + when.part / when.of == pytest.approx(rate, rel=1e-4)
    unrolls = np.array([0, when.of - 1, when.of, 2**31 - 2], np.int32)
    traced = np.asarray(jax.jit(jax.vmap(when.num_due))(unrolls))
    assert traced.tolist() == [when.num_due(int(x)) for x in unrolls]


def test_a_rate_that_no_run_reaches_is_refused():
    update = UpdateSpec("learn", batch_size=4, updates_per_step=1e-12)
    with pytest.raises(ValueError, match="'learn' has 1e-12 updates per environment step"):
        of(update)


@pytest.mark.parametrize("length", range(1, 100))
def test_one_update_per_unroll_given_as_a_fraction(length):
    """1 / length is not exact: times length, it is below 1 for every second length."""
    assert of(
        UpdateSpec(batch_size=4, updates_per_step=1 / (4 * length)), unroll_length=length
    ) == (of(UpdateSpec(batch_size=4), unroll_length=length))


def test_one_update_per_unroll_is_the_default():
    when = of(UpdateSpec(batch_size=4), unroll_length=7)
    assert when.is_always_one
    assert [when.num_due(x) for x in range(5)] == [1] * 5


def test_none_is_due_before_its_first_step():
    when = of(UpdateSpec(batch_size=4, first_step=9, updates_per_step=0.5))
    # Unroll 2 ends at step 12, the first that is not before step 9.
    assert [when.num_due(x) for x in range(6)] == [0, 0, 2, 2, 2, 2]
    assert when.num_made(6) == 8


def test_none_is_due_before_the_replay_has_the_sequences():
    replay = ReplaySpec(capacity=1000, anywhere=True)
    update = UpdateSpec(
        batch_size=8,
        num_replayed=8,
        length=5,
        context=1,
        updates_per_step=0.125,
        min_sequences=30,
    )
    when = of(update, replay=replay)
    # After n unrolls 4 x (n - 5) sequences of six steps: 32 after the 13th.
    assert when.first == 12
    assert [when.num_due(x) for x in range(10, 20)] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1]


def test_what_is_never_due_is_refused():
    replay = ReplaySpec(capacity=40, anywhere=True)
    update = UpdateSpec("learn", 8, 8, length=5, updates_per_step=1.0, min_sequences=100)
    message = "'learn' waits for 100 sequences .min_sequences.; the replay has at most 24"
    with pytest.raises(ValueError, match=message):
        of(update, replay=replay)
    with pytest.raises(ValueError, match=r"at most 0.* and the run's budget"):
        of(update, num_steps=12, replay=ReplaySpec(capacity=1000, anywhere=True))


def test_updates_are_counted_by_kind():
    one, half = Schedule(), Schedule(whole=0, part=1, of=2)
    assert [x.num_made(9) for x in (one, half)] == [9, 4]
    assert as_metrics({"learn": 4}) == {"updates": 4.0}
    assert as_metrics({"a": 9, "b": 4}) == {"a/updates": 9.0, "b/updates": 4.0}

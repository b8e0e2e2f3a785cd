"""The replay: what is kept, drawn, and written back, of NumPy and of JAX arrays."""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.protocol import Batch, ReplaySpec, Requirements, UpdateSpec
from training import replay, replay_sampling

ENVIRONMENTS = 2
library = pytest.mark.parametrize("library", [np, jnp], ids=["numpy", "jax"])


def unroll_of(start: int, length: int, library) -> Batch:
    """Steps from `start` on, whose numbers are the step's, and 100 more in each environment."""
    rows = np.arange(start, start + length + 1)[:, None] + 100 * np.arange(ENVIRONMENTS)
    number = rows[:-1]
    fields: dict[str, Any] = {
        "observation": rows.astype(np.float32),
        "action": number.astype(np.int32),
        "reward": number.astype(np.float32),
        "discount": np.ones(number.shape, np.float32),
        "last": np.zeros(number.shape, bool),
        "mask": np.ones(number.shape, bool),
        "extras": {"z": np.zeros(number.shape, np.uint8), "y": number.astype(np.float32)},
    }
    return jax.tree.map(library.asarray, Batch(**fields))


def filled(requirements: Requirements, count: int, library) -> replay.Replay:
    length = requirements.unroll_length
    layout = replay.make_layout(requirements)
    kept = replay.init(layout, unroll_of(0, length, library), library)
    insert = replay.insert
    if library is jnp:
        insert = jax.jit(replay.insert, static_argnums=0)
    for number in range(count):
        kept = insert(requirements, kept, unroll_of(number * length, length, library))
    return kept


def drawn(requirements, kept, update, index, library):
    sample = replay_sampling.sample
    if library is jnp:
        sample = jax.jit(replay_sampling.sample, static_argnums=(0, 2))
    return sample(requirements, kept, update, library.asarray(index, library.int32))


UNROLLS = Requirements(ENVIRONMENTS, 3, replay=ReplaySpec(capacity=5 * 3))
ANYWHERE = Requirements(ENVIRONMENTS, 1, replay=ReplaySpec(capacity=20, anywhere=True))


@library
def test_the_oldest_unrolls_are_overwritten(library):
    update = UpdateSpec(batch_size=6, num_replayed=6)
    for count, starts in ((1, {0}), (2, {0, 3}), (3, {0, 3, 6}), (5, {6, 9, 12})):
        kept = filled(UNROLLS, count, library)
        number = int(replay.num_sequences(UNROLLS, kept, update))
        assert number == ENVIRONMENTS * len(starts)
        _, batch, _ = drawn(UNROLLS, kept, update, np.arange(number), library)
        first = np.asarray(batch.observation[0])
        assert set(first) == {start + 100 * i for start in starts for i in range(ENVIRONMENTS)}
        np.testing.assert_array_equal(np.diff(batch.observation, axis=0), 1.0)
        np.testing.assert_array_equal(batch.observation[:-1], batch.extras["y"])
        assert batch.observation.shape == (4, number)


@library
def test_sequences_begin_anywhere_and_have_their_context(library):
    update = UpdateSpec(batch_size=4, num_replayed=4, length=3, context=2)
    kept = filled(ANYWHERE, 4, library)
    assert replay.num_sequences(ANYWHERE, kept, update) == 0
    for count in (5, 9, 10, 14):
        kept = filled(ANYWHERE, count, library)
        number = int(replay.num_sequences(ANYWHERE, kept, update))
        oldest = max(0, count - 10)
        assert number == ENVIRONMENTS * (count - oldest - 4)
        _, batch, _ = drawn(ANYWHERE, kept, update, np.arange(number), library)
        assert batch.action.shape == (5, number)
        first = {int(x) % 100 for x in batch.action[0]}
        assert first == set(range(oldest, count - 4))
        np.testing.assert_array_equal(batch.observation[:-1], batch.reward)
        np.testing.assert_array_equal(np.diff(batch.observation, axis=0), 1.0)


@library
def test_fresh_sequences_come_first_once_and_without_overlap(library):
    online = dataclasses.replace(
        ANYWHERE, replay=ReplaySpec(capacity=40, anywhere=True, online=True)
    )
    update = UpdateSpec(batch_size=5, num_replayed=5, length=4, context=1)
    kept = filled(online, 9, library)
    index = np.full(5, 3)
    kept, batch, _ = drawn(online, kept, update, index, library)
    # Two windows of each environment, which share the step before; and one that was drawn.
    assert np.asarray(batch.action[0]).tolist() == [0, 100, 4, 104, 101]
    kept, batch, _ = drawn(online, kept, update, index, library)
    assert np.asarray(batch.action[0]).tolist() == [101] * 5
    for start in range(9, 9 + 4):
        kept = replay.insert(online, kept, unroll_of(start, 1, library))
    _, batch, _ = drawn(online, kept, update, index, library)
    assert np.asarray(batch.action[0]).tolist() == [8, 108, 101, 101, 101]


@library
def test_fresh_sequences_that_were_overwritten_are_passed_over(library):
    online = dataclasses.replace(
        ANYWHERE, replay=ReplaySpec(capacity=20, anywhere=True, online=True)
    )
    update = UpdateSpec(batch_size=3, num_replayed=3, length=4, context=1)
    kept = filled(online, 18, library)  # Rows 8 to 17 are there.
    kept, batch, _ = drawn(online, kept, update, np.zeros(3), library)
    assert np.asarray(batch.action[0]).tolist() == [8, 108, 12]
    _, batch, _ = drawn(online, kept, update, np.zeros(3), library)
    assert np.asarray(batch.action[0]).tolist() == [112, 8, 8]


@pytest.mark.parametrize("requirements", [UNROLLS, ANYWHERE])
@pytest.mark.parametrize("count", [1, 3, 50])
def test_a_replay_is_restored_from_its_filled_part(requirements, count):
    kept = filled(requirements, count, np)
    layout, example = (
        replay.layout_of(requirements, kept),
        unroll_of(0, requirements.unroll_length, np),
    )
    part = replay.filled(layout, kept, count)
    num_rows = min(count + 1, layout.num_slots) * requirements.unroll_length
    described = jax.eval_shape(lambda: replay.filled(layout, replay.init(layout, example), count))
    shape_of = operator.attrgetter("shape")
    assert jax.tree.map(shape_of, part) == jax.tree.map(shape_of, described)
    assert len(part.rows["observation"]) == num_rows
    restored = replay.fill(replay.init(layout, example, np), part)
    jax.tree.map(np.testing.assert_array_equal, restored, kept)


@library
def test_a_batch_has_the_rows_of_extras_that_its_update_reads(library):
    update = UpdateSpec(
        batch_size=2, num_replayed=2, length=3, context=2, extras_rows=(("y", 2), ("z", 0))
    )
    kept = filled(ANYWHERE, 13, library)
    kept, batch, sequences = drawn(ANYWHERE, kept, update, [2 * 4, 2 * 5 + 1], library)
    np.testing.assert_array_equal(batch.extras["y"], batch.reward[:2])
    assert batch.extras["z"].shape == (0, 2)
    # All rows but the context are written back all the same.
    new = library.ones((3, 2), library.uint8)
    kept = replay_sampling.write_back(ANYWHERE, kept, update, sequences, {"z": new})
    whole = dataclasses.replace(update, extras_rows=())
    _, batch, _ = drawn(ANYWHERE, kept, whole, [2 * 4], library)
    assert np.asarray(batch.extras["z"])[:, 0].tolist() == [0, 0, 1, 1, 1]


@library
def test_bfloat16_is_stored_drawn_and_written_back_exactly(library):
    update = UpdateSpec(batch_size=2, num_replayed=2, length=3, context=1)
    insert = jax.jit(replay.insert, static_argnums=0) if library is jnp else replay.insert

    def unroll(start: int) -> Batch:
        batch = unroll_of(start, 1, library)
        extras = batch.extras | {"y": (batch.extras["y"] / 7).astype(jnp.bfloat16)}
        return dataclasses.replace(batch, extras=extras)

    kept = replay.init(replay.make_layout(ANYWHERE), unroll(0), library)
    for start in range(13):
        kept = insert(ANYWHERE, kept, unroll(start))
    kept, batch, sequences = drawn(ANYWHERE, kept, update, [2 * 4, 2 * 6 + 1], library)
    assert batch.extras["y"].dtype == jnp.bfloat16
    expected = (np.asarray(batch.reward) / np.float32(7)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(batch.extras["y"]), expected)
    new = -library.asarray(batch.extras["y"][1:])
    kept = replay_sampling.write_back(ANYWHERE, kept, update, sequences, {"y": new})
    _, batch, _ = drawn(ANYWHERE, kept, update, [2 * 4, 2 * 6 + 1], library)
    np.testing.assert_array_equal(np.asarray(batch.extras["y"][1:]), -expected[1:])
    if library is np:
        part = replay.filled(replay.layout_of(ANYWHERE, kept), kept, 13)
        restored = replay.fill(replay.init(replay.make_layout(ANYWHERE), unroll(0), np), part)
        jax.tree.map(np.testing.assert_array_equal, restored, kept)


@library
def test_extras_are_written_back_where_they_came_from(library):
    update = UpdateSpec(batch_size=2, num_replayed=2, length=3, context=1)
    kept = filled(ANYWHERE, 13, library)  # Rows 3 to 12 are there.
    kept, batch, sequences = drawn(ANYWHERE, kept, update, [2 * 4, 2 * 6 + 1], library)
    assert np.asarray(batch.action[0]).tolist() == [7, 109]
    new = np.array([[1, 4], [2, 5], [3, 6]], np.uint8)
    kept = replay_sampling.write_back(
        ANYWHERE, kept, update, sequences, {"z": library.asarray(new)}
    )
    everything = np.arange(replay.num_sequences(ANYWHERE, kept, update))
    _, batch, _ = drawn(ANYWHERE, kept, update, everything, library)
    expected = {8: 1, 9: 2, 10: 3, 110: 4, 111: 5, 112: 6}
    for number, z in zip(np.ravel(batch.action), np.ravel(batch.extras["z"]), strict=True):
        assert z == expected.get(int(number), 0)
    np.testing.assert_array_equal(batch.extras["y"], batch.reward)


@library
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_where_sequences_overlap_a_row_has_all_extras_of_one_of_them(library, order):
    """It is the sequence in which most rows precede the row, in any order of the sequences."""
    update = UpdateSpec(batch_size=4, num_replayed=4, length=3)
    starts, environments = np.array([3, 5, 4, 5])[order], np.array([0, 0, 0, 1])[order]
    kept = filled(ANYWHERE, 13, library)
    oldest = 3
    _, _, sequences = drawn(ANYWHERE, kept, update, 2 * (starts - oldest) + environments, library)
    new = 10 * starts + np.arange(3)[:, None]
    refreshed = {"z": library.asarray(new, np.uint8), "y": library.asarray(new, np.float32)}
    kept = replay_sampling.write_back(ANYWHERE, kept, update, sequences, refreshed)
    for name in ("z", "y"):
        extras = np.asarray(kept.rows["transition"]["extras"][name])
        rows = np.arange(3, 8) % len(extras)
        assert extras[rows, 0].tolist() == [30, 31, 32, 42, 52]
        assert extras[rows[2:], 1].tolist() == [50, 51, 52]


def test_episodes_are_cut_where_a_run_goes_on():
    kept = filled(ANYWHERE, 6, np)
    replay.cut_episodes(ANYWHERE, kept)
    kept = replay.insert(ANYWHERE, kept, unroll_of(50, 1, np))
    update = UpdateSpec(batch_size=1, num_replayed=1, length=7)
    _, batch, _ = drawn(ANYWHERE, kept, update, [0], np)
    assert batch.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 50, 51]
    # The episode ends at row 5, where no action has an effect, and row 6 is another's first.
    assert batch.last[:, 0].tolist() == [False] * 4 + [True, False, False]
    assert batch.mask[:, 0].tolist() == [True] * 5 + [False, True]
    assert batch.reward[5, 0] == 0.0
    assert (batch.discount == 1.0).all()  # It is cut, not terminated.


def test_no_more_is_kept_than_a_run_has_steps():
    layout = replay.make_layout(ANYWHERE, num_steps=8)
    assert layout.num_kept == 4
    kept = replay.init(layout, unroll_of(0, 1, np), np)
    assert replay.layout_of(ANYWHERE, kept) == layout
    assert replay.num_bytes(kept) == sum(x.nbytes for x in jax.tree.leaves(kept))


@library
@pytest.mark.parametrize("count", [9, 26], ids=["not yet full", "overwritten"])
def test_sequences_are_drawn_by_their_priorities(library, count):
    """In proportion to the extra in their first row, wherever that is in the ring."""
    update = UpdateSpec(batch_size=1, num_replayed=1, length=3, priority="y")
    kept = filled(ANYWHERE, count, library)
    number = int(replay.num_sequences(ANYWHERE, kept, update))
    # A row's priority is the step's number, and 100 more in the other environment.
    uniform = library.asarray((np.arange(20_000) + 0.5) / 20_000, library.float32)
    index = np.asarray(replay_sampling.index_by_priority(ANYWHERE, kept, update, uniform))
    assert index.min() >= 0
    assert index.max() < number
    oldest = count - min(count, 10)
    places, environments = np.arange(number) // ENVIRONMENTS, np.arange(number) % ENVIRONMENTS
    expected = oldest + places + 100.0 * environments
    found = np.bincount(index, minlength=number) / 20_000
    np.testing.assert_allclose(found, expected / expected.sum(), atol=2e-4)
    _, batch, _ = drawn(ANYWHERE, kept, update, index[:100], library)
    np.testing.assert_array_equal(batch.extras["y"][0], expected[index[:100]])


@library
def test_without_any_priority_all_sequences_are_as_likely(library):
    update = UpdateSpec(batch_size=1, num_replayed=1, length=3, priority="z")
    kept = filled(ANYWHERE, 9, library)
    number = int(replay.num_sequences(ANYWHERE, kept, update))
    uniform = library.asarray((np.arange(number) + 0.5) / number, library.float32)
    index = np.asarray(replay_sampling.index_by_priority(ANYWHERE, kept, update, uniform))
    assert sorted(index.tolist()) == list(range(number))


@library
def test_a_random_number_next_to_one_is_the_last_sequence_with_a_priority(library):
    update = UpdateSpec(batch_size=1, num_replayed=1, length=3, priority="y")
    kept = filled(ANYWHERE, 9, library)
    number = int(replay.num_sequences(ANYWHERE, kept, update))
    index = replay_sampling.index_by_priority(
        ANYWHERE, kept, update, library.ones(1, library.float32)
    )
    assert np.asarray(index).tolist() == [number - 1]


@library
def test_extras_with_fewer_rows_are_written_into_the_first_ones(library):
    update = UpdateSpec(batch_size=2, num_replayed=2, length=3)
    kept = filled(ANYWHERE, 9, library)
    kept, _, sequences = drawn(ANYWHERE, kept, update, [0, 2], library)  # Rows 0 and 1.
    new = library.asarray([[7.0, 8.0]], library.float32)
    kept = replay_sampling.write_back(ANYWHERE, kept, update, sequences, {"y": new})
    found = np.asarray(kept.rows["transition"]["extras"]["y"])[:4, 0]
    np.testing.assert_array_equal(found, [7.0, 8.0, 2.0, 3.0])

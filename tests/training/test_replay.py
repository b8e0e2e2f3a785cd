"""The ring buffer of sequences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.training.common import random_batch
from training import replay

CAPACITY = 5


def numbered(*numbers: int):
    """Sequences that can be told apart by their rewards."""
    batch = random_batch(num_transitions=3, batch_size=len(numbers))
    reward = jnp.broadcast_to(jnp.asarray(numbers, jnp.float32), batch.reward.shape)
    return dataclasses.replace(batch, reward=reward, observation={"x": batch.observation})


def stored(memory: replay.Replay) -> list[float]:
    return [float(x) for x in memory.sequences.reward[:, 0]]


def drawn(memory: replay.Replay, seed: int = 0) -> np.ndarray:
    sample = replay.sample(memory, jax.random.key(seed), 400)
    return np.asarray(sample.reward[0])


def test_oldest_are_overwritten():
    memory = replay.init(numbered(0, 0), CAPACITY)
    memory = replay.insert(memory, numbered(1, 2))
    assert stored(memory) == [1, 2, 0, 0, 0]
    memory = replay.insert(memory, numbered(3, 4))
    memory = replay.insert(memory, numbered(5, 6))
    assert stored(memory) == [6, 2, 3, 4, 5]
    memory = replay.insert(memory, numbered(7, 8))
    assert stored(memory) == [6, 7, 8, 4, 5]
    assert int(memory.size) == CAPACITY


def test_draws_uniformly_from_what_is_there():
    memory = replay.insert(replay.init(numbered(0, 0), CAPACITY), numbered(1, 2))
    assert set(drawn(memory)) == {1, 2}
    for numbers in ((3, 4), (5, 6)):
        memory = replay.insert(memory, numbered(*numbers))
    values, counts = np.unique(drawn(memory), return_counts=True)
    assert set(values) == {2, 3, 4, 5, 6}
    assert counts.min() > 50  # Of 80.
    assert not np.array_equal(drawn(memory), drawn(memory, seed=1))


def test_sequences_come_back_whole():
    first, second = numbered(1, 2), numbered(3, 4)
    memory = replay.insert(replay.insert(replay.init(first, CAPACITY), first), second)
    sample = replay.sample(memory, jax.random.key(0), 6)
    assert jax.tree.map(jnp.shape, sample) == jax.tree.map(
        lambda x: (x.shape[0], 6, *x.shape[2:]), first
    )
    given = jax.tree.map(lambda *x: np.concatenate(x, axis=1), first, second)
    for column, number in enumerate(sample.reward[0]):
        jax.tree.map(
            lambda a, b, i=column, j=int(number) - 1: np.testing.assert_array_equal(
                a[:, i], b[:, j]
            ),
            sample,
            given,
        )

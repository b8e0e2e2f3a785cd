"""A replay of sequences on the device: a ring buffer inside `jit`."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from agents.protocol import Batch
from training.batches import map_batch


@chex.dataclass(frozen=True)
class Replay:
    """The last sequences of one agent.

    Attributes:
      sequences: a `Batch` with leaves `[capacity, T, ...]` (observations T+1).
      position: where the next one goes.
      size: how many there are.
    """

    sequences: Batch
    position: Int[Array, "*runs"]
    size: Int[Array, "*runs"]


def init(example: Batch, capacity: int) -> Replay:
    """An empty replay for sequences shaped like `example` (arrays or shapes, `[T, B, ...]`)."""

    def empty(axis, x):
        return jnp.zeros((capacity, *x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)

    return Replay(
        sequences=map_batch(empty, example),
        position=jnp.zeros((), jnp.int32),
        size=jnp.zeros((), jnp.int32),
    )


def insert(replay: Replay, fresh: Batch) -> Replay:
    """Adds B sequences, replacing the oldest ones of a full replay."""
    count = fresh.action.shape[1]
    capacity = replay.sequences.action.shape[0]
    slots = (replay.position + jnp.arange(count)) % capacity

    def put(axis, old, new):
        return old.at[slots].set(jnp.moveaxis(new, axis, 0))

    return Replay(
        sequences=map_batch(put, replay.sequences, fresh),
        position=(replay.position + count) % capacity,
        size=jnp.minimum(replay.size + count, capacity),
    )


def sample(replay: Replay, key: PRNGKeyArray, count: int) -> Batch:
    """`count` sequences, drawn uniformly with replacement."""
    slots = jax.random.randint(key, (count,), 0, replay.size)
    return map_batch(lambda axis, x: jnp.moveaxis(x[slots], 0, axis), replay.sequences)

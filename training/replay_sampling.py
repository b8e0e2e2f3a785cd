"""Draws from a replay, and what updates write back; on the device and in the host's memory."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from agents.history import History
from agents.protocol import Batch, Extras, Requirements, UpdateSpec
from training import collection
from training.replay import (
    Positions,
    Replay,
    ReplayLayout,
    layout_of,
    library_of,
    num_sequences,
    num_transitions,
)


def draw(
    requirements: Requirements,
    replay: Replay | None,
    update: UpdateSpec,
    unroll: Batch,
    random: PRNGKeyArray | np.random.Generator,
) -> tuple[Replay | None, Batch, Positions | None]:
    """Return the batch of an update: the unroll just collected, or replayed sequences, or both.

    Args:
      requirements: of the agent.
      replay: to draw from; None without one.
      update: its kind.
      unroll: the last one, leaves `[T+1, E, ...]` or `[T, E, ...]`.
      random: a generator for a replay of NumPy arrays, a key for one on the device.

    Returns:
      The replay after the draw, the batch (leaves `[T+1, B, ...]` for observations, `[T, B, ...]`
      for what belongs to a step, `[B, ...]` for the memory before the first; replayed sequences
      are behind the unroll's), and the positions in the replay of its replayed sequences.
    """
    if not update.num_replayed:
        return replay, unroll, None
    assert replay is not None
    number, below = update.num_replayed, num_sequences(requirements, replay, update)
    is_host = isinstance(random, np.random.Generator)
    if update.priority:
        uniform = random.random(number) if is_host else jax.random.uniform(random, (number,))
        index = index_by_priority(requirements, replay, update, uniform)
    elif is_host:
        index = random.integers(below, size=number)
    else:
        index = jax.random.randint(random, (number,), 0, below)
    replay, batch, sequences = sample(requirements, replay, update, index)
    if update.num_replayed < update.batch_size:
        batch = collection.concatenate([unroll, batch])
    return replay, batch, sequences


def sample(
    requirements: Requirements, replay: Replay, update: UpdateSpec, index: Any
) -> tuple[Replay, Batch, Positions]:
    """Return a batch of replayed sequences.

    `index` has random integers from 0 to `num_sequences - 1`, `[B]`; a NumPy array for a replay of
    NumPy arrays.

    Returns:
      The replay after the draw, the batch, and the positions of its sequences.
    """
    layout = layout_of(requirements, replay)
    sequences = _locate(layout, replay, index)
    if layout.replay_spec.online:
        replay, sequences = _take_online(layout, replay, update, sequences)
    return replay, _gather(layout, replay, update, sequences), sequences


def _locate(layout: ReplayLayout, replay: Replay, index: Any) -> Positions:
    """Return the positions of sequences, given by their indices `[B]`."""
    kept = library_of(index).minimum(replay.num_unrolls, layout.num_kept)
    place, environment = index // layout.num_environments, index % layout.num_environments
    if layout.replay_spec.anywhere:
        oldest = (replay.num_unrolls - kept) * layout.unroll_length
        return Positions(environment, oldest + place)
    newest = replay.num_unrolls - 1
    unroll = newest - (newest - place) % layout.num_kept
    return Positions(environment, unroll * layout.unroll_length)


def _take_online(
    layout: ReplayLayout, replay: Replay, update: UpdateSpec, drawn: Positions
) -> tuple[Replay, Positions]:
    """Replace the first drawn sequences by new, unused ones, if any (`ReplaySpec.online`).

    New sequences begin every `length` rows, in all environments in turn. A new sequence's context
    is the end of the previous one.
    """
    assert update.length is not None
    size, number = drawn.first.shape[0], layout.num_environments
    library = library_of(drawn.first)
    rows = replay.num_unrolls * layout.unroll_length
    oldest = rows - library.minimum(replay.num_unrolls, layout.num_kept) * layout.unroll_length
    there = library.maximum(rows - update.context, 0) // update.length * number
    first_there = -(-oldest // update.length) * number
    head = library.maximum(replay.num_online, first_there)
    fresh = head + library.arange(size, dtype=library.int32)
    is_fresh = fresh < there
    drawn = Positions(
        environment=library.where(is_fresh, fresh % number, drawn.environment),
        first=library.where(is_fresh, fresh // number * update.length, drawn.first),
    )
    head = library.minimum(head + size, library.maximum(there, head))
    return dataclasses.replace(replay, num_online=head), drawn


def _gather(
    layout: ReplayLayout, replay: Replay, update: UpdateSpec, sequences: Positions
) -> Batch:
    """Return a batch of the sequences at these positions."""
    history, (environment, first) = layout.history, sequences
    library = library_of(first)
    length = num_transitions(update, layout.unroll_length)

    def rows(begin: int, end: int):
        return (first[None] + library.arange(begin, end)[:, None]) % layout.num_rows

    observed = rows(-history.rows_before, length + 1)
    observation: Any = jax.tree.map(lambda x: x[observed, environment], replay.rows["observation"])
    memory = None
    if history.is_history:
        aged = rows(-history.burn_in, length + 1)
        observation = History(frames=observation, age=replay.rows["age"][aged, environment])
        slot = first // layout.unroll_length % layout.num_slots
        memory = jax.tree.map(lambda x: x[slot, environment], replay.memories)

    def take(kept: PyTree, length: int) -> PyTree:
        taken = rows(0, length)
        return jax.tree.map(lambda x: x[taken, environment], kept)

    transition, of_name = dict(replay.rows["transition"]), dict(update.extras_rows)
    extras = transition.pop("extras")
    if of_name:
        extras = {name: take(x, of_name.get(name, length)) for name, x in extras.items()}
    else:
        extras = take(extras, length)
    return Batch(observation=observation, memory=memory, extras=extras, **take(transition, length))


def write_back(
    requirements: Requirements,
    replay: Replay,
    update: UpdateSpec,
    sequences: Positions,
    refreshed: Extras,
) -> Replay:
    """Replace extras of the last `length` rows of sequences that were drawn since the last unroll.

    Where sequences overlap, a row has the extras of the sequence in which most rows precede it.

    `refreshed` has new extras by name, leaves `[length, B, ...]` (`agents.protocol.Update`), or all
    of them with fewer rows, the first of these.
    """
    layout, (environment, first) = layout_of(requirements, replay), sequences
    library = library_of(first)
    length = jax.tree.leaves(refreshed)[0].shape[0]
    rows = (first[None] + update.context + library.arange(length)[:, None]) % layout.num_rows
    extras = dict(replay.rows["transition"]["extras"])
    if library is np:
        # In this order, the last write of a row is that of the right sequence. One assignment of
        # all sequences would need a copy of the new extras.
        for i in np.argsort(-first, kind="stable"):
            for name, new in refreshed.items():
                jax.tree.map(
                    lambda kept, x, i=i: kept.__setitem__((rows[:, i], environment[i]), x[:, i]),
                    extras[name],
                    new,
                )
    else:
        latest = _latest(sequences, length)
        for name, new in refreshed.items():
            extras[name] = jax.tree.map(
                lambda kept, x: kept.at[rows, environment].set(x[latest]), extras[name], new
            )
    transition = replay.rows["transition"] | {"extras": extras}
    return dataclasses.replace(replay, rows=replay.rows | {"transition": transition})


def _latest(sequences: Positions, length: int) -> tuple[Any, Any]:
    """Return, for each row of sequences, where that row comes last in any of the sequences.

    A scatter of JAX with repeated indices has no defined order on a GPU; with these, equal indices
    have equal values.

    Returns:
      The time and the sequence, each `[length, B]`.
    """
    environment, first = sequences
    library, size = library_of(first), first.shape[0]
    # [length, B, B]: where row t of sequence b is in sequence c.
    time = library.arange(length)[:, None, None] + (first[:, None] - first[None])[None]
    is_same = (environment[:, None] == environment[None])[None]
    is_there = is_same & (time >= 0) & (time < length)
    sequence = library.arange(size)[None, None]
    place = library.where(is_there, time * size + sequence, -1).max(axis=-1)
    return place // size, place % size


def index_by_priority(
    requirements: Requirements, replay: Replay, update: UpdateSpec, uniform: Any
) -> Any:
    """Return indices of sequences, drawn by their priorities; if all are 0, each is as likely.

    `uniform` has random numbers from 0 to 1, `[B]`; a NumPy array for a replay of NumPy arrays.

    Raises:
      ValueError: if there is no extra of this name.
    """
    layout = layout_of(requirements, replay)
    library = library_of(uniform)
    number, kept = layout.num_environments, library.minimum(replay.num_unrolls, layout.num_kept)
    oldest = (replay.num_unrolls - kept) * layout.unroll_length
    # Of each row, its distance from the oldest one.
    place = (library.arange(layout.num_rows) - oldest) % layout.num_rows
    is_start = place < layout.num_sequences(update, replay.num_unrolls) // number
    extras = replay.rows["transition"]["extras"]
    if update.priority not in extras:
        raise ValueError(
            f"The update {update.name!r} draws by the priority {update.priority!r}; expected one of"
            f" the extras of `act`: {', '.join(extras) or 'none'}."
        )
    priority = extras[update.priority].astype(uniform.dtype)
    priority = library.where(is_start[:, None], library.maximum(priority, 0), 0)
    is_start = library.broadcast_to(is_start[:, None], priority.shape).astype(priority.dtype)
    priority = library.where(library.any(priority > 0), priority, is_start).reshape(-1)
    cumulative = library.cumsum(priority)
    at = library.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    # Sums are rounded, in any order: where that leads to a row that cannot be drawn, take the last
    # one that can.
    last = library.max(library.where(priority > 0, library.arange(priority.size), 0))
    at = library.minimum(at, last)
    at = library.where(priority[at] > 0, at, last)
    return (place[at // number] * number + at % number).astype(library.int32)

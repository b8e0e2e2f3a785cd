"""A replay of each environment's last steps, on the device or in the host's memory.

Each environment's steps are one stream in a ring buffer of rows. Every observation is stored once,
in its own dtype. A sequence is a range of rows. It begins at the first row of an unroll, or at any
row (`ReplaySpec.anywhere`). Its last observation, and the rows before its first (for stacked frames
and burn-in), are rows of the neighbouring sequences. A million single Atari frames take 6.7 GiB.

Both backends use the same functions. They change a replay of NumPy arrays in place, but not a
replay of JAX arrays. In both cases the returned replay is the valid one.
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from agents.history import History, HistorySpec
from agents.protocol import Batch, Experience, Extras, ReplaySpec, UpdateSpec

# Of one run, or `[runs]` of several that are vectorised.
_Integer = int | np.integer | Int[Array, "*runs"] | Int[np.ndarray, ""]
_Integers = Int[Array, "B"] | Int[np.ndarray, "B"]


@dataclasses.dataclass(frozen=True)
class ReplayLayout:
    """The sizes of a replay.

    Attributes:
      spec: the agent's specification of the replay.
      history: the past observations that an observation contains.
      num_environments: E.
      unroll_length: U, rows that each insertion adds.
      num_kept: unrolls of each environment from which sequences are drawn.
    """

    spec: ReplaySpec
    history: HistorySpec
    num_environments: int
    unroll_length: int
    num_kept: int

    @property
    def num_slots(self) -> int:
        """Capacity in unrolls of each environment."""
        # More than `num_kept`, for the newest unroll's last row and the rows before the oldest.
        return self.num_kept + math.ceil((self.history.rows_before + 1) / self.unroll_length)

    @property
    def num_rows(self) -> int:
        """R, the capacity in rows of each environment."""
        return self.num_slots * self.unroll_length

    def num_sequences(self, update: UpdateSpec, num_unrolls: Any) -> Any:
        """Return the number of sequences in the replay after some unrolls.

        Args:
          update: the kind of update, which determines the sequences' length.
          num_unrolls: number of inserted unrolls, an integer or `[]`.
        """
        if not self.spec.anywhere:
            return _minimum(num_unrolls, self.num_kept) * self.num_environments
        rows = _minimum(num_unrolls, self.num_kept) * self.unroll_length
        starts = rows - num_transitions(update, self.unroll_length) + 1
        return _maximum(starts, 0) * self.num_environments


def layout(experience: Experience, num_steps: int | None = None) -> ReplayLayout:
    """Return the sizes of an agent's replay.

    The environment steps of a run bound the replay's; `num_steps` is None for no bound.
    """
    spec = experience.replay
    assert spec is not None
    sequences = spec.capacity // experience.unroll_length
    num_kept = max(1, math.ceil(sequences / experience.num_environments))
    if num_steps is not None:
        num_kept = min(num_kept, max(1, num_steps // experience.steps_per_unroll))
    return ReplayLayout(
        spec=spec,
        history=experience.history,
        num_environments=experience.num_environments,
        unroll_length=experience.unroll_length,
        num_kept=num_kept,
    )


def layout_of(experience: Experience, replay: "Replay") -> ReplayLayout:
    """Return the sizes of an existing replay."""
    whole = layout(experience)
    num_slots = replay.rows["transition"]["reward"].shape[0] // experience.unroll_length
    return dataclasses.replace(whole, num_kept=num_slots - (whole.num_slots - whole.num_kept))


def num_transitions(update: UpdateSpec, unroll_length: int) -> int:
    """Return the number of transitions of an update's sequences, their context included."""
    return update.context + (update.length or unroll_length)


@chex.dataclass(frozen=True)
class Replay:
    """The last steps of E environments; JAX or NumPy arrays.

    Attributes:
      rows: by name, leaves `[R, E, ...]`.
      memories: the agent's memory before each unroll, leaves `[num_slots, E, ...]`; None for an
        agent without one.
      num_unrolls: number of inserted unrolls.
      num_online: number of new sequences that were already used or overwritten
        (`ReplaySpec.online`).
    """

    rows: dict[str, PyTree]
    memories: PyTree
    num_unrolls: _Integer
    num_online: _Integer


class Sequences(NamedTuple):
    """The positions of sequences in a replay.

    Attributes:
      environment: of each sequence, `[B]`.
      first: each sequence's first row, counted from the run's start, `[B]`.
    """

    environment: _Integers
    first: _Integers


def init(layout: ReplayLayout, example: Batch, library: Any = jnp) -> Replay:
    """Return an empty replay.

    Args:
      layout: its sizes.
      example: an unroll, arrays or shapes, `[T, E, ...]`.
      library: `jax.numpy` or `numpy`. The operating system allocates NumPy's zeros lazily, as they
        are filled.
    """
    rows, memories = _split(example)

    return Replay(
        rows=jax.tree.map(lambda x: library.zeros((layout.num_rows, *x.shape[1:]), x.dtype), rows),
        memories=jax.tree.map(
            lambda x: library.zeros((layout.num_slots, *x.shape), x.dtype), memories
        ),
        num_unrolls=library.zeros((), library.int32),
        num_online=library.zeros((), library.int32),
    )


def insert(experience: Experience, replay: Replay, unroll: Batch) -> Replay:
    """Add an unroll of each environment; it must continue the last inserted unroll."""
    layout = layout_of(experience, replay)
    slot = replay.num_unrolls % layout.num_slots
    start, length, before = slot * layout.unroll_length, layout.unroll_length, layout.history
    new, memory = _split(unroll)
    kept = dict(replay.rows)

    def write_with_last(kept, new):  # The last row is the next unroll's first.
        kept = _write(kept, start, new[:length])
        return _write(kept, (start + length) % layout.num_rows, new[length:])

    kept["observation"] = jax.tree.map(
        lambda kept, new: write_with_last(kept, new[before.rows_before :]),
        kept["observation"],
        new["observation"],
    )
    if before.is_history:
        kept["age"] = write_with_last(kept["age"], new["age"][before.burn_in :])
    kept["transition"] = jax.tree.map(
        lambda kept, new: _write(kept, start, new), kept["transition"], new["transition"]
    )
    return dataclasses.replace(
        replay,
        rows=kept,
        memories=jax.tree.map(lambda kept, x: _write(kept, slot, x[None]), replay.memories, memory),
        num_unrolls=replay.num_unrolls + 1,
    )


def num_sequences(experience: Experience, replay: Replay, update: UpdateSpec) -> Any:
    """Return the number of sequences from which an update draws, an integer or `[]`."""
    return layout_of(experience, replay).num_sequences(update, replay.num_unrolls)


def sample(
    experience: Experience, replay: Replay, update: UpdateSpec, index: Any
) -> tuple[Replay, Batch, Sequences]:
    """Return a batch of replayed sequences.

    `index` has random integers from 0 to `num_sequences - 1`, `[B]`; a NumPy array for a replay of
    NumPy arrays.

    Returns:
      The replay after the draw, the batch, and the positions of its sequences.
    """
    layout = layout_of(experience, replay)
    sequences = _locate(layout, replay, index)
    if layout.spec.online:
        replay, sequences = _take_online(layout, replay, update, sequences)
    return replay, _gather(layout, replay, update, sequences), sequences


def _locate(layout: ReplayLayout, replay: Replay, index: Any) -> Sequences:
    """Return the positions of sequences, given by their indices `[B]`."""
    kept = _minimum(replay.num_unrolls, layout.num_kept)
    place, environment = index // layout.num_environments, index % layout.num_environments
    if layout.spec.anywhere:
        oldest = (replay.num_unrolls - kept) * layout.unroll_length
        return Sequences(environment, oldest + place)
    newest = replay.num_unrolls - 1
    unroll = newest - (newest - place) % layout.num_kept
    return Sequences(environment, unroll * layout.unroll_length)


def _take_online(
    layout: ReplayLayout, replay: Replay, update: UpdateSpec, drawn: Sequences
) -> tuple[Replay, Sequences]:
    """Replace the first drawn sequences by new, unused ones, if any (`ReplaySpec.online`).

    New sequences begin every `length` rows, in all environments in turn. A new sequence's context
    is the end of the previous one.
    """
    assert update.length is not None
    size, number = drawn.first.shape[0], layout.num_environments
    rows = replay.num_unrolls * layout.unroll_length
    oldest = rows - _minimum(replay.num_unrolls, layout.num_kept) * layout.unroll_length
    there = _maximum(rows - update.context, 0) // update.length * number
    first_there = -(-oldest // update.length) * number
    head = _maximum(replay.num_online, first_there)
    library = _library(drawn.first)
    fresh = head + library.arange(size, dtype=library.int32)
    is_fresh = fresh < there
    drawn = Sequences(
        environment=library.where(is_fresh, fresh % number, drawn.environment),
        first=library.where(is_fresh, fresh // number * update.length, drawn.first),
    )
    head = _minimum(head + size, _maximum(there, head))
    return dataclasses.replace(replay, num_online=head), drawn


def _gather(
    layout: ReplayLayout, replay: Replay, update: UpdateSpec, sequences: Sequences
) -> Batch:
    """Return a batch of the sequences at these positions."""
    history, (environment, first) = layout.history, sequences
    library = _library(first)
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

    transition = dict(replay.rows["transition"])
    extras = transition.pop("extras")
    if update.extras_rows:
        of_name = dict(update.extras_rows)
        extras = {name: take(x, of_name.get(name, length)) for name, x in extras.items()}
    else:
        extras = take(extras, length)
    return Batch(observation=observation, memory=memory, extras=extras, **take(transition, length))


def write_back(
    experience: Experience,
    replay: Replay,
    update: UpdateSpec,
    sequences: Sequences,
    refreshed: Extras,
) -> Replay:
    """Replace extras of the last `length` rows of sequences that were drawn since the last unroll.

    New extras may have fewer rows, the first of these.
    Where sequences overlap, a row has the extras of the sequence in which most rows precede it.

    `refreshed` has new extras by name, leaves `[length, B, ...]` (`agents.protocol.Update`), or all
    of them with fewer rows.
    """
    layout, (environment, first) = layout_of(experience, replay), sequences
    library = _library(first)
    length = jax.tree.leaves(refreshed)[0].shape[0]
    rows = (first[None] + update.context + library.arange(length)[:, None]) % layout.num_rows
    extras = dict(replay.rows["transition"]["extras"])
    if library is np:
        # In this order, the last write of a row is that of the right sequence. One assignment of
        # all sequences would need a copy of the new extras.
        for i in np.argsort(-first, kind="stable"):
            write = partial(_assign, (rows[:, i], environment[i]), i)
            for name, new in refreshed.items():
                jax.tree.map(write, extras[name], new)
    else:
        latest = _latest(sequences, length)
        for name, new in refreshed.items():
            extras[name] = jax.tree.map(
                lambda kept, x: kept.at[rows, environment].set(x[latest]), extras[name], new
            )
    transition = replay.rows["transition"] | {"extras": extras}
    return dataclasses.replace(replay, rows=replay.rows | {"transition": transition})


def _latest(sequences: Sequences, length: int) -> tuple[Any, Any]:
    """Return, for each row of sequences, where that row comes last in any of the sequences.

    A scatter of JAX with repeated indices has no defined order on a GPU; with these, equal indices
    have equal values.

    Returns:
      The time and the sequence, each `[length, B]`.
    """
    environment, first = sequences
    library, size = _library(first), first.shape[0]
    # [length, B, B]: where row t of sequence b is in sequence c.
    time = library.arange(length)[:, None, None] + (first[:, None] - first[None])[None]
    is_same = (environment[:, None] == environment[None])[None]
    is_there = is_same & (time >= 0) & (time < length)
    sequence = library.arange(size)[None, None]
    place = library.where(is_there, time * size + sequence, -1).max(axis=-1)
    return place // size, place % size


def num_bytes(tree: PyTree) -> int:
    """Return the bytes of the arrays in a pytree, or of arrays of its shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _split(batch: Batch) -> tuple[dict[str, PyTree], PyTree]:
    """Return the arrays to store of each step, and those of each unroll."""
    fields = ("action", "reward", "discount", "last", "mask", "extras")
    rows: dict[str, PyTree] = {
        "observation": batch.observation,
        "transition": {name: getattr(batch, name) for name in fields},
    }
    if isinstance(batch.observation, History):
        rows |= {"observation": batch.observation.frames, "age": batch.observation.age}
    return rows, batch.memory


def _write(kept: Any, start: Any, new: Any) -> Any:
    """Write consecutive rows from `start`; they must fit before the end."""
    if isinstance(kept, np.ndarray):
        kept[int(start) : int(start) + len(new)] = new
        return kept
    return jax.lax.dynamic_update_slice_in_dim(kept, new, start, axis=0)


def _assign(index: tuple[Any, Any], sequence: Any, kept: Any, new: Any) -> None:
    """Write one sequence of new extras, `[length, B, ...]`, into rows of one environment."""
    kept[index] = new[:, sequence]


def _minimum(a: Any, b: Any) -> Any:
    return _library(a, b).minimum(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return _library(a, b).maximum(a, b)


def _library(*operands: Any) -> Any:
    """Return the library of an operation: JAX's if an operand is a JAX array, otherwise NumPy."""
    return jnp if any(isinstance(x, jax.Array) for x in operands) else np

"""A replay of the last steps of each environment, on the device or in the host's memory.

Each environment's steps are one stream, in a ring of rows: every observation once, in its own
dtype. A sequence is a range of rows. It begins at the first row of an unroll, or at any row
(`ReplaySpec.anywhere`). Its last observation, and the rows before its first (for stacked frames and
burn-in), belong to its neighbours. A million single Atari frames take 6.7 GiB.

The same functions serve both backends: a replay of NumPy arrays is changed in place, one of JAX
arrays is not, and both return the replay to go on with.
"""

import dataclasses
import math
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
      spec: what the agent asks for.
      history: what its observations hold of the past.
      num_environments: E.
      unroll_length: U, rows that each insertion adds.
      num_kept: unrolls of each environment that sequences are drawn from.
    """

    spec: ReplaySpec
    history: HistorySpec
    num_environments: int
    unroll_length: int
    num_kept: int

    @property
    def num_slots(self) -> int:
        """Unrolls of each environment that there is room for."""
        # The newest unroll's last row, and rows before the oldest, need room besides.
        return self.num_kept + math.ceil((self.history.rows_before + 1) / self.unroll_length)

    @property
    def num_rows(self) -> int:
        """R, rows that there is room for."""
        return self.num_slots * self.unroll_length

    def num_sequences(self, update: UpdateSpec, num_unrolls: Any) -> Any:
        """Return the number of sequences to draw from after some unrolls.

        Args:
          update: that they are for.
          num_unrolls: inserted so far, an integer or `[]`.
        """
        if not self.spec.anywhere:
            return _minimum(num_unrolls, self.num_kept) * self.num_environments
        rows = _minimum(num_unrolls, self.num_kept) * self.unroll_length
        starts = rows - num_transitions(update, self.unroll_length) + 1
        return _maximum(starts, 0) * self.num_environments


def layout(experience: Experience, num_steps: int | None = None) -> ReplayLayout:
    """Return the sizes of an agent's replay.

    Args:
      experience: that the agent needs; with a replay.
      num_steps: environment steps of a run, more than which no replay keeps; None for any number.
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
    """Return the sizes of a replay that is there."""
    whole = layout(experience)
    num_slots = replay.rows["transition"]["reward"].shape[0] // experience.unroll_length
    return dataclasses.replace(whole, num_kept=num_slots - (whole.num_slots - whole.num_kept))


def num_transitions(update: UpdateSpec, unroll_length: int) -> int:
    """Return the transitions of an update's sequences, those of the context included."""
    return update.context + (update.length or unroll_length)


@chex.dataclass(frozen=True)
class Replay:
    """The last steps of E environments; JAX or NumPy arrays.

    Attributes:
      rows: by name, leaves `[R, E, ...]`.
      memories: the agent's memory before each unroll, leaves `[num_slots, E, ...]`; None for an
        agent without.
      num_unrolls: inserted so far.
      num_online: fresh sequences that were learned from or overwritten (`ReplaySpec.online`).
    """

    rows: dict[str, PyTree]
    memories: PyTree
    num_unrolls: _Integer
    num_online: _Integer


class Sequences(NamedTuple):
    """Where some sequences are in a replay.

    Attributes:
      environment: of each, `[B]`.
      first: its first row, counted from the run's beginning, `[B]`.
    """

    environment: _Integers
    first: _Integers


def init(layout: ReplayLayout, example: Batch, library: Any = jnp) -> Replay:
    """Return an empty replay.

    Args:
      layout: its sizes.
      example: an unroll, arrays or shapes, `[T, E, ...]`.
      library: `jax.numpy` or `numpy`. Of the latter's arrays the system hands out the memory as it
        is filled.
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
    """Add an unroll of each environment, which continues those inserted last."""
    layout = layout_of(experience, replay)
    slot = replay.num_unrolls % layout.num_slots
    start, length, before = slot * layout.unroll_length, layout.unroll_length, layout.history
    new, memory = _split(unroll)
    kept = dict(replay.rows)

    def write_with_last(kept, new):  # The row after the unroll is the next one's first.
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
    """Return the number of sequences that an update's are drawn from, an integer or `[]`."""
    return layout_of(experience, replay).num_sequences(update, replay.num_unrolls)


def sample(
    experience: Experience, replay: Replay, update: UpdateSpec, index: Any
) -> tuple[Replay, Batch, Sequences]:
    """Return a batch of replayed sequences.

    Args:
      experience: that the agent needs.
      replay: to draw from.
      update: that the batch is for.
      index: uniformly random integers from 0 to `num_sequences - 1`, `[B]`; NumPy's for a replay
        of NumPy arrays.

    Returns:
      The replay after the draw, the batch, and where its sequences are.
    """
    layout = layout_of(experience, replay)
    sequences = _locate(layout, replay, index)
    if layout.spec.online:
        replay, sequences = _take_online(layout, replay, update, sequences)
    return replay, _gather(layout, replay, update, sequences), sequences


def _locate(layout: ReplayLayout, replay: Replay, index: Any) -> Sequences:
    """Return the sequences of some numbers, `[B]`."""
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
    """Put fresh sequences in the place of the first of those drawn (`ReplaySpec.online`).

    Fresh ones follow one another every `length` rows, in all environments in turn. Their context
    is the end of the one before.
    """
    assert update.length is not None
    size, number = drawn.first.shape[0], layout.num_environments
    rows = replay.num_unrolls * layout.unroll_length
    oldest = rows - _minimum(replay.num_unrolls, layout.num_kept) * layout.unroll_length
    there = _maximum(rows - update.context, 0) // update.length * number
    first_there = -(-oldest // update.length) * number
    head = _maximum(replay.num_online, first_there)
    library = np if isinstance(drawn.first, np.ndarray) else jnp
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
    """Return sequences as a batch."""
    history, (environment, first) = layout.history, sequences
    library = np if isinstance(first, np.ndarray) else jnp
    length = num_transitions(update, layout.unroll_length)

    def rows(begin: int, end: int):
        return (first + library.arange(begin, end)[:, None]) % layout.num_rows

    observed = rows(-history.rows_before, length + 1)
    observation: Any = jax.tree.map(lambda x: x[observed, environment], replay.rows["observation"])
    memory = None
    if history.is_history:
        aged = rows(-history.burn_in, length + 1)
        observation = History(frames=observation, age=replay.rows["age"][aged, environment])
        slot = first // layout.unroll_length % layout.num_slots
        memory = jax.tree.map(lambda x: x[slot, environment], replay.memories)
    taken = rows(0, length)
    transition = jax.tree.map(lambda x: x[taken, environment], replay.rows["transition"])
    return Batch(observation=observation, memory=memory, **transition)


def write_back(
    experience: Experience,
    replay: Replay,
    update: UpdateSpec,
    sequences: Sequences,
    refreshed: Extras,
) -> Replay:
    """Replace extras of the last `length` rows of sequences that were drawn since the last unroll.

    Args:
      experience: that the agent needs.
      replay: that they are from.
      update: that was made.
      sequences: that it learned from.
      refreshed: by name, leaves `[length, B, ...]` (`agents.protocol.Update`).
    """
    layout, (environment, first) = layout_of(experience, replay), sequences
    library = np if isinstance(first, np.ndarray) else jnp
    end = num_transitions(update, layout.unroll_length)
    rows = (first + library.arange(update.context, end)[:, None]) % layout.num_rows
    extras = dict(replay.rows["transition"]["extras"])
    for name, new in refreshed.items():
        extras[name] = jax.tree.map(
            lambda kept, x: _set(kept, (rows, environment), x), extras[name], new
        )
    transition = replay.rows["transition"] | {"extras": extras}
    return dataclasses.replace(replay, rows=replay.rows | {"transition": transition})


def cut_episodes(experience: Experience, replay: Replay) -> None:
    """End the episodes at the newest row, in place: what follows are new episodes.

    The transition from there is marked as one to a first observation.
    """
    layout = layout_of(experience, replay)
    newest = int(replay.num_unrolls) * layout.unroll_length - 1
    if newest < 0:
        return
    transition = replay.rows["transition"]
    transition["last"][(newest - 1) % layout.num_rows] = True
    row = newest % layout.num_rows
    transition["last"][row], transition["mask"][row] = False, False
    transition["reward"][row], transition["discount"][row] = 0.0, 1.0


def num_bytes(layout: ReplayLayout, example: Batch) -> int:
    """Return the size of a replay, full.

    Args:
      layout: of the replay.
      example: an unroll, arrays or shapes.
    """
    empty = jax.eval_shape(lambda: init(layout, example))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(empty))


def _split(batch: Batch) -> tuple[dict[str, PyTree], PyTree]:
    """Return what is kept of every step, and what of every unroll."""
    fields = ("action", "reward", "discount", "last", "mask", "extras")
    rows: dict[str, PyTree] = {
        "observation": batch.observation,
        "transition": {name: getattr(batch, name) for name in fields},
    }
    if isinstance(batch.observation, History):
        rows |= {"observation": batch.observation.frames, "age": batch.observation.age}
    return rows, batch.memory


def _write(kept: Any, start: Any, new: Any) -> Any:
    """Write rows from one on; they do not reach beyond the end."""
    if isinstance(kept, np.ndarray):
        kept[int(start) : int(start) + len(new)] = new
        return kept
    return jax.lax.dynamic_update_slice_in_dim(kept, new, start, axis=0)


def _set(kept: Any, index: Any, new: Any) -> Any:
    if isinstance(kept, np.ndarray):
        kept[index] = np.asarray(new)
        return kept
    return kept.at[index].set(new)


def _minimum(a: Any, b: Any) -> Any:
    return (jnp if isinstance(a, jax.Array) or isinstance(b, jax.Array) else np).minimum(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return (jnp if isinstance(a, jax.Array) or isinstance(b, jax.Array) else np).maximum(a, b)

"""A replay of each environment's last steps, on the device or in the host's memory.

Each environment's steps are one stream in a ring buffer of rows. Every observation is stored once,
in its own dtype: a million single Atari frames take 6.7 GiB. A sequence is a range of rows, from
the first row of an unroll, or from any row (`ReplaySpec.anywhere`). Its last observation, and the
rows before its first (for stacked frames and burn-in), are rows of the neighbouring sequences.

Both backends use the same functions. They change a replay of NumPy arrays in place, but not a
replay of JAX arrays. In both cases the returned replay is the valid one.
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
from agents.protocol import Agent, Batch, ReplaySpec, Requirements, UpdateSpec
from training import collection

# Of one run, or `[runs]` of several that are vectorised.
_Integer = int | np.integer | Int[Array, "*runs"] | Int[np.ndarray, ""]
_Integers = Int[Array, "B"] | Int[np.ndarray, "B"]


@dataclasses.dataclass(frozen=True)
class ReplayLayout:
    """The sizes of a replay.

    Attributes:
      replay_spec: the agent's specification of the replay.
      history: the past observations that an observation contains.
      num_environments: E.
      unroll_length: U, rows that each insertion adds.
      num_kept: unrolls of each environment from which sequences are drawn.
    """

    replay_spec: ReplaySpec
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
        """Return the number of sequences of an update's length after so many unrolls, or `[]`."""
        library = library_of(num_unrolls)
        kept = library.minimum(num_unrolls, self.num_kept)
        if self.replay_spec.anywhere:
            starts = kept * self.unroll_length - num_transitions(update, self.unroll_length) + 1
            kept = library.maximum(starts, 0)
        return kept * self.num_environments


def make_layout(requirements: Requirements, num_steps: int | None = None) -> ReplayLayout:
    """Return the sizes of an agent's replay.

    The environment steps of a run bound the replay's; `num_steps` is None for no bound.
    """
    replay_spec = requirements.replay
    assert replay_spec is not None
    sequences = replay_spec.capacity // requirements.unroll_length
    num_kept = max(1, math.ceil(sequences / requirements.num_environments))
    if num_steps is not None:
        num_kept = min(num_kept, max(1, num_steps // requirements.steps_per_unroll))
    return ReplayLayout(
        replay_spec=replay_spec,
        history=requirements.history,
        num_environments=requirements.num_environments,
        unroll_length=requirements.unroll_length,
        num_kept=num_kept,
    )


def layout_of(requirements: Requirements, replay: "Replay") -> ReplayLayout:
    """Return the sizes of an existing replay."""
    whole = make_layout(requirements)
    num_slots = replay.rows["transition"]["reward"].shape[0] // requirements.unroll_length
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


class Positions(NamedTuple):
    """The positions of sequences in a replay.

    Attributes:
      environment: of each sequence, `[B]`.
      first: each sequence's first row, counted from the run's start, `[B]`.
    """

    environment: _Integers
    first: _Integers


def init(layout: ReplayLayout, example: Batch, library: Any = jnp) -> Replay:
    """Return an empty replay for unrolls like `example`, arrays or shapes, `[T, E, ...]`.

    `library` is `jax.numpy` or `numpy`, whose zeros the operating system allocates lazily, as they
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


def of_agent(
    agent: Agent, dynamics: Any, num_steps: int | None = None, library: Any = jnp
) -> Replay | None:
    """Return an agent's empty replay; or None. Arguments as in `make_layout`, `init`."""
    requirements = agent.requirements
    if requirements.replay is None:
        return None
    unroll = collection.example(
        agent, dynamics, requirements.num_environments, requirements.unroll_length
    )
    return init(make_layout(requirements, num_steps), unroll, library)


def insert(requirements: Requirements, replay: Replay, unroll: Batch) -> Replay:
    """Add an unroll of each environment; it must continue the last inserted unroll."""
    layout = layout_of(requirements, replay)
    slot = replay.num_unrolls % layout.num_slots
    start, length, history = slot * layout.unroll_length, layout.unroll_length, layout.history
    new, memory = _split(unroll)
    kept = dict(replay.rows)

    def write_with_last(kept, new):  # The last row is the next unroll's first.
        kept = _write(kept, start, new[:length])
        return _write(kept, (start + length) % layout.num_rows, new[length:])

    kept["observation"] = jax.tree.map(
        lambda kept, new: write_with_last(kept, new[history.rows_before :]),
        kept["observation"],
        new["observation"],
    )
    if history.is_history:
        kept["age"] = write_with_last(kept["age"], new["age"][history.burn_in :])
    kept["transition"] = jax.tree.map(
        lambda kept, new: _write(kept, start, new), kept["transition"], new["transition"]
    )
    return dataclasses.replace(
        replay,
        rows=kept,
        memories=jax.tree.map(lambda kept, x: _write(kept, slot, x[None]), replay.memories, memory),
        num_unrolls=replay.num_unrolls + 1,
    )


def num_sequences(requirements: Requirements, replay: Replay, update: UpdateSpec) -> Any:
    """Return the number of sequences from which an update draws, an integer or `[]`."""
    return layout_of(requirements, replay).num_sequences(update, replay.num_unrolls)


def cut_episodes(requirements: Requirements, replay: Replay) -> None:
    """Mark, in place, the newest row as the last of its episodes; new episodes follow."""
    layout = layout_of(requirements, replay)
    newest = int(replay.num_unrolls) * layout.unroll_length - 1
    if newest < 0:
        return
    transition = replay.rows["transition"]
    transition["last"][(newest - 1) % layout.num_rows] = True
    row = newest % layout.num_rows
    transition["last"][row], transition["mask"][row] = False, False
    transition["reward"][row], transition["discount"][row] = 0.0, 1.0


def filled(layout: ReplayLayout, replay: Replay, num_unrolls: int) -> Replay:
    """Return the part of a replay that its first `num_unrolls` unrolls fill; NumPy's are views."""
    num_slots = min(num_unrolls + 1, layout.num_slots)  # The newest row is in one slot more.
    return dataclasses.replace(
        replay,
        rows=jax.tree.map(lambda x: x[: num_slots * layout.unroll_length], replay.rows),
        memories=jax.tree.map(lambda x: x[:num_slots], replay.memories),
    )


def fill(replay: Replay, part: Replay) -> Replay:
    """Write the result of `filled` into an empty replay of NumPy arrays, in place."""

    def write(kept: Any, new: Any) -> Any:
        if not np.ndim(kept):
            return np.array(new)
        kept[: len(new)] = new
        return kept

    return jax.tree.map(write, replay, part)


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


def library_of(*operands: Any) -> Any:
    """Return the library of an operation: JAX's if an operand is a JAX array, otherwise NumPy."""
    return jnp if any(isinstance(x, jax.Array) for x in operands) else np

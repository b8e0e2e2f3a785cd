"""Draws from a replay by priority, on the device or in the host's memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.protocol import Experience, UpdateSpec
from training.replay import Replay, layout_of


def index_by_priority(
    experience: Experience, replay: Replay, update: UpdateSpec, uniform: Any
) -> Any:
    """Return indices of sequences, drawn by their priorities (`UpdateSpec.priority`).

    Where all priorities are 0, each sequence is as likely.

    `uniform` has random numbers from 0 to 1, `[B]`; a NumPy array for a replay of NumPy arrays.

    Raises:
      ValueError: if there is no extra of this name.
    """
    layout = layout_of(experience, replay)
    library = jnp if isinstance(uniform, jax.Array) else np
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

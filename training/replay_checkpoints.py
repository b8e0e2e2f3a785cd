"""The part of a replay that a checkpoint has, and a replay that continues from it."""

import dataclasses
from typing import Any

import jax
import numpy as np

from agents.protocol import Experience
from training.replay import Replay, ReplayLayout, layout_of


def cut_episodes(experience: Experience, replay: Replay) -> None:
    """Mark the episodes as ended at the newest row, in place; new episodes follow.

    The transition from the newest row is marked as one to an episode's first observation.
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


def filled(layout: ReplayLayout, replay: Replay, num_unrolls: int) -> Replay:
    """Return the part of a replay that its first `num_unrolls` unrolls fill.

    The result has views of a replay of NumPy arrays. JAX traces this function for shapes.
    """
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

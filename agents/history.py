"""Histories of observations: stacked frames, and where episodes begin.

Environments return single observations, and each is stored and transferred once. Agents that stack
frames, or that have a memory, get a `History`: the observations of consecutive steps and of a few
steps before them, and the episode's age at each step. The network stacks the frames.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from disco.types import Leaf
from environments import ObservationSpec


@dataclasses.dataclass(frozen=True)
class HistorySpec:
    """The observations that a sequence contains besides its own T + 1 rows.

    Attributes:
      frame_stack: S, frames in one input of the network.
      memory: whether unrolls are stored with the agent's memory before them (R2D2's stored state).
      burn_in: rows before the first that only update the memory (R2D2's burn-in).
    """

    frame_stack: int = 1
    memory: bool = False
    burn_in: int = 0

    @property
    def is_history(self) -> bool:
        """Whether observations are a `History` rather than the environment's observations."""
        return self.frame_stack > 1 or self.memory

    @property
    def rows_before(self) -> int:
        """Observations before a sequence's first row."""
        return self.frame_stack - 1 + self.burn_in


@chex.dataclass(frozen=True)
class History:
    """Observations of R consecutive steps in B environments, and of the S - 1 steps before them.

    With burn-in, the first rows are those of the burn-in, and R = burn-in + T + 1.

    Attributes:
      frames: leaves `[S-1+R, B, ...]`. `stack` ignores frames before an episode's first.
      age: `[R, B]`, steps since the episode's first; 0 where an episode begins.
    """

    frames: PyTree[Leaf]
    age: Int[Leaf, "R B"]


def stack(history: HistorySpec, spec: ObservationSpec, observation: Any) -> PyTree[Array]:
    """Return the last S observations at each step, the newest last: leaves `[*s, S, ...]`.

    Frames before the episode's first are zeros. The observation is a `History`, or leaves
    `[*s, ...]` if the agent asks for none (S is 1 then).
    """
    if not history.is_history:
        return jax.tree.map(
            lambda leaf, x: jnp.expand_dims(x, x.ndim - len(leaf.shape)), spec, observation
        )
    rows, size = observation.age.shape[0], history.frame_stack

    def stack_leaf(frames):
        stacked = jnp.stack([frames[i : i + rows] for i in range(size)], axis=2)
        offsets = jnp.arange(size, dtype=observation.age.dtype)[::-1]
        is_in_episode = observation.age[..., None] >= offsets[None, None]
        is_in_episode = is_in_episode.reshape(
            *is_in_episode.shape, *(1,) * (stacked.ndim - is_in_episode.ndim)
        )
        return jnp.where(is_in_episode, stacked, jnp.zeros((), stacked.dtype))

    return jax.tree.map(stack_leaf, observation.frames)


def example(history: HistorySpec, spec: ObservationSpec) -> Any:
    """Return a sequence's observation of zeros, without transitions and with B = 1."""
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros((history.rows_before + 1, 1, *leaf.shape), leaf.dtype), spec
    )
    if not history.is_history:
        return zeros
    return History(frames=zeros, age=jnp.zeros((history.burn_in + 1, 1), jnp.int32))

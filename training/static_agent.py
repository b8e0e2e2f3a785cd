"""Agents as arguments of compiled programs, split into static parts and arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from agents.protocol import Agent


@dataclasses.dataclass(frozen=True)
class StaticAgent:
    """An agent without its arrays: hashable, and equal for agents that differ in arrays only.

    Attributes:
      structure: of the agent as a pytree.
      others: its leaves that are not arrays; None in the place of arrays.
    """

    structure: Any
    others: tuple[Any, ...]

    def with_arrays(self, arrays: Sequence[Array]) -> Agent:
        """Return the agent with these arrays."""
        left = iter(arrays)
        leaves = [next(left) if other is None else other for other in self.others]
        return jax.tree.unflatten(self.structure, leaves)


def split_agent(agent: Agent) -> tuple[StaticAgent, tuple[Array, ...]]:
    """Split an agent into its static part and its arrays."""
    leaves, structure = jax.tree.flatten(agent)
    is_array = [isinstance(x, jax.Array | np.ndarray) for x in leaves]
    others = tuple(None if is_it else x for x, is_it in zip(leaves, is_array, strict=True))
    arrays = tuple(x for x, is_it in zip(leaves, is_array, strict=True) if is_it)
    return StaticAgent(structure, others), arrays

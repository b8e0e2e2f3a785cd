"""Agents as arguments of compiled programs, split into static parts and arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

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


def stack_agents(agents: Sequence[Agent]) -> tuple[StaticAgent, tuple[Array, ...]]:
    """Return the agents' common static part, and their arrays with a leading axis of agents.

    Raises:
      ValueError: if they differ in more than arrays.
    """
    parts = [split_agent(agent) for agent in agents]
    static = parts[0][0]
    if any(part != static for part, _ in parts):
        raise ValueError("The agents differ in more than arrays; expected equal settings.")
    every = zip(*(arrays for _, arrays in parts), strict=True)
    return static, tuple(jnp.stack(arrays) for arrays in every)


def initial_state(agent: Agent, key: PRNGKeyArray) -> PyTree[Array]:
    """Return an agent's initial learning state, without weak types.

    An update's result has none, so a program that takes the state would be compiled twice.
    """

    def strong(x: Array) -> Array:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        return x if is_key else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, agent.init(key))

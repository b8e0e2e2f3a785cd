"""Many agents in one compiled program: in passes over some at a time, which are vectorised.

An agent's arrays are arguments of the program, so that agents which differ in these alone share it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from agents.protocol import Agent

Rows = TypeVar("Rows", bound=PyTree[Array])
Inputs = TypeVar("Inputs", bound=PyTree[Array])
Results = TypeVar("Results", bound=PyTree[Array])


def agents_per_pass(wanted: int | None, total: int) -> int:
    """Return the number of agents per pass: `wanted`, or the fastest for the backend.

    The fastest is one agent on a CPU, whose caches fit one agent and whose matrix products are
    faster without a batch of matrices. It is all agents on an accelerator.
    """
    if wanted is None:
        wanted = 1 if jax.default_backend() == "cpu" else total
    return min(wanted, total)


def runs_per_pass(wanted: int | None, num_runs: int, devices: int) -> int:
    """Return the number of runs per pass on each of the devices that they are spread over."""
    return agents_per_pass(wanted, -(-num_runs // devices))


def map_agents(function: Callable[[Rows], Results], agents: Rows, per_pass: int) -> Results:
    """Map a function over the leaves' leading axis, `per_pass` rows at a time."""
    total = jax.tree.leaves(agents)[0].shape[0]
    if per_pass >= total > 1:
        return jax.vmap(function)(agents)
    if per_pass == 1:
        return jax.lax.map(function, agents)
    return jax.lax.map(function, agents, batch_size=per_pass)


def advance_agents(
    function: Callable[[Rows, Inputs], Rows], agents: Rows, inputs: Inputs, per_pass: int
) -> Rows:
    """Replace each agent, a row of the leaves `[A, ...]`, by `function(agent, input)`.

    The replaced agents need no second copy of all agents, as they would with `map_agents`. A is a
    multiple of `per_pass`, the number of agents that are vectorised.
    """
    total = jax.tree.leaves(agents)[0].shape[0]
    assert total % per_pass == 0
    if per_pass == total > 1:
        return jax.vmap(function)(agents, inputs)

    def advance_pass(number, agents):
        begin = number * per_pass
        rows = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, begin, per_pass), (agents, inputs)
        )
        if per_pass == 1:
            first = jax.tree.map(lambda x: x[0], rows)
            new = jax.tree.map(lambda x: x[None], function(*first))
        else:
            new = jax.vmap(function)(*rows)
        return jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, begin, 0), agents, new
        )

    return jax.lax.fori_loop(0, total // per_pass, advance_pass, agents)


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


def unstack(tree: PyTree[Array]) -> list[Any]:
    """Return the rows of a tree whose leaves have a leading axis."""
    number = jax.tree.leaves(tree)[0].shape[0]
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(number)]


def initial_state(agent: Agent, key: PRNGKeyArray) -> PyTree[Array]:
    """Return an agent's initial learning state, without weak types.

    An update's result has none, so a program that takes the state would be compiled twice.
    """

    def strong(x: Array) -> Array:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        return x if is_key else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, agent.init(key))

"""Many agents on one device, in sequential passes that are each vectorised over some agents."""

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, PyTree

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
    """Replace each agent, a row of the leaves, by `function(agent, input)`.

    The replaced agents need no second copy of all agents, as they would with `map_agents`.

    Args:
      function: from an agent and its input to the new agent.
      agents: leaves `[A, ...]`, where A is a multiple of `per_pass`.
      inputs: leaves `[A, ...]`.
      per_pass: number of agents that are vectorised.
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

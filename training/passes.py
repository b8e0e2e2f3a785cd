"""Many agents on one device, in sequential passes that are each vectorised over some agents."""

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, PyTree

Rows = TypeVar("Rows", bound=PyTree[Array])
Results = TypeVar("Results", bound=PyTree[Array])


def agents_per_pass(wanted: int | None, total: int) -> int:
    """Return the number of agents per pass: `wanted`, or the fastest for the backend.

    The fastest is one agent on a CPU, whose caches fit one agent and whose matrix products are
    faster without a batch of matrices. It is all agents on an accelerator.
    """
    if wanted is None:
        wanted = 1 if jax.default_backend() == "cpu" else total
    return min(wanted, total)


def map_agents(function: Callable[[Rows], Results], agents: Rows, per_pass: int) -> Results:
    """Map a function over the leaves' leading axis, `per_pass` rows at a time."""
    total = jax.tree.leaves(agents)[0].shape[0]
    if per_pass >= total > 1:
        return jax.vmap(function)(agents)
    if per_pass == 1:
        return jax.lax.map(function, agents)
    return jax.lax.map(function, agents, batch_size=per_pass)

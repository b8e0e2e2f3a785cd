"""Many agents on one device: some in each vectorised pass, the passes one after the other."""

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, PyTree

Rows = TypeVar("Rows", bound=PyTree[Array])
Results = TypeVar("Results", bound=PyTree[Array])


def agents_per_pass(wanted: int | None, total: int) -> int:
    """How many of `total` agents a pass computes: what is wanted, or else what is fast.

    That is one on a CPU, whose caches hold one agent and whose matrix products are faster
    without a batch of matrices, and all on an accelerator.
    """
    if wanted is None:
        wanted = 1 if jax.default_backend() == "cpu" else total
    return min(wanted, total)


def map_agents(function: Callable[[Rows], Results], agents: Rows, per_pass: int) -> Results:
    """Applies a function to each row of the leaves' leading axis."""
    total = jax.tree.leaves(agents)[0].shape[0]
    if per_pass >= total > 1:
        return jax.vmap(function)(agents)
    if per_pass == 1:
        return jax.lax.map(function, agents)
    return jax.lax.map(function, agents, batch_size=per_pass)

"""Parameters in one vector.

An update touches every array of parameters a dozen times, elementwise (gradients, moments, target
network, and all of it once more in a meta-gradient). As one vector they are a dozen operations to
compile and to start, and not a dozen for each of a network's many arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from agents.networks import Network


def with_flat_parameters(network: Network) -> Network:
    """The network as a function of one vector."""
    init, unravel = flat_init(network.init)
    return network._replace(
        init=init,
        policy=lambda params, *inputs: network.policy(unravel(params), *inputs),
        unroll=lambda params, trajectory: network.unroll(unravel(params), trajectory),
    )


def flat_init(
    init: Callable[[PRNGKeyArray], disco.Params],
) -> tuple[Callable[[PRNGKeyArray], Float[Array, "P"]], Callable[[Float[Array, "P"]], Any]]:
    """What makes parameters in one vector, and what makes of one the arrays that `init` does."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, jax.random.key(0)))
    ends = np.cumsum([x.size for x in leaves])

    def unravel(vector):
        parts = jnp.split(vector, ends[:-1])
        return structure.unflatten(
            part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)
        )

    return lambda key: ravel_pytree(init(key))[0], unravel

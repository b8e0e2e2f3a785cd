"""Parameters in one vector.

An update applies about a dozen elementwise operations to all parameters (gradients, moments, target
network), and a meta-gradient differentiates them. For one vector there are a dozen operations to
compile and to launch, instead of a dozen for each array of a network.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import disco
import environments
from agents.networks import Network, NetworkConfig, make_network


@functools.lru_cache(maxsize=64)
def flat_network(
    config: NetworkConfig,
    dynamics: Any,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    frame_stack: int = 1,
    burn_in: int = 0,
) -> Network:
    """Return a network of one parameter vector for environments.

    Equal arguments give the same object, so that programs are reused.

    Args:
      config: sizes.
      dynamics: of the environments; only the specs are used.
      shapes: names and shapes of its outputs (`agents.networks.make_network`).
      frame_stack: frames in one input.
      burn_in: rows before each unroll that only update the memory.

    Raises:
      ValueError: if the action space is not discrete.
    """
    spec, num_actions = dynamics.observation_spec(), environments.num_actions(dynamics)
    return with_flat_parameters(
        make_network(config, spec, num_actions, dict(shapes), frame_stack, burn_in)
    )


def with_flat_parameters(network: Network) -> Network:
    """Return the network as a function of one parameter vector."""
    init, unravel = flat_init(network.init)
    return network._replace(
        init=init,
        policy=lambda params, *inputs: network.policy(unravel(params), *inputs),
        unroll=lambda params, trajectory: network.unroll(unravel(params), trajectory),
    )


def flat_init(
    init: Callable[[PRNGKeyArray], disco.Params],
) -> tuple[Callable[[PRNGKeyArray], Float[Array, "P"]], Callable[[Float[Array, "P"]], Any]]:
    """Return an `init` that gives one vector, and the function from that vector to the arrays."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, jax.random.key(0)))
    ends = np.cumsum([x.size for x in leaves])

    def unravel(vector):
        parts = jnp.split(vector, ends[:-1])
        return structure.unflatten(
            part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)
        )

    return lambda key: ravel_pytree(init(key))[0], unravel

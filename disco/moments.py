"""Moving first and second moments over batches, debiased as in Adam."""

from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

T = TypeVar("T")

DECAY = 0.99


@chex.dataclass(frozen=True)
class Moments:
    """Moving means of x and of x squared.

    Attributes:
      first: of x.
      second: of x squared.
      decay_product: remaining weight of their initial zeros.
    """

    first: Float[Array, ""]
    second: Float[Array, ""]
    decay_product: Float[Array, ""]


def init(dtype: jnp.dtype) -> Moments:
    """Return the moments before the first batch."""
    return Moments(
        first=jnp.zeros((), dtype), second=jnp.zeros((), dtype), decay_product=jnp.ones((), dtype)
    )


def update(moments: Moments, x: Float[Array, "*s"], decay: float = DECAY) -> Moments:
    """Return the moments after a batch; no gradient flows."""
    x = jax.lax.stop_gradient(x)
    return Moments(
        first=decay * moments.first + (1.0 - decay) * jnp.mean(x),
        second=decay * moments.second + (1.0 - decay) * jnp.mean(jnp.square(x)),
        decay_product=decay * moments.decay_product,
    )


def normalize(
    moments: Moments, x: Float[Array, "*s"], *, subtract_mean: bool = True
) -> Float[Array, "*s"]:
    """Return (x - mean) / (sqrt(var + 1e-12) + 1e-6), or x over the same scale.

    `moments` must have been updated at least once.
    """
    weight = 1.0 - moments.decay_product
    mean = moments.first / weight
    variance = jnp.maximum(moments.second / weight - jnp.square(mean), 0.0)
    centred = x - mean if subtract_mean else x
    return centred / (jnp.sqrt(variance + 1e-12) + 1e-6)


def kept_if_finite(new: T, old: T) -> T:
    """Return the memory after a batch, or the memory before it if any value is not finite.

    A non-finite batch thus affects only its own targets, not those of later batches.
    """
    is_finite = jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(new)]).all()
    return jax.tree.map(lambda x, y: jnp.where(is_finite, x, y), new, old)

"""Moving first and second moments over batches, debiased as in Adam."""

from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from disco.types import Leaf

T = TypeVar("T")

DECAY = 0.99  # Weight of the moments before a batch.


@chex.dataclass(frozen=True)
class Moments:
    """Moving means of x and of x squared, and the remaining weight of their initial zeros."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    decay_product: Float[Array, ""]


def init(dtype: jnp.dtype) -> Moments:
    """Return the moments before the first batch."""
    return Moments(
        first=jnp.zeros((), dtype), second=jnp.zeros((), dtype), decay_product=jnp.ones((), dtype)
    )


def update(
    moments: Moments, x: Float[Array, "*s"], mask: Bool[Leaf, "*s"] | None = None
) -> Moments:
    """Return the moments after a batch x; no gradient flows.

    The mask is of the numbers that count; None if all do. A batch without any changes nothing.
    """
    x = jax.lax.stop_gradient(x)
    if mask is None:
        first, second = jnp.mean(x), jnp.mean(jnp.square(x))
    else:
        mask = jnp.asarray(mask)
        number = jnp.maximum(jnp.sum(mask.astype(x.dtype)), 1.0)
        x = jnp.where(mask, x, 0.0)
        first, second = jnp.sum(x) / number, jnp.sum(jnp.square(x)) / number
    moved = Moments(
        first=DECAY * moments.first + (1.0 - DECAY) * first,
        second=DECAY * moments.second + (1.0 - DECAY) * second,
        decay_product=DECAY * moments.decay_product,
    )
    if mask is None:
        return moved
    return jax.tree.map(lambda new, old: jnp.where(jnp.any(mask), new, old), moved, moments)


def normalize(
    moments: Moments, x: Float[Array, "*s"], *, subtract_mean: bool = True
) -> Float[Array, "*s"]:
    """Return (x - mean) / (sqrt(var + 1e-12) + 1e-6), or x over the same scale.

    Moments that no batch has changed have mean and variance 0.
    """
    first, variance = _mean_and_variance(moments)
    centred = x - first if subtract_mean else x
    return centred / (jnp.sqrt(variance + 1e-12) + 1e-6)


def mean(moments: Moments) -> Float[Array, ""]:
    """Return the moving mean."""
    return moments.first / _weight(moments)


def deviation(moments: Moments) -> Float[Array, ""]:
    """Return the moving standard deviation, sqrt(var + 1e-12)."""
    return jnp.sqrt(_mean_and_variance(moments)[1] + 1e-12)


def root_mean_square(moments: Moments) -> Float[Array, ""]:
    """Return the root of the moving mean of x squared, sqrt(mean + 1e-12)."""
    return jnp.sqrt(moments.second / _weight(moments) + 1e-12)


def _mean_and_variance(moments: Moments) -> tuple[Float[Array, ""], Float[Array, ""]]:
    first = mean(moments)
    variance = moments.second / _weight(moments) - jnp.square(first)
    return first, jnp.maximum(variance, 0.0)


def _weight(moments: Moments) -> Array:
    """Return the weight of all batches so far, which removes the bias of the initial zeros."""
    return jnp.maximum(1.0 - moments.decay_product, jnp.finfo(moments.first.dtype).tiny)


def kept_if_finite(new: T, old: T) -> T:
    """Return the memory after a batch, or the memory before it if any value is not finite.

    A non-finite batch thus affects only its own targets, not those of later batches.
    """
    is_finite = jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(new)]).all()
    return jax.tree.map(lambda x, y: jnp.where(is_finite, x, y), new, old)

"""Entropy and divergence of categorical distributions, from their log-probabilities.

A log-probability may be -inf, that of an illegal action: 0 log 0 is 0, and so is its derivative.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def entropy(log_p: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return the entropy of p, in nats."""
    return -jnp.sum(probability_times(jnp.exp(log_p), log_p), axis=-1)


def kl_divergence(log_p: Float[Array, "*s X"], log_q: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return KL(p || q), in nats."""
    return jnp.sum(probability_times(jnp.exp(log_p), log_p - log_q), axis=-1)


def probability_times(p: Float[Array, "*s"], x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return p x, and 0 where the probability p is 0, also if x is infinite or not a number."""
    return p * select_straight_through(p > 0.0, x)


@jax.custom_jvp
def select_straight_through(
    condition: Bool[Array, "*s"], x: Float[Array, "*s"]
) -> Float[Array, "*s"]:
    """Return x where the condition holds, else 0; the derivative is 1 everywhere.

    It is for numbers that are multiplied by 0 where the condition does not hold: without a
    selection in the derivative, compilers round it as if there were no condition.
    """
    return jnp.where(condition, x, jnp.zeros_like(x))


@select_straight_through.defjvp
def _select_jvp(primals, tangents):
    return select_straight_through(*primals), tangents[1]


def zero_where_all_illegal(logits: Float[Array, "*s A"]) -> Float[Array, "*s A"]:
    """Return logits, and 0 in states without a legal action, in which all are -inf."""
    has_action = ~jnp.all(logits == -jnp.inf, axis=-1, keepdims=True)
    return select_straight_through(jnp.broadcast_to(has_action, logits.shape), logits)


def mean_of_legal(
    logits: Float[Array, "*s"], axis: int | None = None, *, keepdims: bool = False
) -> Float[Array, "..."]:
    """Return the mean over an axis, or over all of them, of the logits that are not -inf."""
    is_legal = logits != -jnp.inf
    number = jnp.sum(is_legal, axis=axis, keepdims=keepdims, dtype=logits.dtype)
    mean = jnp.mean(jnp.where(is_legal, logits, 0.0), axis=axis, keepdims=keepdims)
    # The factor is exactly 1 where all actions are legal.
    return mean * ((logits.size // max(mean.size, 1)) / jnp.maximum(number, 1.0))

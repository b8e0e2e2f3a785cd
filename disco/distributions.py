"""Entropy and divergence of categorical distributions, from their log-probabilities."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def entropy(log_p: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return the entropy of p, in nats."""
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


def kl_divergence(log_p: Float[Array, "*s X"], log_q: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return KL(p || q), in nats."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

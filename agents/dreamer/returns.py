"""λ-returns, and the scale by which they are divided."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Float


def lambda_returns(
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    mixing: Float[Array, "T B"],
    bootstrap: Float[Array, "T B"],
) -> Float[Array, "T-1 B"]:
    """R_t = r + d ((1 - λ) v + λ R_{t+1}), all of step t + 1; at the end R is v.

    The arXiv version's equation 7, and the Nature version's λ-return. Rewards, discounts and ends
    are those of the step that is arrived at, so what step 0 has of them is not read.

    Args:
      reward: for arriving.
      discount: 0 where arriving ended the episode.
      mixing: λ, or 0 where what follows belongs to another episode.
      bootstrap: values of the states.
    """
    returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
    return returns(reward[1:], discount[1:], bootstrap[1:], mixing[1:])


class Range(NamedTuple):
    """Moving averages of two percentiles of returns.

    Attributes:
      low: of the 5th.
      high: of the 95th.
    """

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def newborn(cls) -> "Range":
        """From 0, and not corrected for it."""
        return cls(jnp.zeros(()), jnp.zeros(()))

    def update(self, returns: Float[Array, "*s"], decay: float = 0.99) -> "Range":
        """After a batch of returns."""
        low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
        return Range(
            decay * self.low + (1.0 - decay) * low, decay * self.high + (1.0 - decay) * high
        )

    @property
    def size(self) -> Float[Array, ""]:
        """S (the arXiv version, equation 12)."""
        return self.high - self.low


class Deviation(NamedTuple):
    """Moving averages of numbers and of their squares, corrected for having begun at 0.

    Attributes:
      weight: of all numbers so far, from 0 towards 1.
      mean: of the numbers, times that.
      square: of their squares, likewise.
    """

    weight: Float[Array, ""]
    mean: Float[Array, ""]
    square: Float[Array, ""]

    @classmethod
    def newborn(cls) -> "Deviation":
        """Before any number."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def update(self, x: Float[Array, "*s"], decay: float = 0.99) -> "Deviation":
        """After a batch of numbers."""
        news = (jnp.ones(()), jnp.mean(x), jnp.mean(jnp.square(x)))
        return Deviation(
            *(decay * old + (1.0 - decay) * new for old, new in zip(self, news, strict=True))
        )

    @property
    def size(self) -> Float[Array, ""]:
        """The standard deviation; 0 before any number."""
        weight = jnp.maximum(1e-6, self.weight)
        variance = self.square / weight - jnp.square(self.mean / weight)
        return jnp.sqrt(jnp.maximum(0.0, variance))

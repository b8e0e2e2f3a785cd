"""λ-returns, and running statistics for their normalisation."""

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
    """Return R_t = r + d ((1 - λ) v + λ R_{t+1}); r, d, λ and v are of step t + 1, the last R is v.

    It is the arXiv version's equation 7 and the Nature version's λ-return. Row t has reward,
    discount and λ of the transition to step t, so row 0 is not used.

    Args:
      reward: of the transition to the step.
      discount: 0 where the step is terminal.
      mixing: λ, or 0 where the next step belongs to another episode.
      bootstrap: values of the states.
    """
    returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
    return returns(reward[1:], discount[1:], bootstrap[1:], mixing[1:])


class Range(NamedTuple):
    """Moving averages of two percentiles of returns.

    Attributes:
      low: of the 5th percentile.
      high: of the 95th percentile.
    """

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def initial(cls) -> "Range":
        """Return averages of 0; there is no bias correction."""
        return cls(jnp.zeros(()), jnp.zeros(()))

    def update(self, returns: Float[Array, "*s"], decay: float = 0.99) -> "Range":
        """Return the averages after a batch of returns."""
        low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
        return Range(
            decay * self.low + (1.0 - decay) * low, decay * self.high + (1.0 - decay) * high
        )

    @property
    def size(self) -> Float[Array, ""]:
        """S (the arXiv version, equation 12)."""
        return self.high - self.low


class Deviation(NamedTuple):
    """Moving averages of numbers and of their squares, with bias correction.

    Attributes:
      weight: the correction: the sum of all weights so far, from 0 towards 1.
      mean: uncorrected average of the numbers.
      square: uncorrected average of their squares.
    """

    weight: Float[Array, ""]
    mean: Float[Array, ""]
    square: Float[Array, ""]

    @classmethod
    def initial(cls) -> "Deviation":
        """Return the averages before the first batch."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def update(self, x: Float[Array, "*s"], decay: float = 0.99) -> "Deviation":
        """Return the averages after a batch of numbers."""
        news = (jnp.ones(()), jnp.mean(x), jnp.mean(jnp.square(x)))
        return Deviation(
            *(decay * old + (1.0 - decay) * new for old, new in zip(self, news, strict=True))
        )

    @property
    def size(self) -> Float[Array, ""]:
        """The standard deviation; 0 before the first batch."""
        weight = jnp.maximum(1e-6, self.weight)
        variance = self.square / weight - jnp.square(self.mean / weight)
        return jnp.sqrt(jnp.maximum(0.0, variance))

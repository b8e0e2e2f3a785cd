"""Linear maps with a bias."""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

Linear = Mapping[str, Float[Array, "..."]]  # {"w": [in, out], "b": [out]}


def linear(layer: Linear, x: Float[Array, "*s F"]) -> Float[Array, "*s G"]:
    """Return x w + b."""
    return add_bias(x @ layer["w"], layer["b"])


def add_bias(x: Float[Array, "*s G"], bias: Float[Array, "G"]) -> Float[Array, "*s G"]:
    """Return x + bias, also where `jax_numpy_rank_promotion` is "raise"."""
    return x + jax.lax.broadcast_to_rank(bias, x.ndim)

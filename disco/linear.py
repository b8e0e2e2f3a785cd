"""Linear maps with a bias."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

Linear = Mapping[str, Float[Array, "..."]]  # {"w": [in, out], "b": [out]}


def linear(layer: Linear, x: Float[Array, "*s F"]) -> Float[Array, "*s G"]:
    """Return x w + b."""
    mapped = x @ layer["w"]
    # Explicitly, for those who set `jax_numpy_rank_promotion` to "raise".
    return mapped + jnp.broadcast_to(layer["b"], mapped.shape)

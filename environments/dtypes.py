"""Dtypes that `reset` and `step` agree on.

A jitted rollout is compiled again at its second call when the state that it starts from and the
one that it carries differ in dtype or in weak type.
"""

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp


def promoting() -> AbstractContextManager[None]:
    """Let environments of other packages mix dtypes, whatever JAX's setting."""
    return jax.numpy_dtype_promotion("standard")


def strong(leaf: Any) -> Any:
    """Convert a Python number to an array of strong 32-bit type, or an array to strong type."""
    if isinstance(leaf, bool | int | float):
        dtype = {bool: jnp.bool_, int: jnp.int32, float: jnp.float32}[type(leaf)]
        return jnp.asarray(leaf, dtype)
    return jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype)


def cast(state: Any, types: Any) -> Any:
    """Return the state with the shapes and dtypes of `types`."""
    return jax.tree.map(
        lambda leaf, kind: jnp.asarray(leaf, kind.dtype).reshape(kind.shape), state, types
    )

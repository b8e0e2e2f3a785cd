"""LSTMs in Haiku's convention: the backward LSTM over a trajectory, and one step."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from disco.linear import linear

NAME = "lstm"


def layer_shapes(features: int, width: int, num_layers: int) -> dict[str, tuple[int, int]]:
    """Return [inputs, outputs] of every linear map, by name. There is one layer."""
    del num_layers
    return {NAME: (features + width, 4 * width)}


def read_backwards(
    layers: Mapping[str, Mapping[str, Array]],
    inputs: Float[Array, "T B F"],
    ends: Bool[Array, "T B"],
) -> Float[Array, "T B H"]:
    """Return the hidden states of an LSTM that runs from the last transition to the first.

    Args:
      layers: of `layer_shapes`.
      inputs: features of the transitions.
      ends: transitions that end an episode. The state is reset to zeros before them, so that no
        information flows from a later episode.
    """
    layer = layers[NAME]
    size = layer["b"].shape[-1] // 4
    split = inputs.shape[-1]
    projected = linear({"w": layer["w"][:split], "b": layer["b"]}, inputs)
    recurrent = layer["w"][split:]
    keep = 1.0 - ends.astype(inputs.dtype)

    def advance(state, row):
        projection, keep = row
        hidden, cell = (keep[:, None] * x for x in state)
        hidden, cell = _apply_gates(projection + hidden @ recurrent, cell)
        return (hidden, cell), hidden

    start = jnp.zeros((inputs.shape[1], size), inputs.dtype)
    _, hidden = jax.lax.scan(advance, (start, start), (projected, keep), reverse=True)
    return hidden


def step(
    layer: Mapping[str, Array],
    x: Float[Array, "F"],
    hidden: Float[Array, "H"],
    cell: Float[Array, "H"],
) -> tuple[Float[Array, "H"], Float[Array, "H"]]:
    """Return the hidden state and the cell after one step."""
    return _apply_gates(linear(layer, jnp.concatenate([x, hidden])), cell)


def _apply_gates(
    gates: Float[Array, "*s G"], cell: Float[Array, "*s H"]
) -> tuple[Float[Array, "*s H"], Float[Array, "*s H"]]:
    """Apply the input, candidate, forget (biased by 1) and output gates."""
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell

"""The backward transformer, an alternative to the meta-network's backward LSTM.

DiscoRL, Extended Data Figure 3, has results of a transformer without describing it. This is a
pre-norm transformer whose norms have no parameters. Its attention logits decrease linearly with
the distance, at a rate that differs between heads (Press et al. 2022, "Train short, test long:
attention with linear biases"). It has no position embeddings, so that rules can be applied to
trajectories of other lengths than those of their discovery.
"""

import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from disco.linear import linear

NUM_HEADS = 4

_NAME = "transformer"
_EXPANSION = 4


def layer_shapes(features: int, width: int, num_layers: int) -> dict[str, tuple[int, int]]:
    """Return [inputs, outputs] of every linear map, by name."""
    shapes = {f"{_NAME}/input": (features, width)}
    for i in range(num_layers):
        shapes |= {
            f"{_NAME}/{i}/heads": (width, 3 * width),
            f"{_NAME}/{i}/mixed": (width, width),
            f"{_NAME}/{i}/hidden": (width, _EXPANSION * width),
            f"{_NAME}/{i}/added": (_EXPANSION * width, width),
        }
    return shapes | {f"{_NAME}/output": (width, width)}


def read(
    layers: Mapping[str, Mapping[str, Array]],
    inputs: Float[Array, "T B F"],
    ends: Bool[Array, "T B"],
) -> Float[Array, "T B H"]:
    """Return an embedding of the rest of the episode at each transition.

    Args:
      layers: of `layer_shapes`.
      inputs: features of the transitions.
      ends: transitions that end an episode; there is no attention across them.

    Returns:
      Numbers from -1 to 1, like those of an LSTM.
    """
    visible, bias = _visible(ends), _bias(len(inputs)).astype(inputs.dtype)

    def mapped(name: str, x: Array) -> Array:
        return linear(layers[f"{_NAME}/{name}"], x)

    x = mapped("input", jnp.swapaxes(inputs, 0, 1))
    for i in itertools.takewhile(lambda i: f"{_NAME}/{i}/heads" in layers, itertools.count()):
        heads = mapped(f"{i}/heads", jax.nn.standardize(x))
        heads = heads.reshape(*x.shape[:2], 3, NUM_HEADS, x.shape[-1] // NUM_HEADS)
        query, key, value = (heads[:, :, j] for j in range(3))
        with jax.numpy_dtype_promotion("standard"):  # JAX computes the softmax in float32.
            attended = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=visible)
        x = x + mapped(f"{i}/mixed", attended.reshape(x.shape))
        hidden = jax.nn.gelu(mapped(f"{i}/hidden", jax.nn.standardize(x)))
        x = x + mapped(f"{i}/added", hidden)
    return jnp.swapaxes(jnp.tanh(mapped("output", jax.nn.standardize(x))), 0, 1)


def _visible(ends: Bool[Array, "T B"]) -> Bool[Array, "B 1 T T"]:
    """Return whether a transition (third axis) attends to another one: later in its episode."""
    ends = jnp.swapaxes(ends, 0, 1).astype(jnp.int32)
    episode = jnp.cumsum(ends, axis=1) - ends
    same = episode[:, :, None] == episode[:, None, :]
    later = jnp.triu(jnp.ones(same.shape[1:], bool))
    return (same & later[None])[:, None]


def _bias(length: int) -> Float[np.ndarray, "1 N T T"]:
    """Return the linear biases of the attention logits."""
    step = np.arange(length)
    rates = 2.0 ** (-8.0 * np.arange(1, NUM_HEADS + 1) / NUM_HEADS)
    distance = np.abs(step[:, None] - step[None, :])
    return (-rates[:, None, None] * distance)[None].astype(np.float32)

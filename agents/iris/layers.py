"""Layers of IRIS' networks. Their initial weights are those of PyTorch's modules of the names."""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agents.convolutions import convolve_same, from_patches, to_patches

Convolve = Callable[[Float[Array, "B H W C"], Float[Array, "3 3 C O"]], Float[Array, "B h w O"]]


def fan_in_uniform(fan_in: int) -> hk.initializers.Initializer:
    """Return the uniform distribution between ±1/√fan-in, of weights and biases."""
    bound = fan_in**-0.5
    return hk.initializers.RandomUniform(-bound, bound)


class Linear(hk.Module):
    """A linear map of the last axis; a 1x1 convolution of images."""

    def __init__(self, size: int, *, name: str):
        """Make a layer of `size` outputs."""
        super().__init__(name)
        self._size = size

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        init = fan_in_uniform(x.shape[-1])
        weight = hk.get_parameter("w", (x.shape[-1], self._size), jnp.float32, init)
        return x @ weight + hk.get_parameter("b", (self._size,), jnp.float32, init)


class Convolution(hk.Module):
    """A 3x3 convolution of images.

    It keeps their sides ("SAME" padding), or halves them with stride 2, padded below and on the
    right only (`convolve_halving`), or doubles them after nearest-neighbour upsampling
    (`convolve_enlarged`).
    """

    def __init__(self, channels: int, convolve: Convolve = convolve_same, *, name: str):
        """Make a layer of `channels` outputs."""
        super().__init__(name)
        self._channels, self._convolve = channels, convolve

    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w O"]:
        shape = (3, 3, x.shape[-1], self._channels)
        init = fan_in_uniform(9 * x.shape[-1])
        weight = hk.get_parameter("w", shape, jnp.float32, init)
        return self._convolve(x, weight) + hk.get_parameter("b", shape[-1:], jnp.float32, init)


class GroupNorm(hk.Module):
    """Normalisation by the moments of groups of consecutive channels of an image.

    `haiku.GroupNorm` with equal parameters and results. Here each channel's moments come first and
    the groups' from these, as reductions over a last axis of two channels, 32 groups of 64, are
    slow on a CPU.
    """

    def __init__(self, groups: int, *, name: str):
        """Make a layer of `groups` groups, a divisor of its inputs' channels."""
        super().__init__(name)
        self._groups = groups

    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        channels = x.shape[-1]
        scale = hk.get_parameter("scale", (channels,), x.dtype, jnp.ones)
        offset = hk.get_parameter("offset", (channels,), x.dtype, jnp.zeros)

        def of_groups(of_channels: Float[Array, "B C"]) -> Float[Array, "B 1 1 C"]:
            size = channels // self._groups
            means = jnp.mean(of_channels.reshape(len(x), self._groups, size), axis=-1)
            return jnp.repeat(means, size, axis=-1)[:, None, None]

        x = x - of_groups(jnp.mean(x, axis=(1, 2)))
        variance = of_groups(jnp.mean(jnp.square(x), axis=(1, 2)))
        return x * (scale * jax.lax.rsqrt(variance + 1e-6)) + offset


def to_tiles(x: Float[Array, "B H W C"], side: int) -> Float[Array, "N side side C"]:
    """Return the squares of images as images."""
    return to_patches(x, side).reshape(-1, side, side, x.shape[-1])


def from_tiles(x: Float[Array, "N s s C"], side: int) -> Float[Array, "B H H C"]:
    """Return square images of `side` tiles a side from their tiles."""
    _, height, width, channels = x.shape
    return from_patches(x.reshape(-1, side, side, height * width * channels), height)


class LSTMState(NamedTuple):
    """The state of an LSTM.

    Attributes:
      hidden: its output.
      cell: its memory.
    """

    hidden: Float[Array, "B U"]
    cell: Float[Array, "B U"]


class LSTM(hk.Module):
    """An LSTM cell with two biases, of inputs and of the state, without a forget gate's offset."""

    def __init__(self, size: int, *, name: str):
        """Make a cell of `size` units."""
        super().__init__(name)
        self._size = size

    def __call__(self, x: Float[Array, "B I"], state: LSTMState) -> LSTMState:
        init = fan_in_uniform(self._size)

        def project(name: str, x: Array) -> Array:
            shape = (x.shape[-1], 4 * self._size)
            weight = hk.get_parameter(f"{name}_w", shape, jnp.float32, init)
            return x @ weight + hk.get_parameter(f"{name}_b", shape[1:], jnp.float32, init)

        gates = project("input", x) + project("hidden", state.hidden)
        enter, forget, candidate, output = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * state.cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return LSTMState(jax.nn.sigmoid(output) * jnp.tanh(cell), cell)

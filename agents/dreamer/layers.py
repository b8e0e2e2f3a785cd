"""Layers of Dreamer's networks.

The Nature version uses RMSNorm, the arXiv version LayerNorm; both use SiLU. All layers but norms
compute in the dtype of their weights. Initialisation is that of the Nature version's code:
truncated normals of variance 1 / fan-in, and biases of 0.
"""

import math
import re
from collections.abc import Callable, Sequence

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from agents.convolutions import convolve_same, from_patches, to_patches

Convolve = Callable[[Float[Array, "B H W C"], Float[Array, "k k C O"]], Float[Array, "B h w O"]]
_TRUNCATION = 0.87962566  # Standard deviation of a standard normal that is cut off at -2 and 2.


def initializer(fan_in: int, scale: float = 1.0) -> hk.initializers.Initializer:
    """Return the initialiser of truncated normals of variance `scale`^2 / `fan_in`."""
    if scale == 0.0:
        return hk.initializers.Constant(0.0)
    return hk.initializers.TruncatedNormal(scale / _TRUNCATION / fan_in**0.5)


class Linear(hk.Module):
    """A linear map of the last axis."""

    def __init__(self, size: int, scale: float = 1.0, *, bias: bool = True, name: str):
        """Make a layer of `size` outputs; `scale` is that of the initial weights."""
        super().__init__(name)
        self._size, self._scale, self._bias = size, scale, bias

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        fan_in = x.shape[-1]
        init = initializer(fan_in, self._scale)
        weight = hk.get_parameter("w", (fan_in, self._size), jnp.float32, init)
        y = x.astype(weight.dtype) @ weight
        if not self._bias:
            return y
        return y + hk.get_parameter("b", (self._size,), jnp.float32, jnp.zeros)


class BlockLinear(hk.Module):
    """A linear map with block-diagonal weights: inputs and outputs are divided into G groups.

    Shared inputs may be added, which all groups read; their weights are dense.
    """

    def __init__(self, size: int, blocks: int, *, name: str):
        """Make a layer of `size` outputs in `blocks` groups; `blocks` must divide `size`."""
        super().__init__(name)
        self._size, self._blocks = size, blocks

    def __call__(
        self, x: Float[Array, "*s I"], shared: Float[Array, "*s J"] | None = None
    ) -> Float[Array, "*s O"]:
        groups, each = self._blocks, x.shape[-1] // self._blocks
        common = 0 if shared is None else shared.shape[-1]
        shape = (groups, each + common, self._size // groups)
        # The fan-in counts the shared inputs once per group.
        init = initializer(groups * (each + common))
        weight = hk.get_parameter("w", shape, jnp.float32, init)
        bias = hk.get_parameter("b", (self._size,), jnp.float32, jnp.zeros)
        x = x.astype(weight.dtype)
        rows = x.reshape(*x.shape[:-1], groups, each)
        y = jnp.einsum("...gi,gio->...go", rows, weight[:, :each])
        y = y.reshape(*x.shape[:-1], self._size) + bias
        if shared is None:
            return y
        return y + shared.astype(weight.dtype) @ weight[:, each:].transpose(1, 0, 2).reshape(
            common, self._size
        )


class Convolution(hk.Module):
    """A convolution of images `[B, H, W, C]` with square filters, by a function that may resize."""

    def __init__(
        self, channels: int, side: int, convolve: Convolve, *, bias: bool = True, name: str
    ):
        """Make a layer of `channels` outputs and filters of `side` pixels."""
        super().__init__(name)
        self._channels, self._side, self._convolve = channels, side, convolve
        self._bias = bias

    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w O"]:
        shape = (self._side, self._side, x.shape[-1], self._channels)
        init = initializer(math.prod(shape[:-1]))
        weight = hk.get_parameter("w", shape, jnp.float32, init)
        y = self._convolve(x.astype(weight.dtype), weight)
        return y + (
            hk.get_parameter("b", shape[-1:], jnp.float32, jnp.zeros) if self._bias else 0.0
        )


def convolve_pooled(
    x: Float[Array, "B H W C"], weight: Float[Array, "5 5 C O"]
) -> Float[Array, "B H//2 W//2 O"]:
    """Return a 5x5 convolution, followed by 2x2 max-pooling.

    On a CPU it is computed as a 3x3 convolution from squares of 2x2 pixels to squares of outputs.
    This needs 44% more multiplications, but a CPU performs three times as many per second
    (`benchmarks.agent`). Accelerators compute the 5x5 convolution.
    """
    if jax.default_backend() == "cpu":
        # [q, u, p, a]: whether output p of a square applies filter row a to pixel q of square u.
        reaches = np.array(
            [
                [[[2 * u + q == p + a for a in range(5)] for p in (0, 1)] for u in range(3)]
                for q in (0, 1)
            ],
            weight.dtype,
        )
        wide = jnp.einsum("qupa,rvsb,abio->uvqripso", reaches, reaches, weight)
        wide = wide.reshape(3, 3, 4 * x.shape[-1], 4 * weight.shape[-1])
        a, b, c, d = jnp.split(convolve_same(to_patches(x, 2), wide), 4, axis=-1)
    else:
        y = convolve_same(x, weight)
        a, b, c, d = (y[:, i::2, j::2] for i in (0, 1) for j in (0, 1))
    # In pairs, so that the gradient of equal maxima does not depend on the backend.
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


def convolve_upsampled(
    x: Float[Array, "B H W C"], weight: Float[Array, "5 5 C O"]
) -> Float[Array, "B 2*H 2*W O"]:
    """Return a 5x5 convolution after nearest-neighbour upsampling by 2.

    It is computed as a 3x3 convolution of the original images to squares of 2x2 pixels, because all
    pixels of a square read the same inputs. This needs two thirds fewer multiplications.
    """
    # [u, p, a]: whether pixel p of a square applies filter row a to square u.
    reaches = np.array(
        [[[(p + a) // 2 == u for a in range(5)] for p in (0, 1)] for u in range(3)], weight.dtype
    )
    wide = jnp.einsum("upa,vqb,abio->uvipqo", reaches, reaches, weight)
    wide = wide.reshape(3, 3, x.shape[-1], 4 * weight.shape[-1])
    return from_patches(convolve_same(x, wide), 2)


class Norm(hk.Module):
    """RMSNorm or LayerNorm over the last axis, computed in float32."""

    def __init__(self, kind: str, *, name: str):
        super().__init__(name)
        self._kind = kind

    def __call__(self, x: Float[Array, "*s F"]) -> Float[Array, "*s F"]:
        wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
        scale = hk.get_parameter("scale", x.shape[-1:], jnp.float32, jnp.ones)
        if self._kind == "rms":
            variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
            return (wide * (jax.lax.rsqrt(variance + 1e-4) * scale)).astype(x.dtype)
        offset = hk.get_parameter("offset", x.shape[-1:], jnp.float32, jnp.zeros)
        normalized = jax.nn.standardize(wide, epsilon=1e-3)
        return (normalized * scale + offset).astype(x.dtype)


class Dense(hk.Module):
    """A linear map, a norm and SiLU."""

    def __init__(self, size: int, norm: str, *, name: str):
        super().__init__(name)
        # LayerNorm has an offset, so a bias before it is redundant.
        self._linear = Linear(size, bias=norm == "rms", name="linear")
        self._norm = Norm(norm, name="norm")

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        return jax.nn.silu(self._norm(self._linear(x)))


class MLP(hk.Module):
    """`Dense` layers, followed by named linear outputs."""

    def __init__(
        self,
        hidden: Sequence[int],
        outputs: dict[str, int],
        norm: str,
        output_scale: float = 1.0,
        *,
        name: str,
    ):
        """Make an MLP.

        `hidden` are the units of its layers, `outputs` the sizes of its outputs, and `output_scale`
        that of the outputs' initial weights.
        """
        super().__init__(name)
        self._layers = [Dense(size, norm, name=f"layer{i}") for i, size in enumerate(hidden)]
        self._outputs = {
            key: Linear(size, output_scale, name=_module_name(f"{key}_output"))
            for key, size in outputs.items()
        }

    def __call__(self, x: Float[Array, "*s I"]) -> dict[str, Float[Array, "*s O"]]:
        for layer in self._layers:
            x = layer(x)
        return {key: output(x) for key, output in self._outputs.items()}


def _module_name(text: str) -> str:
    """Return a text with underscores in the place of characters that Haiku's names exclude.

    Haiku numbers modules of equal names in their order.
    """
    return re.sub(r"\W|^(?=\d)", "_", text, flags=re.ASCII)

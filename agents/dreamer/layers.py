"""Layers that Dreamer's networks are made of.

The Nature version normalises by RMSNorm, the arXiv version by LayerNorm; both activate by SiLU.
Initialisation is that of the Nature version's code: truncated normals whose variance is one over
the inputs, biases 0.
"""

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_TRUNCATION = 0.87962566  # Standard deviation of a standard normal that is cut off at -2 and 2.


def initializer(fan_in: int, scale: float = 1.0) -> hk.initializers.Initializer:
    """Truncated normals of variance `scale`^2 / `fan_in`."""
    if scale == 0.0:
        return hk.initializers.Constant(0.0)
    return hk.initializers.TruncatedNormal(scale / _TRUNCATION / fan_in**0.5)


class Linear(hk.Module):
    """A linear map of the last axis."""

    def __init__(self, size: int, scale: float = 1.0, *, bias: bool = True, name: str):
        """Of `size` outputs; `scale` is that of the first weights."""
        super().__init__(name)
        self._size, self._scale, self._bias = size, scale, bias

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        fan_in = x.shape[-1]
        init = initializer(fan_in, self._scale)
        y = x @ hk.get_parameter("w", (fan_in, self._size), jnp.float32, init)
        if not self._bias:
            return y
        return y + hk.get_parameter("b", (self._size,), jnp.float32, jnp.zeros)


class BlockLinear(hk.Module):
    """A linear map whose weights are block-diagonal: inputs and outputs are in G groups."""

    def __init__(self, size: int, blocks: int, *, name: str):
        """Of `size` outputs in `blocks` groups, of which it must be a multiple."""
        super().__init__(name)
        self._size, self._blocks = size, blocks

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        fan_in, groups = x.shape[-1], self._blocks
        shape = (groups, fan_in // groups, self._size // groups)
        weight = hk.get_parameter("w", shape, jnp.float32, initializer(fan_in))
        bias = hk.get_parameter("b", (self._size,), jnp.float32, jnp.zeros)
        y = jnp.einsum("...gi,gio->...go", x.reshape(*x.shape[:-1], groups, -1), weight)
        return y.reshape(*x.shape[:-1], self._size) + bias


class Convolution(hk.Module):
    """A convolution of images `[B, H, W, C]` that keeps their size, or halves or doubles it."""

    def __init__(
        self,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        transposed: bool = False,
        bias: bool = True,
        name: str,
    ):
        """Makes nothing yet.

        Args:
          channels: of the result.
          kernel: width of the filters.
          stride: by which the size is divided, or multiplied if `transposed`.
          transposed: whether it is a transposed convolution.
          bias: whether to add one.
          name: of the module.
        """
        super().__init__(name)
        self._channels, self._kernel, self._stride = channels, kernel, stride
        self._transposed, self._bias = transposed, bias

    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w O"]:
        size = (self._kernel, self._kernel)
        fan_in = self._kernel**2 * x.shape[-1]
        shape = (*size, x.shape[-1], self._channels)
        weight = hk.get_parameter("w", shape, jnp.float32, initializer(fan_in))
        strides, axes = (self._stride,) * 2, ("NHWC", "HWIO", "NHWC")
        if self._transposed:
            y = jax.lax.conv_transpose(x, weight, strides, "SAME", dimension_numbers=axes)
        else:
            y = jax.lax.conv_general_dilated(x, weight, strides, "SAME", dimension_numbers=axes)
        if not self._bias:
            return y
        return y + hk.get_parameter("b", (self._channels,), jnp.float32, jnp.zeros)


class Norm(hk.Module):
    """RMSNorm or LayerNorm over the last axis, computed in float32."""

    def __init__(self, kind: str, *, name: str):
        """Of the kind `"rms"` or `"layer"`."""
        super().__init__(name)
        self._kind = kind

    def __call__(self, x: Float[Array, "*s F"]) -> Float[Array, "*s F"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        scale = hk.get_parameter("scale", x.shape[-1:], jnp.float32, jnp.ones)
        if self._kind == "rms":
            variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
            return (wide * (jax.lax.rsqrt(variance + 1e-4) * scale)).astype(x.dtype)
        offset = hk.get_parameter("offset", x.shape[-1:], jnp.float32, jnp.zeros)
        return (jax.nn.standardize(wide, epsilon=1e-3) * scale + offset).astype(x.dtype)


class Dense(hk.Module):
    """A linear map, a norm and SiLU."""

    def __init__(self, size: int, norm: str, *, name: str):
        """Of `size` outputs, normalised by `norm`."""
        super().__init__(name)
        # A bias before LayerNorm, which has an offset, would be one too many.
        self._linear = Linear(size, bias=norm == "rms", name="linear")
        self._norm = Norm(norm, name="norm")

    def __call__(self, x: Float[Array, "*s I"]) -> Float[Array, "*s O"]:
        return jax.nn.silu(self._norm(self._linear(x)))


class MLP(hk.Module):
    """Layers of `Dense`, and linear outputs by name."""

    def __init__(
        self,
        hidden: Sequence[int],
        outputs: dict[str, int],
        norm: str,
        output_scale: float = 1.0,
        *,
        name: str,
    ):
        """Makes nothing yet.

        Args:
          hidden: units of its layers.
          outputs: sizes of its outputs.
          norm: of its layers.
          output_scale: of the outputs' first weights.
          name: of the module.
        """
        super().__init__(name)
        self._layers = [Dense(size, norm, name=f"layer{i}") for i, size in enumerate(hidden)]
        self._outputs = {
            key: Linear(size, output_scale, name=f"{key}_output") for key, size in outputs.items()
        }

    def __call__(self, x: Float[Array, "*s I"]) -> dict[str, Float[Array, "*s O"]]:
        for layer in self._layers:
            x = layer(x)
        return {key: output(x) for key, output in self._outputs.items()}

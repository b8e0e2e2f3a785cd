"""Convolutions whose derivatives are fast on a CPU, also inside loops.

XLA's CPU compiler converts a convolution to the layout of its fast library only outside loops
(https://github.com/jax-ml/jax/issues/12868). A whole meta-step is inside a loop. The forward
convolution of channels-last images already has that layout. JAX's own derivatives do not, and are
about thirty times slower. Here the derivatives of any order are convolutions in that layout, with
transposed operands. Compilers for accelerators recognise JAX's derivatives, so accelerators use
JAX's.

Derivatives of any order, in forward and reverse mode, need a custom primitive. JAX's functions for
primitives are not part of its public API. With a release in which they have changed, this module
uses JAX's derivatives.
"""

import logging
import math
from functools import partial
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Padding = tuple[tuple[int, int], tuple[int, int]]  # Before and after, of height and width.


class Conv2D(hk.Module):
    """`haiku.Conv2D` of stride 1 with "SAME" padding: equal parameters and equal outputs."""

    def __init__(self, channels: int, kernel: int, name: str = "conv2_d"):
        """Make a module of `channels` outputs with a square kernel of side `kernel`."""
        super().__init__(name=name)
        self._channels = channels
        self._kernel = kernel

    def __call__(self, images: Float[Array, "N H W C"]) -> Float[Array, "N H W D"]:
        shape = (self._kernel, self._kernel, images.shape[-1], self._channels)
        initializer = hk.initializers.TruncatedNormal(1.0 / math.sqrt(math.prod(shape[:-1])))
        weight = hk.get_parameter("w", shape, images.dtype, initializer)
        bias = hk.get_parameter("b", shape[-1:], images.dtype, jnp.zeros)
        before = (self._kernel - 1) // 2
        around = (before, self._kernel - 1 - before)
        function = convolve
        if convolution is not None and jax.default_backend() == "cpu":
            function = convolution.bind
        return function(images, weight, padding=(around, around)) + bias


def convolve(x: Array, kernel: Array, *, padding: Padding) -> Array:
    """Return the convolution `[N, H, W, C], [h, w, C, D] -> [N, H', W', D]` of stride 1."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout)


def _make_primitive() -> Any:
    """Return the primitive whose derivatives have the fast layout; None if JAX has none."""
    try:
        from jax.core import ShapedArray
        from jax.extend.core import Primitive
        from jax.interpreters import ad, batching, mlir

        primitive = Primitive("convolution_channels_last")
        primitive.def_impl(jax.jit(convolve, static_argnames="padding"))
        primitive.def_abstract_eval(partial(_shape, ShapedArray))
        ad.defbilinear(primitive, _pulled_back_to_images, _pulled_back_to_kernel)
        batching.primitive_batchers[primitive] = _batched
        mlir.register_lowering(primitive, mlir.lower_fun(convolve, multiple_results=False))
    except (ImportError, AttributeError, TypeError) as error:
        logging.getLogger(__name__).warning(
            "Convolutions have JAX's own derivatives, which are slow on a CPU, as this release of"
            " JAX does not let others define theirs (%s).",
            error,
        )
        return None
    return primitive


def _shape(make: Any, x: Any, kernel: Any, *, padding: Padding) -> Any:
    """Return the result's shape and dtype as an instance of JAX's class `make`."""
    shapes = (jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (x, kernel))
    output = jax.eval_shape(partial(convolve, padding=padding), *shapes)
    return make(output.shape, output.dtype)


def _pulled_back_to_images(cotangent, x, kernel, *, padding: Padding):
    """Return the transposed convolution: a flipped kernel with its channel axes exchanged."""
    del x
    turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3)
    sides = zip(kernel.shape[:2], padding, strict=True)
    rest = tuple((side - 1 - before, side - 1 - after) for side, (before, after) in sides)
    return convolution.bind(cotangent, turned, padding=rest)


def _pulled_back_to_kernel(cotangent, x, kernel, *, padding: Padding):
    """Return images convolved with cotangents; the batch axis takes the channel axis's role."""
    del kernel
    images, as_kernel = jnp.transpose(x, (3, 1, 2, 0)), jnp.transpose(cotangent, (1, 2, 0, 3))
    return jnp.transpose(convolution.bind(images, as_kernel, padding=padding), (1, 2, 0, 3))


def _batched(arguments, axes, *, padding: Padding):
    return jax.vmap(partial(convolve, padding=padding), in_axes=tuple(axes))(*arguments), 0


convolution = _make_primitive()

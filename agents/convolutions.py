"""Convolutions whose derivatives are fast on a CPU, also inside loops.

XLA's CPU compiler converts a convolution to the layout of its fast library only outside loops
(https://github.com/jax-ml/jax/issues/12868). A whole meta-step is inside a loop. The forward
convolution of channels-last images already has that layout. JAX's own derivatives do not, and are
about thirty times slower. Here the derivative with respect to the images is a convolution in that
layout, with a transposed kernel. The one with respect to the kernel is a matrix product for each
place of the kernel, whose rows are pixels: as a convolution, its kernel would be as large as the
images. Compilers for accelerators recognise JAX's derivatives, so accelerators use JAX's.

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
        return convolve_same(images, weight) + bias


def convolve_same(
    x: Float[Array, "N H W C"], kernel: Float[Array, "h w C D"]
) -> Float[Array, "N H W D"]:
    """Return the convolution of stride 1 with "SAME" padding, of derivatives that are fast here."""
    height, width = (((side - 1) // 2, side // 2) for side in kernel.shape[:2])
    function = convolve
    if convolution is not None and jax.default_backend() == "cpu":
        function = convolution.bind
    return function(x, kernel, padding=(height, width))


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
    """Return the products of images, shifted by each place of the kernel, and cotangents."""
    shape = kernel.aval.shape  # The kernel is the unknown, of which only the shape is known.
    number, height, width, channels = cotangent.shape
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    rows = cotangent.reshape(-1, channels)

    @jax.checkpoint  # Else a reverse derivative of this stores the images once for each place.
    def of_place(place):
        begin = (0, place // shape[1], place % shape[1], 0)
        part = jax.lax.dynamic_slice(x, begin, (number, height, width, shape[2]))
        return part.reshape(-1, shape[2]).T @ rows

    return jax.lax.map(of_place, jnp.arange(math.prod(shape[:2]))).reshape(shape)


def _batched(arguments, axes, *, padding: Padding):
    return jax.vmap(partial(convolve, padding=padding), in_axes=tuple(axes))(*arguments), 0


convolution = _make_primitive()

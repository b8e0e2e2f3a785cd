"""Convolutions whose derivatives are fast on a CPU, also inside loops.

XLA's CPU compiler converts a convolution to the layout of its fast library only outside loops
(https://github.com/jax-ml/jax/issues/12868). A whole meta-step is inside a loop. The forward
convolution of channels-last images already has that layout. JAX's own derivatives do not, and are
about thirty times slower. Here the derivative with respect to the images is a convolution in that
layout, with a transposed kernel. The one with respect to the kernel is a matrix product for each
place of the kernel, whose rows are pixels: as a convolution, its kernel would be as large as the
images. Convolutions of stride 2 and their transposes are convolutions of stride 1 of squares of 2x2
pixels here, so that they have these derivatives, too. Compilers for accelerators recognise JAX's
derivatives, so accelerators use JAX's.

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
import numpy as np
from jaxtyping import Array, Float

from disco.architectures import add_bias

_LAYOUT = ("NHWC", "HWIO", "NHWC")
Padding = tuple[tuple[int, int], tuple[int, int]]  # Before and after, of height and width.


class Conv2D(hk.Module):
    """`haiku.Conv2D` of stride 1 with "SAME" padding: equal parameters and equal outputs."""

    def __init__(self, channels: int, kernel: int, name: str = "conv2_d"):
        super().__init__(name=name)
        self._channels = channels
        self._kernel = kernel

    def __call__(self, images: Float[Array, "N H W C"]) -> Float[Array, "N H W D"]:
        shape = (self._kernel, self._kernel, images.shape[-1], self._channels)
        initializer = hk.initializers.TruncatedNormal(1.0 / math.sqrt(math.prod(shape[:-1])))
        weight = hk.get_parameter("w", shape, images.dtype, initializer)
        bias = hk.get_parameter("b", shape[-1:], images.dtype, jnp.zeros)
        return add_bias(convolve_same(images, weight), bias)


def convolve_same(
    x: Float[Array, "N H W C"], kernel: Float[Array, "h w C D"]
) -> Float[Array, "N H W D"]:
    """Return the convolution of stride 1 with "SAME" padding, of derivatives that are fast here."""
    height, width = (((side - 1) // 2, side // 2) for side in kernel.shape[:2])
    return _convolve(x, kernel, (height, width))


def convolve_halving(
    x: Float[Array, "N H W C"], kernel: Float[Array, "k k C D"]
) -> Float[Array, "N H//2 W//2 D"]:
    """Return the convolution of stride 2 with "SAME" padding, of images of even sides.

    On a CPU it is computed as a convolution of stride 1 from squares of 2x2 pixels, for its fast
    derivatives. A kernel of an odd side is filled up with zeros.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=_LAYOUT)
    side, _, channels, outputs = kernel.shape
    squares, before = -(-side // 2), (side - 2) // 2
    kernel = jnp.pad(kernel, ((0, side % 2), (0, side % 2), (0, 0), (0, 0)))
    kernel = kernel.reshape(squares, 2, squares, 2, channels, outputs).transpose(0, 2, 1, 3, 4, 5)
    kernel = kernel.reshape(squares, squares, 4 * channels, outputs)
    around = (before, 2 * squares - 2 - before)
    x = to_patches(jnp.pad(x, ((0, 0), around, around, (0, 0))), 2)
    return _convolve(x, kernel, ((0, 0), (0, 0)))


def convolve_doubling(
    x: Float[Array, "N H W C"], kernel: Float[Array, "k k C D"]
) -> Float[Array, "N 2*H 2*W D"]:
    """Return the transposed convolution of stride 2 with "SAME" padding; kernels of 4x4 or 5x5.

    On a CPU it is computed as a 3x3 convolution of stride 1 to squares of 2x2 pixels. So it does
    not multiply by the zeros between the pixels, and its derivatives are fast.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_LAYOUT)
    side, _, channels, outputs = kernel.shape
    before = -(-side // 2)
    # [u, p, a]: whether pixel p of a square applies kernel row a to pixel u of the image.
    reaches = np.array(
        [[[p + a - before == 2 * (u - 1) for a in range(side)] for p in (0, 1)] for u in range(3)],
        kernel.dtype,
    )
    wide = jnp.einsum("upa,vqb,abio->uvipqo", reaches, reaches, kernel)
    return from_patches(convolve_same(x, wide.reshape(3, 3, channels, 4 * outputs)), 2)


def convolve_enlarged(
    x: Float[Array, "N H W C"], kernel: Float[Array, "3 3 C D"]
) -> Float[Array, "N 2*H 2*W D"]:
    """Return the "SAME" convolution of images enlarged to twice their sides by repeated pixels.

    On a CPU it is computed from the images themselves, in which a pixel of the result sees 2x2
    pixels only: 16 products where the enlarged images need 36.
    """
    if jax.default_backend() != "cpu":
        return convolve_same(x.repeat(2, axis=1).repeat(2, axis=2), kernel)
    n, height, width, channels = x.shape
    outputs = kernel.shape[-1]
    # [p, u, a]: whether kernel row a of pixel p of a square reads pixel u of the image.
    reads = np.array([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], kernel.dtype)
    wide = jnp.einsum("pua,qvb,abio->uvipqo", reads, reads, kernel)
    y = _convolve(x, wide.reshape(2, 2, channels, 4 * outputs), ((1, 1), (1, 1)))
    y = y.reshape(n, height + 1, width + 1, 2, 2, outputs)
    rows = [
        jnp.stack([y[:, p : p + height, q : q + width, p, q] for q in (0, 1)], axis=3)
        for p in (0, 1)
    ]
    return jnp.stack(rows, axis=2).reshape(n, 2 * height, 2 * width, outputs)


def to_patches(x: Float[Array, "N H W C"], side: int) -> Float[Array, "N h w D"]:
    """Return images whose pixels are squares of pixels."""
    n, height, width, channels = x.shape
    x = x.reshape(n, height // side, side, width // side, side, channels)
    return x.swapaxes(2, 3).reshape(n, height // side, width // side, -1)


def from_patches(x: Float[Array, "N h w D"], side: int) -> Float[Array, "N H W C"]:
    """Return the images of which `to_patches` returns the patches."""
    n, height, width, _ = x.shape
    x = x.reshape(n, height, width, side, side, -1).swapaxes(2, 3)
    return x.reshape(n, height * side, width * side, -1)


def _convolve(x: Array, kernel: Array, padding: Padding) -> Array:
    if convolution is not None and jax.default_backend() == "cpu":
        return convolution.bind(x, kernel, padding=padding)
    return convolve(x, kernel, padding=padding)


def convolve(x: Array, kernel: Array, *, padding: Padding) -> Array:
    """Return the convolution `[N, H, W, C], [h, w, C, D] -> [N, H', W', D]` of stride 1."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=_LAYOUT)


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

"""Convolutions whose derivatives are fast on a CPU, inside loops too.

XLA's compiler for CPUs brings a convolution into the layout that its fast library takes only where
it stands outside loops (https://github.com/jax-ml/jax/issues/12868), and all of a meta-step is
inside. Forward, images with their channels last are in that layout; JAX's own derivatives are
not, and some thirty times slower. Here the derivatives are convolutions in that layout, with
their operands transposed, and so are derivatives of any order. Accelerators' compilers know JAX's
derivatives by their form, so there they stay.

Derivatives of any order and in both modes need a primitive of our own, which JAX lets others make
in modules that are not part of its public API. A release in which they have changed uses JAX's
derivatives.
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
    """`haiku.Conv2D` of stride 1, with "SAME" padding: the same parameters, the same numbers."""

    def __init__(self, channels: int, kernel: int, name: str = "conv2_d"):
        """With `channels` outputs, and a kernel of that side."""
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
    """A convolution `[N, H, W, C], [h, w, C, D] -> [N, H', W', D]` of stride 1."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout)


def _make_primitive() -> Any:
    """The convolution whose derivatives are in the fast layout; None where JAX has changed."""
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
    """The result's shape and dtype, by JAX's class for these."""
    shapes = (jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (x, kernel))
    output = jax.eval_shape(partial(convolve, padding=padding), *shapes)
    return make(output.shape, output.dtype)


def _pulled_back_to_images(cotangent, x, kernel, *, padding: Padding):
    """The transposed convolution: with the kernel turned round, and in and out exchanged."""
    del x
    turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3)
    sides = zip(kernel.shape[:2], padding, strict=True)
    rest = tuple((side - 1 - before, side - 1 - after) for side, (before, after) in sides)
    return convolution.bind(cotangent, turned, padding=rest)


def _pulled_back_to_kernel(cotangent, x, kernel, *, padding: Padding):
    """Images convolved with cotangents, summed over the batch: it is what channels were."""
    del kernel
    images, as_kernel = jnp.transpose(x, (3, 1, 2, 0)), jnp.transpose(cotangent, (1, 2, 0, 3))
    return jnp.transpose(convolution.bind(images, as_kernel, padding=padding), (1, 2, 0, 3))


def _batched(arguments, axes, *, padding: Padding):
    return jax.vmap(partial(convolve, padding=padding), in_axes=tuple(axes))(*arguments), 0


convolution = _make_primitive()

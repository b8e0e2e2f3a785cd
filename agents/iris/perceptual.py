"""The perceptual loss of the autoencoder: LPIPS with VGG-16's features.

Zhang et al. 2018, The Unreasonable Effectiveness of Deep Features as a Perceptual Metric; IRIS,
appendix A.1. The networks' weights are not part of this package: `load` reads a file of them.
Without such a file the loss is off. It was run with weights that were drawn at random only.
"""

import pathlib

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agents.convolutions import convolve_same
from disco import npz

Params = dict[str, Float[Array, "..."]]

# Channels of VGG-16's convolutions, by block; each block but the last ends with max-pooling.
_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# The mean and the standard deviation of images with entries in [-1, 1], by channel.
_MEAN = (-0.030, -0.088, -0.188)
_STDDEV = (0.458, 0.448, 0.450)


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the file's arrays by name.

    `convolutionB_I/w` `[3, 3, inputs, outputs]` and `/b` of block B, from 1 on, and `linearB`, the
    weights of the block's channels in the distance.
    """
    found, inputs = {}, 3
    for block, widths in enumerate(_BLOCKS, 1):
        for i, width in enumerate(widths, 1):
            found[f"convolution{block}_{i}/w"] = (3, 3, inputs, width)
            found[f"convolution{block}_{i}/b"] = (width,)
            inputs = width
        found[f"linear{block}"] = (inputs,)
    return found


def load(file: str) -> Params:
    """Read the networks' weights.

    Args:
      file: `.npz` file of arrays of numbers, named as by `shapes`.

    Raises:
      ValueError: if the file cannot be read, or lacks an array, or one has another shape; the
        message names it.
    """
    try:
        with npz.opened(pathlib.Path(file).expanduser()) as archive:
            arrays = {name: archive.read(name) for name in archive.names}
    except (OSError, npz.ArchiveError) as error:
        raise ValueError(
            f"IRIS' perceptual_file {file!r} cannot be read: {error}. Expected an .npz file of the"
            " perceptual network's weights."
        ) from error
    expected = shapes()
    if unknown := sorted(set(expected) ^ set(arrays)):
        raise ValueError(
            f"IRIS' perceptual_file {file!r} has {len(arrays)} arrays; expected the {len(expected)}"
            f" of the perceptual network. Missing or unknown: {', '.join(unknown[:4])}."
        )
    for name, shape in expected.items():
        found = arrays[name]
        if found.shape != shape or found.dtype.kind != "f":
            raise ValueError(
                f"IRIS' perceptual_file {file!r} has {name!r} of {found.dtype}{list(found.shape)};"
                f" expected float32{list(shape)}."
            )
    return {name: jnp.asarray(arrays[name], jnp.float32) for name in expected}


def distance(
    params: Params, a: Float[Array, "B H W 3"], b: Float[Array, "B H W 3"]
) -> Float[Array, ""]:
    """Return the mean perceptual distance of images with entries in [-1, 1]."""
    mean, stddev = jnp.array(_MEAN), jnp.array(_STDDEV)
    x = (jnp.concatenate([a, b]) - mean) / stddev
    total = jnp.zeros(())
    for block, widths in enumerate(_BLOCKS, 1):
        if block > 1:
            x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        for i in range(1, len(widths) + 1):
            weight, bias = (params[f"convolution{block}_{i}/{part}"] for part in "wb")
            x = jax.nn.relu(convolve_same(x, weight) + bias)
        of_a, of_b = jnp.split(_unit_length(x), 2)
        total += jnp.mean(jnp.square(of_a - of_b) @ params[f"linear{block}"])
    return total


def _unit_length(x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
    """Return features of each pixel, divided by their norm."""
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-10)

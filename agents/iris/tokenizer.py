"""The discrete autoencoder: images to tokens and back (IRIS, section 2.1 and appendix A.1).

Initial weights of layers are those of PyTorch's modules of their names. The perceptual loss is
LPIPS with VGG-16's features (Zhang et al. 2018, The Unreasonable Effectiveness of Deep Features as
a Perceptual Metric). Its networks' weights are not part of this package: `load` reads a file of
them. Without such a file the loss is off. It was run with weights that were drawn at random only.
"""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agents.convolutions import (
    convolve_enlarged,
    convolve_halving,
    convolve_same,
    from_patches,
    to_patches,
)
from agents.iris.config import IrisConfig
from disco import npz

Convolve = Callable[[Float[Array, "B H W C"], Float[Array, "3 3 C O"]], Float[Array, "B h w O"]]


def fan_in_uniform(fan_in: int) -> hk.initializers.Initializer:
    """Return the uniform distribution between ±1/√fan-in, of weights and biases."""
    bound = fan_in**-0.5
    return hk.initializers.RandomUniform(-bound, bound)


def linear(x: Float[Array, "*s I"], size: int, name: str) -> Float[Array, "*s O"]:
    """Return a linear map of the last axis; a 1x1 convolution of images."""
    init = fan_in_uniform(x.shape[-1])
    return hk.Linear(size, w_init=init, b_init=init, name=name)(x)


@hk.to_module
def convolution(
    x: Float[Array, "B H W C"], channels: int, convolve: Convolve = convolve_same
) -> Float[Array, "B h w O"]:
    """Return a 3x3 convolution of images.

    It keeps their sides ("SAME" padding), or halves them with stride 2, padded below and on the
    right only (`convolve_halving`), or doubles them after nearest-neighbour upsampling
    (`convolve_enlarged`).
    """
    shape = (3, 3, x.shape[-1], channels)
    init = fan_in_uniform(9 * x.shape[-1])
    weight = hk.get_parameter("w", shape, jnp.float32, init)
    return convolve(x, weight) + hk.get_parameter("b", shape[-1:], jnp.float32, init)


@hk.to_module
def group_norm(x: Float[Array, "B H W C"], groups: int) -> Float[Array, "B H W C"]:
    """Normalise images by the moments of groups of consecutive channels.

    `haiku.GroupNorm` with equal parameters and results. Here each channel's moments come first and
    the groups' from these, as reductions over a last axis of two channels, 32 groups of 64, are
    slow on a CPU.
    """
    channels = x.shape[-1]
    scale = hk.get_parameter("scale", (channels,), x.dtype, jnp.ones)
    offset = hk.get_parameter("offset", (channels,), x.dtype, jnp.zeros)

    def of_groups(of_channels: Float[Array, "B C"]) -> Float[Array, "B 1 1 C"]:
        size = channels // groups
        means = jnp.mean(of_channels.reshape(len(x), groups, size), axis=-1)
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

    Raises:
      ValueError: if the file cannot be read, or lacks an array, or one has another shape; the
        message names it.
    """
    try:
        arrays = npz.read(pathlib.Path(file).expanduser())
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


@hk.to_module
def encoder(images: Float[Array, "B H W C"], config: IrisConfig) -> Float[Array, "B h w E"]:
    """Return feature vectors of codes, of images with entries in [-1, 1]."""
    x = convolution("input")(to_patches(images, config.tile or 1), config.channels)
    for level, multiplier in enumerate(config.multipliers):
        if level > 0:
            x = convolution(f"halving{level}")(x, x.shape[-1], convolve_halving)
        x = _blocks(x, config, level, multiplier, config.residual_blocks)
    x = _normalize_and_swish(_middle(x, config.groups), config.groups, "norm")
    x = convolution("output")(x, config.latent_channels)
    return linear(x, config.code_size, "to_codes")


@hk.to_module
def decoder(
    codes: Float[Array, "B h w E"], config: IrisConfig, image_channels: int
) -> Float[Array, "B H W C"]:
    """Return images of embeddings of codes; their entries are in [-1, 1] but for errors."""
    x = linear(codes, config.latent_channels, "from_codes")
    x = convolution("input")(x, config.channels * config.multipliers[-1])
    x = _middle(x, config.groups)
    for level, multiplier in reversed(list(enumerate(config.multipliers))):
        x = _blocks(x, config, level, multiplier, config.residual_blocks + 1)
        if level > 0:
            x = convolution(f"doubling{level}")(x, x.shape[-1], convolve_enlarged)
    x = _normalize_and_swish(x, config.groups, "norm")
    patch = config.tile or 1
    return from_patches(convolution("output")(x, image_channels * patch**2), patch)


def _blocks(
    x: Float[Array, "B H W C"], config: IrisConfig, level: int, multiplier: int, number: int
) -> Float[Array, "B H W O"]:
    """Return features after a resolution's residual blocks, each with attention if it has any."""
    for i in range(number):
        name, channels = f"level{level}_block{i}", config.channels * multiplier
        x = residual_block(name)(x, channels, config.groups)
        if x.shape[1] in config.attention_resolutions:
            x = attention(f"level{level}_attention{i}")(x, config.groups)
    return x


@hk.to_module
def residual_block(
    x: Float[Array, "B H W C"], channels: int, groups: int
) -> Float[Array, "B H W O"]:
    """Return images after two convolutions, each after a norm and swish, plus a shortcut."""
    y = x
    for i in (1, 2):
        y = _normalize_and_swish(y, groups, f"norm{i}")
        y = convolution(f"convolution{i}")(y, channels)
    if x.shape[-1] != channels:
        x = linear(x, channels, "shortcut")
    return x + y


@hk.to_module
def attention(x: Float[Array, "B H W C"], groups: int) -> Float[Array, "B H W C"]:
    """Return images after attention of one head among all pixels, after a norm, plus a shortcut."""
    batch, height, width, channels = x.shape
    y = group_norm("norm")(x, groups).reshape(batch, height * width, 1, channels)
    query, key, value = (linear(y, channels, name) for name in ("query", "key", "value"))
    y = jax.nn.dot_product_attention(query, key, value).reshape(x.shape)
    return x + linear(y, channels, "output")


def _middle(x: Float[Array, "B h w C"], groups: int) -> Float[Array, "B h w C"]:
    """Return features after the layers of the lowest resolution."""
    x = residual_block("middle_block0")(x, x.shape[-1], groups)
    x = attention("middle_attention")(x, groups)
    return residual_block("middle_block1")(x, x.shape[-1], groups)


def _normalize_and_swish(
    x: Float[Array, "B H W C"], groups: int, name: str
) -> Float[Array, "B H W C"]:
    return jax.nn.swish(group_norm(name)(x, groups))


class Quantized(NamedTuple):
    """Feature vectors, and the codes closest to them.

    Attributes:
      tokens: the closest codes' numbers.
      codes: their embeddings.
      straight_through: as `codes`, with the feature vectors' gradient.
    """

    tokens: Int[Array, "*s"]
    codes: Float[Array, "*s E"]
    straight_through: Float[Array, "*s E"]


def quantize(features: Float[Array, "*s E"], codebook: Float[Array, "N E"]) -> Quantized:
    """Return the closest codes of feature vectors; of equally close ones the first."""
    products = features @ codebook.T
    # The squared distances, but for the features' own squared norms, which do not matter.
    distances = jnp.sum(jnp.square(codebook), axis=-1) - 2.0 * products
    tokens = jax.lax.argmin(distances, distances.ndim - 1, jnp.int32)
    codes = codebook[tokens]
    return Quantized(tokens, codes, features + jax.lax.stop_gradient(codes - features))

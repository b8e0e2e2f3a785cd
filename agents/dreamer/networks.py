"""Encoder and decoder.

Observations are dictionaries by name of images (uint8 `[H, W, C]`), vectors and grids of numbers,
and integers of known ranges. Convolutions process images, MLPs everything else. Integers of few
values are one-hot vectors. Those of many values, such as words or glyphs, are vectors of fixed
random embeddings, as the words of the authors' DMLab (danijar/dreamerv3, `embodied/envs/dmlab.py`):
as numbers, bfloat16 would not tell them apart.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float

from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import symlog
from agents.dreamer.layers import (
    MLP,
    BlockLinear,
    Dense,
    EnlargingConvolution,
    Linear,
    Norm,
    PooledConvolution,
    StridedConvolution,
)

_MULTIPLES = (2, 3, 4, 4)  # Channels by stage, in units of `depth` (the Nature version's code).
_SMALLEST = 4  # Side of the smallest feature maps, at least.
_MOST_CLASSES = 64  # Integers of more values have embeddings.
_MOST_IDS = 2**17  # Integers of more values are numbers, such as counts.
_EMBEDDING, _CELL_EMBEDDING = 32, 8  # Sizes of embeddings: in vectors, and in boards.

Specs = Mapping[str, specs.Array]


def is_image(spec: specs.Array) -> bool:
    """Return whether an observation is encoded by convolutions."""
    return len(spec.shape) == 3 and spec.dtype == np.uint8


def num_classes(spec: specs.Array) -> int:
    """Return the number of classes of integers, encoded as one-hot vectors; otherwise 0."""
    number = _num_values(spec)
    return number if number <= _MOST_CLASSES else 0


def embeddings(spec: specs.Array) -> Float[np.ndarray, "N E"] | None:
    """Return the fixed embeddings of integers of many values; None for other observations.

    Integers of one number per observation, such as counts, are numbers.
    """
    size = _embedding_size(spec)
    if not size:
        return None
    return np.random.default_rng(0).normal(size=(_num_values(spec), size)).astype(np.float32)


def _embedding_size(spec: specs.Array) -> int:
    """Return the size of an observation's embeddings; 0 for observations without any."""
    if not _MOST_CLASSES < _num_values(spec) <= _MOST_IDS or not spec.shape:
        return 0
    return _EMBEDDING if len(spec.shape) == 1 else _CELL_EMBEDDING


def _num_values(spec: specs.Array) -> int:
    """Return the number of values of integers from 0 to a bound; otherwise 0."""
    if not isinstance(spec, specs.BoundedArray) or not np.issubdtype(spec.dtype, np.integer):
        return 0
    return 0 if is_image(spec) or np.min(spec.minimum) < 0 else int(np.max(spec.maximum)) + 1


def split(observation_specs: Specs) -> tuple[Specs, Specs]:
    """Split observations into images and others, both in the order of their names."""
    ordered = sorted(observation_specs.items())
    images = {name: spec for name, spec in ordered if is_image(spec)}
    return images, {name: spec for name, spec in ordered if name not in images}


class Encoder(hk.Module):
    """An encoder from observations to tokens, the inputs of the posterior."""

    def __init__(self, config: DreamerConfig, observation_specs: Specs, name: str = "encoder"):
        """Make an encoder of observations of these specs."""
        super().__init__(name)
        self._config = config
        self._images, self._vectors = split(observation_specs)
        layers = range(config.layers if self._vectors else 0)
        self._layers = [Dense(config.units, config.norm, name=f"layer{i}") for i in layers]
        self._stages = []
        for i, channels in enumerate(_channels(config, self._images)):
            make, name = StridedConvolution, f"convolution{i}"
            if _is_strided(config):
                make = functools.partial(make, kernel=5, stride=2 if i else 1, bias=True)
            elif config.architecture == "nature":
                make = PooledConvolution
            self._stages.append((make(channels, name=name), Norm(config.norm, name=f"norm{i}")))

    def __call__(self, observation: Mapping[str, Array]) -> Float[Array, "*s E"]:
        parts = []
        if self._vectors:
            vectors = [
                _flat(observation[name], spec, self._config) for name, spec in self._vectors.items()
            ]
            x = jnp.concatenate(vectors, axis=-1)
            for layer in self._layers:
                x = layer(x)
            parts.append(x)
        if self._images:
            images = [observation[name] for name in self._images]
            x = jnp.concatenate(images, axis=-1).astype(jnp.float32) / 255.0 - 0.5
            shape = x.shape
            x = _padded(x.reshape(-1, *shape[-3:]), 2 ** _num_halvings(self._config, self._images))
            for convolution, norm in self._stages:
                x = jax.nn.silu(norm(convolution(x)))
            parts.append(x.reshape(*shape[:-3], -1))
        return jnp.concatenate(parts, axis=-1)


class Decoder(hk.Module):
    """A decoder from model states to observations."""

    def __init__(self, config: DreamerConfig, observation_specs: Specs, name: str = "decoder"):
        """Make a decoder of observations of these specs."""
        super().__init__(name)
        self._config = config
        self._images, self._vectors = split(observation_specs)
        if self._vectors:
            sizes = {key: math.prod(_predicted_shape(spec)) for key, spec in self._vectors.items()}
            hidden = (config.units,) * config.layers
            self._mlp = MLP(hidden, sizes, config.norm, name="mlp")
        if self._images:
            channels = _channels(config, self._images)
            self._make_image_layers(channels)

    def _make_image_layers(self, channels: list[int]) -> None:
        config = self._config
        self._channels = channels
        self._out_channels = sum(spec.shape[-1] for spec in self._images.values())
        self._size = next(iter(self._images.values())).shape[:2]
        halvings = _num_halvings(config, self._images)
        height, width = (-(-side // 2**halvings) for side in self._size)
        self._start = (height, width, channels[-1])
        size = math.prod(self._start)
        if config.architecture == "nature":
            # A block has whole channels, so the blocks are at most as many as the channels.
            self._blocks = math.gcd(config.blocks, channels[-1])
            self._from_h = BlockLinear(size, self._blocks, name="from_h")
            self._from_z = Dense(2 * config.units, config.norm, name="from_z")
            self._from_z_out = Linear(size, name="from_z_output")
            self._start_norm = Norm(config.norm, name="start_norm")
        if _is_strided(config):
            make = functools.partial(StridedConvolution, kernel=5, transposed=True, bias=True)
            self._last = make(self._out_channels, stride=1, name="image_output")
        elif config.architecture == "nature":
            self._last = EnlargingConvolution(self._out_channels, name="image_output")
            make = EnlargingConvolution
        else:
            self._from_state = Linear(size, name="from_state")
            self._last = StridedConvolution(
                self._out_channels, transposed=True, bias=True, name="image_output"
            )
            make = functools.partial(StridedConvolution, transposed=True)
        self._stages = [
            (make(width, name=f"convolution{i}"), Norm(config.norm, name=f"norm{i}"))
            for i, width in reversed(list(enumerate(channels[:-1])))
        ]

    def __call__(
        self, h: Float[Array, "*s D"], z: Float[Array, "*s SC"]
    ) -> dict[str, Float[Array, "..."]]:
        """Return predictions by name.

        Images are in 0 to 1; others are vectors or their symlogs, class logits, or embeddings.
        """
        found = {}
        if self._vectors:
            predicted = self._mlp(jnp.concatenate([z, h], axis=-1))
            for name, spec in self._vectors.items():
                shape = (*h.shape[:-1], *_predicted_shape(spec))
                found[name] = predicted[name].reshape(shape)
        if self._images:
            image = self._image(h.reshape(-1, h.shape[-1]), z.reshape(-1, z.shape[-1]))
            height, width = self._size
            image = image[:, :height, :width]
            image = image.reshape(*h.shape[:-1], *image.shape[1:])
            ends = np.cumsum([spec.shape[-1] for spec in self._images.values()])[:-1]
            found |= zip(self._images, jnp.split(image, ends, axis=-1), strict=True)
        return found

    def _image(self, h: Float[Array, "N D"], z: Float[Array, "N SC"]) -> Float[Array, "N H W C"]:
        height, width, channels = self._start
        if self._config.architecture != "nature":
            x = self._from_state(jnp.concatenate([h, z], axis=-1)).reshape(-1, *self._start)
        else:
            groups = self._blocks
            x = self._from_h(h).reshape(-1, groups, height, width, channels // groups)
            x = jnp.moveaxis(x, 1, 3).reshape(-1, *self._start)
            x = x + self._from_z_out(self._from_z(z)).reshape(-1, *self._start)
            x = jax.nn.silu(self._start_norm(x))
        for convolution, norm in self._stages:
            x = jax.nn.silu(norm(convolution(x)))
        x = self._last(x).astype(jnp.result_type(float))
        return jax.nn.sigmoid(x) if self._config.architecture == "nature" else x + 0.5

    def losses(
        self, predicted: Mapping[str, Array], observation: Mapping[str, Array]
    ) -> dict[str, Float[Array, "*s"]]:
        """Return the loss of each observation, summed over its elements."""
        found = {}
        for name, spec in {**self._vectors, **self._images}.items():
            target, axes = observation[name], tuple(range(-len(spec.shape), 0))
            if is_image(spec):
                error = jnp.square(predicted[name] - target.astype(jnp.float32) / 255.0)
            elif num_classes(spec):
                log_p = jax.nn.log_softmax(predicted[name])
                index = target[..., None].astype(jnp.int32)
                error = -jnp.take_along_axis(log_p, index, axis=-1)[..., 0]
            elif (table := embeddings(spec)) is not None:
                error = jnp.square(predicted[name] - jnp.asarray(table)[target])
                axes = (*axes, -len(spec.shape) - 1)
            else:
                target = target.astype(jnp.float32)
                target = symlog(target) if self._config.symlog_vectors else target
                error = jnp.square(predicted[name] - target)
            found[name] = jnp.sum(error, axis=axes) if axes else error
        return found


@dataclasses.dataclass(frozen=True)
class ActionPart:
    """One part of an action.

    Attributes:
      size: number of choices of a discrete action, or dimension of a continuous one.
      is_discrete: whether the action is discrete.
    """

    size: int
    is_discrete: bool


def _is_strided(config: DreamerConfig) -> bool:
    """Return whether the convolutions are the Nature paper's."""
    return config.architecture == "nature" and config.convolutions == "strided"


def _num_halvings(config: DreamerConfig, images: Specs) -> int:
    """Return how often the convolutions halve the images' sides."""
    side = min(next(iter(images.values())).shape[:2])
    halvings = int(math.log2(side // _SMALLEST))
    return min(halvings, len(_MULTIPLES)) if config.architecture == "nature" else halvings


def _channels(config: DreamerConfig, images: Specs) -> list[int]:
    """Return the channels of each stage of the convolutions; empty without images."""
    if not images:
        return []
    stages = _num_halvings(config, images)
    if _is_strided(config):  # The first stage has the images' full resolution.
        return [config.depth * multiple for multiple in (1, *_MULTIPLES[:stages])]
    if config.architecture == "nature":
        return [config.depth * multiple for multiple in _MULTIPLES[:stages]]
    return [config.depth * 2**i for i in range(stages)]


def _predicted_shape(spec: specs.Array) -> tuple[int, ...]:
    """Return the shape of the decoder's prediction of an observation that is not an image."""
    size = num_classes(spec) or _embedding_size(spec)
    return (*spec.shape, size) if size else spec.shape


def _flat(x: Array, spec: specs.Array, config: DreamerConfig) -> Float[Array, "*s F"]:
    lead = x.shape[: x.ndim - len(spec.shape)]
    if classes := num_classes(spec):
        return jax.nn.one_hot(x, classes).reshape(*lead, -1)
    if (table := embeddings(spec)) is not None:
        return jnp.asarray(table)[x].reshape(*lead, -1)
    x = x.astype(jnp.float32).reshape(*lead, -1)
    return symlog(x) if config.symlog_vectors else x


def _padded(x: Float[Array, "N H W C"], multiple: int) -> Float[Array, "N h w C"]:
    """Return images, padded with black at bottom and right to multiples of a number."""
    _, height, width, _ = x.shape
    below, right = -height % multiple, -width % multiple
    return jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0)), constant_values=-0.5)

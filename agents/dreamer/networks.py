"""Encoder, decoder and sequence model of both versions.

Encoder and decoder have convolutions for images and an MLP for everything else. The Nature
version's convolutions are those of its authors' code of 2025: 5x5, with pooling and upsampling, to
4x4 or 6x6 pixels. The arXiv version's are 4x4 of stride 2, to 4x4 pixels: its text says 3x3, but
4x4 is what its parameter counts say. Its last one alone has a bias.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from agents.convolutions import convolve_doubling, convolve_halving
from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import Image, Observation
from agents.dreamer.layers import (
    MLP,
    BlockLinear,
    Convolution,
    Convolve,
    Dense,
    Linear,
    Norm,
    convolve_pooled,
    convolve_upsampled,
)

_SMALLEST = 4  # Side of the smallest feature maps, at least.
_NATURE_MULTIPLES = (2, 3, 4, 4)  # Channels of convolutions, in units of `depth`.


@dataclasses.dataclass(frozen=True)
class ActionSpace:
    """The actions of an environment.

    Attributes:
      size: number of choices of a discrete action, or dimension of a continuous one.
      is_discrete: whether actions are discrete.
    """

    size: int
    is_discrete: bool

    def embed(self, action: Array) -> Float[Array, "*s A"]:
        """Return actions as vectors; a negative choice embeds as zeros."""
        return jax.nn.one_hot(action, self.size) if self.is_discrete else action


def _channels(config: DreamerConfig, images: Mapping[str, Image]) -> list[int]:
    """Return the channels of the encoder's convolutions, which halve images' sides.

    They end at 4 to 7 pixels, or after as many as the version has. Without images there are none.
    """
    if not images:
        return []
    number = int(math.log2(min(next(iter(images.values())).shape[:2]) // _SMALLEST))
    if config.is_v1:
        return [config.depth * 2**i for i in range(number)]
    return [config.depth * multiple for multiple in _NATURE_MULTIPLES[:number]]


def _stage(
    config: DreamerConfig, i: int, channels: int, convolve: Convolve
) -> tuple[Convolution, Norm]:
    """Create the convolution of number i, and its norm."""
    side, bias = (4, False) if config.is_v1 else (5, True)
    convolution = Convolution(channels, side, convolve, bias=bias, name=f"convolution{i}")
    return convolution, Norm(config.norm, name=f"norm{i}")


def _split(
    observations: Mapping[str, Observation],
) -> tuple[dict[str, Image], dict[str, Observation]]:
    images = {name: x for name, x in observations.items() if isinstance(x, Image)}
    return images, {name: x for name, x in observations.items() if name not in images}


class Encoder(hk.Module):
    """An encoder from observations to tokens, the inputs of the posterior."""

    def __init__(
        self, config: DreamerConfig, observations: Mapping[str, Observation], name: str = "encoder"
    ):
        super().__init__(name)
        self._images, self._vectors = _split(observations)
        layers = range(config.layers if self._vectors else 0)
        self._layers = [Dense(config.units, config.norm, name=f"layer{i}") for i in layers]
        convolve = convolve_halving if config.is_v1 else convolve_pooled
        channels = enumerate(_channels(config, self._images))
        self._stages = [_stage(config, i, x, convolve) for i, x in channels]

    def __call__(self, observation: Mapping[str, Array]) -> Float[Array, "*s E"]:
        parts = []
        if self._vectors:
            vectors = [x.encoded(observation[name]) for name, x in self._vectors.items()]
            x = jnp.concatenate(vectors, axis=-1)
            for layer in self._layers:
                x = layer(x)
            parts.append(x)
        if self._images:
            images = [observation[name] for name in self._images]
            x = jnp.concatenate(images, axis=-1).astype(jnp.float32) / 255.0 - 0.5
            *lead, height, width, channels = x.shape
            # Black at bottom and right, so that all convolutions halve the sides.
            below, right = (-side % 2 ** len(self._stages) for side in (height, width))
            x = x.reshape(-1, height, width, channels)
            x = jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0)), constant_values=-0.5)
            for convolution, norm in self._stages:
                x = jax.nn.silu(norm(convolution(x)))
            parts.append(x.reshape(*lead, -1))
        return jnp.concatenate(parts, axis=-1)


class Decoder(hk.Module):
    """A decoder from model states to observations."""

    def __init__(
        self, config: DreamerConfig, observations: Mapping[str, Observation], name: str = "decoder"
    ):
        super().__init__(name)
        self._config = config
        self._images, self._vectors = _split(observations)
        if self._vectors:
            sizes = {key: math.prod(x.predicted_shape) for key, x in self._vectors.items()}
            self._mlp = MLP((config.units,) * config.layers, sizes, config.norm, name="mlp")
        if self._images:
            self._make_image_layers()

    def _make_image_layers(self) -> None:  # Haiku makes its name a part of the parameters'.
        config, is_v1 = self._config, self._config.is_v1
        channels = _channels(config, self._images)
        self._sides = next(iter(self._images.values())).shape[:2]
        height, width = (-(-side // 2 ** len(channels)) for side in self._sides)
        self._shape = (height, width, channels[-1])  # Of the smallest feature maps.
        size = math.prod(self._shape)
        if is_v1:
            self._from_state = Linear(size, name="from_state")
        else:
            # A block has whole channels, so the blocks are at most as many as the channels.
            self._blocks = math.gcd(config.blocks, channels[-1])
            self._from_h = BlockLinear(size, self._blocks, name="from_h")
            self._from_z = Dense(2 * config.units, config.norm, name="from_z")
            self._from_z_out = Linear(size, name="from_z_output")
            self._norm = Norm(config.norm, name="start_norm")
        convolve = convolve_doubling if is_v1 else convolve_upsampled
        numbered = reversed(list(enumerate(channels[:-1])))
        self._stages = [_stage(config, i, x, convolve) for i, x in numbered]
        out_channels, side = sum(x.shape[-1] for x in self._images.values()), 4 if is_v1 else 5
        self._last = Convolution(out_channels, side, convolve, name="image_output")

    def __call__(
        self, h: Float[Array, "*s D"], z: Float[Array, "*s SC"]
    ) -> dict[str, Float[Array, "..."]]:
        """Return predictions by name (`agents.dreamer.distributions`)."""
        found = {}
        if self._vectors:
            predicted = self._mlp(jnp.concatenate([z, h], axis=-1))
            for name, x in self._vectors.items():
                found[name] = predicted[name].reshape(*h.shape[:-1], *x.predicted_shape)
        if self._images:
            image = self._image(*(x.reshape(-1, x.shape[-1]) for x in (h, z)))
            height, width = self._sides
            image = image[:, :height, :width]
            image = image.reshape(*h.shape[:-1], *image.shape[1:])
            ends = np.cumsum([x.shape[-1] for x in self._images.values()])[:-1]
            found |= zip(self._images, jnp.split(image, ends, axis=-1), strict=True)
        return found

    def _image(self, h: Float[Array, "N D"], z: Float[Array, "N SC"]) -> Float[Array, "N H W C"]:
        """Return images in 0 to 1; those of `"v1"` are so but for errors."""
        is_v1 = self._config.is_v1
        if is_v1:
            x = self._from_state(jnp.concatenate([h, z], axis=-1)).reshape(-1, *self._shape)
        else:
            height, width, channels = self._shape
            x = self._from_h(h).reshape(-1, self._blocks, height, width, channels // self._blocks)
            x = jnp.moveaxis(x, 1, 3).reshape(-1, *self._shape)
            x = x + self._from_z_out(self._from_z(z)).reshape(-1, *self._shape)
            x = jax.nn.silu(self._norm(x))
        for convolution, norm in self._stages:
            x = jax.nn.silu(norm(convolution(x)))
        x = self._last(x).astype(jnp.result_type(float))
        return x + 0.5 if is_v1 else jax.nn.sigmoid(x)


class State(NamedTuple):
    """A model state.

    Attributes:
      h: deterministic, `[*s, D]`.
      z: stochastic, S one-hot vectors, `[*s, S, C]`.
    """

    h: Float[Array, "*s D"]
    z: Float[Array, "*s S C"]

    @property
    def flat_z(self) -> Float[Array, "*s SC"]:
        """z as one vector."""
        return self.z.reshape(*self.z.shape[:-2], -1)

    @property
    def features(self) -> Float[Array, "*s F"]:
        """h and z as one vector, the input of the heads."""
        return jnp.concatenate([self.h, self.flat_z], axis=-1)


def initial_state(config: DreamerConfig, *shape: int) -> State:
    """Return the model state at the start of an episode: zeros."""
    return State(
        h=jnp.zeros((*shape, config.deterministic)),
        z=jnp.zeros((*shape, config.latents, config.classes)),
    )


class NatureSequenceModel:
    """A GRU with block-diagonal weights; `RSSM` creates its layers.

    Each block reads its own part of h, and all of a layer of h, z and the action.
    """

    def __init__(self, config: DreamerConfig):
        units, norm = config.units, config.norm
        self._blocks = config.blocks
        self._inputs = [Dense(units, norm, name=f"input_{x}") for x in ("h", "z", "a")]
        self._block = BlockLinear(config.deterministic, config.blocks, name="block")
        self._block_norm = Norm(norm, name="block_norm")
        self._gates = BlockLinear(3 * config.deterministic, config.blocks, name="gates")

    def __call__(self, state: State, action: Float[Array, "*s A"]) -> Float[Array, "*s D"]:
        h = state.h
        parts = zip(self._inputs, (h, state.flat_z, action), strict=True)
        x = jnp.concatenate([layer(part) for layer, part in parts], axis=-1)
        x = jax.nn.silu(self._block_norm(self._block(h, shared=x)))
        gates = self._gates(x).reshape(*h.shape[:-1], self._blocks, 3, -1)
        return _gated(h, *(gates[..., i, :].reshape(h.shape) for i in range(3)))


class V1SequenceModel:
    """A dense GRU whose gates are normalised; `RSSM` creates its layers."""

    def __init__(self, config: DreamerConfig):
        self._input = Dense(config.units, config.norm, name="input_za")
        self._gates = Linear(3 * config.deterministic, bias=False, name="gates")
        self._gates_norm = Norm(config.norm, name="gates_norm")

    def __call__(self, state: State, action: Float[Array, "*s A"]) -> Float[Array, "*s D"]:
        x = self._input(jnp.concatenate([state.flat_z, action], axis=-1))
        x = jnp.concatenate([state.h, x.astype(state.h.dtype)], axis=-1)
        gates = self._gates_norm(self._gates(x))
        return _gated(state.h, *jnp.split(gates, 3, axis=-1))


class RSSM(hk.Module):
    """The model's layers; the caller samples latents and scans over time."""

    def __init__(self, config: DreamerConfig, name: str = "rssm"):
        super().__init__(name)
        self._shape = (config.latents, config.classes)
        size = config.latents * config.classes
        kind = V1SequenceModel if config.is_v1 else NatureSequenceModel
        self._sequence_model = kind(config)
        units, norm, layers = config.units, config.norm, 1 if config.is_v1 else 2
        self._prior = [Dense(units, norm, name=f"prior{i}") for i in range(layers)]
        self._prior_logits = Linear(size, name="prior_logits")
        self._posterior = Dense(units, norm, name="posterior")
        self._posterior_logits = Linear(size, name="posterior_logits")

    def __call__(self, state: State, action: Array, tokens: Array) -> tuple[Array, Array]:
        """Return the logits of prior and posterior after a step."""
        h = self.advance(state, action)
        return self.prior(h), self.posterior(h, tokens)

    def advance(self, state: State, action: Float[Array, "*s A"]) -> Float[Array, "*s D"]:
        """Return h_t, from the previous state and the embedded action taken in it."""
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        return self._sequence_model(state, action)

    def prior(self, h: Float[Array, "*s D"]) -> Float[Array, "*s S C"]:
        """Return the logits of z_t, from h_t."""
        for layer in self._prior:
            h = layer(h)
        return self._shaped(self._prior_logits(h))

    def posterior(
        self, h: Float[Array, "*s D"], tokens: Float[Array, "*s E"]
    ) -> Float[Array, "*s S C"]:
        """Return the logits of z_t, from h_t and the encoded observation."""
        x = self._posterior(jnp.concatenate([h, tokens], axis=-1))
        return self._shaped(self._posterior_logits(x))

    def _shaped(self, logits: Array) -> Array:
        return logits.reshape(*logits.shape[:-1], *self._shape)


def _gated(h, reset, candidate, update):
    """Return a GRU's next state; its reset gate scales the candidate, its update bias is -1."""
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1.0)
    # The state's dtype may be wider than the layers'.
    return (update * candidate).astype(h.dtype) + (1.0 - update).astype(h.dtype) * h

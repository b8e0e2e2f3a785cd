"""Encoder and decoder: convolutions for images, an MLP for everything else.

The convolutions of each version are a class; `Encoder` and `Decoder` create its layers.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import Image, Observation, mixed_log_probabilities
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

Layer = Callable[[Array], Array]
_SMALLEST = 4  # Side of the smallest feature maps, at least.


@dataclasses.dataclass(frozen=True)
class ActionPart:
    """One part of an action.

    Attributes:
      size: number of choices of a discrete action, or dimension of a continuous one.
      is_discrete: whether the action is discrete.
    """

    size: int
    is_discrete: bool


class NatureConvolutions:
    """The Nature version's, as in its authors' code of 2025: 5x5, with pooling and enlarging.

    They end at 4x4 or 6x6 pixels; the decoder begins with blocks of h and a layer of z.
    """

    MULTIPLES = (2, 3, 4, 4)  # Channels by stage, in units of `depth`.

    def __init__(self, config: DreamerConfig, side: int):
        stages = min(_num_halvings(side), len(self.MULTIPLES))
        self._config = config
        self.channels = [config.depth * multiple for multiple in self.MULTIPLES[:stages]]

    def make_encoder_stage(self, channels: int, name: str) -> Layer:
        """Return a convolution that halves the sides."""
        return PooledConvolution(channels, name=name)

    def make_decoder_stage(self, channels: int, name: str, *, is_last: bool) -> Layer:
        """Return a convolution that doubles the sides."""
        del is_last
        return EnlargingConvolution(channels, name=name)

    def make_start(self, shape: tuple[int, int, int]) -> None:
        """Create the layers from model states to the smallest feature maps, of a shape."""
        config, size = self._config, math.prod(shape)
        # A block has whole channels, so the blocks are at most as many as the channels.
        self._shape, self._blocks = shape, math.gcd(config.blocks, shape[-1])
        self._from_h = BlockLinear(size, self._blocks, name="from_h")
        self._from_z = Dense(2 * config.units, config.norm, name="from_z")
        self._from_z_out = Linear(size, name="from_z_output")
        self._norm = Norm(config.norm, name="start_norm")

    def start(self, h: Float[Array, "N D"], z: Float[Array, "N SC"]) -> Float[Array, "N H W C"]:
        """Return the smallest feature maps."""
        height, width, channels = self._shape
        x = self._from_h(h).reshape(-1, self._blocks, height, width, channels // self._blocks)
        x = jnp.moveaxis(x, 1, 3).reshape(-1, *self._shape)
        x = x + self._from_z_out(self._from_z(z)).reshape(-1, *self._shape)
        return jax.nn.silu(self._norm(x))

    def end(self, x: Float[Array, "N H W C"]) -> Float[Array, "N H W C"]:
        """Return images in 0 to 1."""
        return jax.nn.sigmoid(x)


class V1Convolutions:
    """The arXiv version's: 4x4 of stride 2, to 4x4 pixels."""

    def __init__(self, config: DreamerConfig, side: int):
        self.channels = [config.depth * 2**i for i in range(_num_halvings(side))]

    def make_encoder_stage(self, channels: int, name: str) -> Layer:
        """Return a convolution that halves the sides."""
        return StridedConvolution(channels, name=name)

    def make_decoder_stage(self, channels: int, name: str, *, is_last: bool) -> Layer:
        """Return a convolution that doubles the sides; the last one has no norm, but a bias."""
        return StridedConvolution(channels, transposed=True, bias=is_last, name=name)

    def make_start(self, shape: tuple[int, int, int]) -> None:
        """Create the layer from model states to the smallest feature maps, of a shape."""
        self._shape = shape
        self._from_state = Linear(math.prod(shape), name="from_state")

    def start(self, h: Float[Array, "N D"], z: Float[Array, "N SC"]) -> Float[Array, "N H W C"]:
        """Return the smallest feature maps."""
        return self._from_state(jnp.concatenate([h, z], axis=-1)).reshape(-1, *self._shape)

    def end(self, x: Float[Array, "N H W C"]) -> Float[Array, "N H W C"]:
        """Return images in 0 to 1, but for errors."""
        return x + 0.5


def _convolutions(
    config: DreamerConfig, images: list[Image]
) -> NatureConvolutions | V1Convolutions | None:
    """Return the convolutions of a version; None without images."""
    if not images:
        return None
    kind = V1Convolutions if config.is_v1 else NatureConvolutions
    return kind(config, min(images[0].shape[:2]))


def _num_halvings(side: int) -> int:
    return int(math.log2(side // _SMALLEST))


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
        self._stages = []
        if convolutions := _convolutions(config, list(self._images.values())):
            self._stages = [
                (convolutions.make_encoder_stage(channels, f"convolution{i}"), _norm(config, i))
                for i, channels in enumerate(convolutions.channels)
            ]

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
            shape = x.shape
            x = _padded(x.reshape(-1, *shape[-3:]), 2 ** len(self._stages))
            for convolution, norm in self._stages:
                x = jax.nn.silu(norm(convolution(x)))
            parts.append(x.reshape(*shape[:-3], -1))
        return jnp.concatenate(parts, axis=-1)


class Decoder(hk.Module):
    """A decoder from model states to observations."""

    def __init__(
        self, config: DreamerConfig, observations: Mapping[str, Observation], name: str = "decoder"
    ):
        super().__init__(name)
        self._images, self._vectors = _split(observations)
        if self._vectors:
            sizes = {key: math.prod(x.predicted_shape) for key, x in self._vectors.items()}
            self._mlp = MLP((config.units,) * config.layers, sizes, config.norm, name="mlp")
        self._convolutions = _convolutions(config, list(self._images.values()))
        if self._convolutions:
            self._make_image_layers(config, self._convolutions)

    def _make_image_layers(
        self, config: DreamerConfig, convolutions: NatureConvolutions | V1Convolutions
    ) -> None:
        channels = convolutions.channels
        self._size = next(iter(self._images.values())).shape[:2]
        height, width = (-(-side // 2 ** len(channels)) for side in self._size)
        convolutions.make_start((height, width, channels[-1]))
        self._stages = [
            (convolutions.make_decoder_stage(x, f"convolution{i}", is_last=False), _norm(config, i))
            for i, x in reversed(list(enumerate(channels[:-1])))
        ]
        out_channels = sum(x.shape[-1] for x in self._images.values())
        self._last = convolutions.make_decoder_stage(out_channels, "image_output", is_last=True)

    def __call__(
        self, h: Float[Array, "*s D"], z: Float[Array, "*s SC"]
    ) -> dict[str, Float[Array, "..."]]:
        """Return predictions by name (`agents.dreamer.distributions`)."""
        found = {}
        if self._vectors:
            predicted = self._mlp(jnp.concatenate([z, h], axis=-1))
            for name, x in self._vectors.items():
                found[name] = predicted[name].reshape(*h.shape[:-1], *x.predicted_shape)
        if self._convolutions:
            image = self._image(self._convolutions, *(x.reshape(-1, x.shape[-1]) for x in (h, z)))
            height, width = self._size
            image = image[:, :height, :width]
            image = image.reshape(*h.shape[:-1], *image.shape[1:])
            ends = np.cumsum([x.shape[-1] for x in self._images.values()])[:-1]
            found |= zip(self._images, jnp.split(image, ends, axis=-1), strict=True)
        return found

    def _image(
        self,
        convolutions: NatureConvolutions | V1Convolutions,
        h: Float[Array, "N D"],
        z: Float[Array, "N SC"],
    ) -> Float[Array, "N H W C"]:
        x = convolutions.start(h, z)
        for convolution, norm in self._stages:
            x = jax.nn.silu(norm(convolution(x)))
        return convolutions.end(self._last(x).astype(jnp.result_type(float)))


def _norm(config: DreamerConfig, stage: int) -> Norm:
    return Norm(config.norm, name=f"norm{stage}")


def _padded(x: Float[Array, "N H W C"], multiple: int) -> Float[Array, "N h w C"]:
    """Return images, padded with black at bottom and right to multiples of a number."""
    _, height, width, _ = x.shape
    below, right = -height % multiple, -width % multiple
    return jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0)), constant_values=-0.5)


ActionParts = Mapping[str, ActionPart]


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


def embed_action(parts: ActionParts, action: Mapping[str, Array]) -> Float[Array, "*s A"]:
    """Return all parts of an action as one vector, by name; a negative choice embeds as zeros."""
    vectors = [
        jax.nn.one_hot(action[name], part.size) if part.is_discrete else action[name]
        for name, part in sorted(parts.items())
    ]
    return jnp.concatenate(vectors, axis=-1)


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


def log_probabilities(
    config: DreamerConfig, logits: Float[Array, "*s S C"]
) -> Float[Array, "*s S C"]:
    """Return the latents' log-probabilities, in JAX's default float dtype."""
    return mixed_log_probabilities(logits.astype(jnp.result_type(float)), config.unimix)


def _gated(h, reset, candidate, update):
    """Return a GRU's next state; its reset gate scales the candidate, its update bias is -1."""
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1.0)
    # The state's dtype may be wider than the layers'.
    return (update * candidate).astype(h.dtype) + (1.0 - update).astype(h.dtype) * h

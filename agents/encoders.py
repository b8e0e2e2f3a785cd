"""Sizes of networks, and encoders: convolutions for images, embeddings for symbols, an MLP.

The observation's spec determines the parts:

- an integer of a small range, `DiscreteArray`: one-hot;
- an image, of rank 3, if the encoder has convolutions: the deep residual net of IMPALA
  (Espeholt et al. 2018, figure 3), with any number and width of its sections;
- text, a `TextSpec`: IMPALA's language channel, an LSTM over embedded words;
- `glyphs`, NetHack's map, with `blstats` and `message` beside it: an embedding of each symbol,
  convolutions over the map and over a crop around the hero (Küttler et al. 2020, section 4.1);
- anything else is flattened; integers, whose range is wide, after a signed logarithm.

The concatenated parts go through the MLP.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int

from agents.convolutions import Conv2D, to_patches
from disco.values import signed_log
from disco_common.ranges import AtLeast0, Count, require_ranges
from environments import ObservationSpec
from environments.base import NUM_TOKENS, TextSpec
from environments.suites.nethack import NUM_GLYPHS

Observation = Any  # An array, or a dictionary of them: leaves [*s, S, ...], S stacked frames.

_TOKEN_SIZE, _TEXT_SIZE = 20, 64
_GLYPH_SIZE, _LETTER_SIZE = 32, 16
_LEAST_IMAGE = 36  # Side in pixels of the smallest picture; smaller observations are boards.
_NETHACK_KEYS = frozenset({"glyphs", "blstats", "message", "inventory_glyphs", "inventory_letters"})
_CROP = 9  # Side of the crop in cells; the hero is in its centre.

_DTYPES = ("float32", "bfloat16")
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def has_images(spec: ObservationSpec) -> bool:
    """Return whether pictures are among the observations: uint8, of at least 36 x 36 pixels."""
    leaves = spec.values() if isinstance(spec, Mapping) else [spec]
    return any(
        len(x.shape) == 3 and x.dtype == np.uint8 and sorted(x.shape)[1] >= _LEAST_IMAGE
        for x in leaves
    )


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Sizes of an agent's network.

    Attributes:
      torso: hidden units of the MLP that embeds an observation, after the convolutions if there
        are any.
      channels: of each section of a residual net over images; empty to flatten images instead.
      blocks: residual blocks of each section.
      patch: side of the square patches of images that are embedded before the first section; 1
        for none.
      memory: units of an LSTM over time; 0 for none.
      model: units of the action-conditional LSTM. 0 for none: outputs per action are then computed
        from the embedding alone, for all actions at once, in about half the time.
      head: hidden units of the MLP of each output per action. Outputs of the state alone are linear
        in the embedding.
      dtype: `"float32"` or `"bfloat16"`, in which the encoder and the action-conditional model
        compute. Parameters, memory, heads and all inputs of the rule are float32.
      activation: of the torso's layers: `"relu"`, `"silu"` or `"tanh"`.
    """

    torso: tuple[Count, ...] = (512, 512)
    channels: tuple[Count, ...] = ()
    blocks: AtLeast0[int] = 2
    patch: Count = 1
    memory: AtLeast0[int] = 0
    model: AtLeast0[int] = 128
    head: tuple[Count, ...] = (128,)
    dtype: str = "float32"
    activation: str = "relu"

    def __post_init__(self):
        require_ranges(self, "network.")
        if self.patch > 1 and not self.channels:
            raise ValueError(
                f"network.patch is {self.patch} and network.channels (); expected 1 without"
                " convolutions."
            )
        for name, known in (("dtype", _DTYPES), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"network.{name} is {getattr(self, name)!r}; expected one of"
                    f" {', '.join(map(repr, known))}."
                )


class Encoder(hk.Module):
    """An encoder of observations of one spec; see the module's docstring."""

    def __init__(self, config: NetworkConfig, spec: ObservationSpec, name: str = "torso"):
        super().__init__(name=name)
        self._config = config
        self._spec = spec
        leaves = spec if isinstance(spec, Mapping) else {"": spec}
        self._texts = [name for name, leaf in leaves.items() if isinstance(leaf, TextSpec)]

    def __call__(self, observation: Observation) -> Float[Array, "*s E"]:
        """Return a vector for each observation, whose leaves are `[*s, S, ...]`."""
        wide = jnp.result_type(float)
        narrow = jnp.dtype(self._config.dtype) if self._config.dtype != "float32" else wide
        with computing_in(narrow):
            parts = self._parts(observation, narrow)
            flat = jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
            activation = ACTIVATIONS[self._config.activation]
            sizes = self._config.torso
            mlp = hk.nets.MLP(sizes, activation=activation, activate_final=True, name="mlp")
            return mlp(flat).astype(wide)

    def _parts(self, observation: Observation, dtype) -> list[Float[Array, "*s _"]]:
        if not isinstance(self._spec, Mapping):
            return [self._leaf("", self._spec, observation, dtype)]
        spec = dict(self._spec)
        parts = []
        # Others, such as MiniHack's, have some of these keys.
        if spec.keys() >= _NETHACK_KEYS:
            parts.append(nethack()(observation, dtype, self._config))
            for name in _NETHACK_KEYS - {"blstats"}:
                spec.pop(name)
        parts += [self._leaf(name, leaf, observation[name], dtype) for name, leaf in spec.items()]
        return parts

    def _leaf(self, name: str, spec: specs.Array, x: Array, dtype) -> Float[Array, "*s _"]:
        if isinstance(spec, TextSpec):
            number = self._texts.index(name)
            name = f"language_{number}" if number else "language"
            return language(name)(x[..., -1, :], dtype)
        if len(spec.shape) == 3 and self._config.channels:
            image = _channels_last(x).astype(dtype)
            image = image / 255 if spec.dtype == np.uint8 else image
            return residual_net()(image, self._config)
        return numbers(spec, x, dtype)


def numbers(spec: specs.Array, x: Array, dtype) -> Float[Array, "*s _"]:
    """Return S frames `[*s, S, ...]` of a spec as the numbers that an MLP reads of them."""
    if isinstance(spec, specs.DiscreteArray):
        return _flatten(jax.nn.one_hot(x, spec.num_values, dtype=dtype), 2)
    x = _flatten(x, len(spec.shape) + 1)
    if spec.dtype == np.uint8:
        return x.astype(dtype) / 255
    if np.issubdtype(spec.dtype, np.integer):
        return signed_log(x.astype(jnp.result_type(float))).astype(dtype)
    return x.astype(dtype)


@hk.to_module
def residual_net(image: Float[Array, "*s H W C"], config: NetworkConfig) -> Float[Array, "*s _"]:
    """Return features of images by sections of convolution, max-pooling by 2 and residual blocks.

    If `patch` is larger than 1, square patches are first embedded linearly. The sections then
    process a smaller image, with 16 times fewer operations for patches of 4.
    """
    lead = image.shape[:-3]
    x = image.reshape(-1, *image.shape[-3:])
    if config.patch > 1:
        x = hk.Linear(config.channels[0], name="patch")(_patches(x, config.patch))
    for section, channels in enumerate(config.channels):

        def convolve(x, layer, section=section, channels=channels):
            return Conv2D(channels, 3, name=f"section_{section}_{layer}")(x)

        x = convolve(x, "in")
        x = hk.max_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block in range(config.blocks):
            y = convolve(jax.nn.relu(x), f"block_{block}_a")
            x += convolve(jax.nn.relu(y), f"block_{block}_b")
    return jax.nn.relu(x).reshape(*lead, -1)


@hk.to_module
def language(tokens: Int[Array, "*s N"], dtype) -> Float[Array, "*s _"]:
    """Return the last output of an LSTM over each text's embedded tokens, but for padding, 0."""
    lead, length = tokens.shape[:-1], tokens.shape[-1]
    tokens = tokens.reshape(-1, length)
    words = hk.Embed(1 + NUM_TOKENS, _TOKEN_SIZE)(tokens).astype(dtype)
    cell = hk.LSTM(_TEXT_SIZE)
    state = jax.tree.map(lambda x: x.astype(dtype), cell.initial_state(tokens.shape[0]))

    def read(state, word_and_token):
        word, token = word_and_token
        _, after = cell(word, state)
        is_word = (token > 0)[:, None]
        return jax.tree.map(lambda a, b: jnp.where(is_word, a, b), after, state), None

    state, _ = hk.scan(read, state, (jnp.swapaxes(words, 0, 1), tokens.T))
    return state.hidden.reshape(*lead, -1)


@hk.to_module
def nethack(observation: Mapping[str, Array], dtype, config: NetworkConfig) -> Float[Array, "*s _"]:
    """Return features of the map, a crop of it around the hero, the message and the inventory.

    They are of S frames each; of `blstats` only the hero's position is read. Without convolutions
    in the config it flattens the crop alone.
    """
    glyphs, blstats = observation["glyphs"], observation["blstats"]
    embed_glyph = hk.Embed(NUM_GLYPHS, _GLYPH_SIZE, name="glyph")
    embed_letter = hk.Embed(256, _LETTER_SIZE, name="letter")

    def embedded(embed, symbols):
        return embed(symbols.astype(jnp.int32)).astype(dtype)

    crop = _channels_last(embedded(embed_glyph, _crop(glyphs, blstats)))
    if config.channels:
        whole = _channels_last(embedded(embed_glyph, glyphs))
        near = crop.reshape(-1, *crop.shape[-3:])
        near = Conv2D(config.channels[-1], 3, name="crop_a")(near)
        near = Conv2D(config.channels[-1], 3, name="crop_b")(jax.nn.relu(near))
        near = jax.nn.relu(near).reshape(*crop.shape[:-3], -1)
        maps = [residual_net("map")(whole, config), near]
    else:
        maps = [_flatten(crop, 3)]
    # Message and inventory persist, so the newest frame is enough.
    message = embedded(embed_letter, observation["message"][..., -1, :])
    items = embedded(embed_glyph, observation["inventory_glyphs"][..., -1, :])
    letters = embedded(embed_letter, observation["inventory_letters"][..., -1, :])
    inventory = hk.Linear(_GLYPH_SIZE, name="item")(jnp.concatenate([items, letters], -1))
    message = hk.Linear(128, name="message")(_flatten(message, 2))
    return jnp.concatenate([*maps, message, jnp.sum(jax.nn.relu(inventory), axis=-2)], axis=-1)


def _crop(
    glyphs: Int[Array, "*s height width"], blstats: Int[Array, "*s stats"]
) -> Int[Array, "*s crop crop"]:
    """Return the cells around the hero, whose column and row are the first two of `blstats`."""
    height, width = glyphs.shape[-2:]
    reach = jnp.arange(_CROP, dtype=blstats.dtype) - _CROP // 2
    reach = jax.lax.broadcast_to_rank(reach, blstats.ndim)
    rows = blstats[..., 1, None] + reach
    columns = blstats[..., 0, None] + reach
    is_inside = ((rows >= 0) & (rows < height))[..., None] & ((columns >= 0) & (columns < width))[
        ..., None, :
    ]
    cells = (
        jnp.clip(rows, 0, height - 1)[..., None] * width
        + (jnp.clip(columns, 0, width - 1)[..., None, :])
    )
    lead = glyphs.shape[:-2]
    flat = glyphs.reshape(*lead, -1).astype(jnp.int32)
    taken = jnp.take_along_axis(flat, cells.reshape(*lead, -1).astype(jnp.int32), axis=-1)
    return jnp.where(is_inside, taken.reshape(*lead, _CROP, _CROP), NUM_GLYPHS - 1)


@contextlib.contextmanager
def computing_in(dtype, wide_names=()):
    """Store Haiku's parameters in float32 (or wider), but compute with them in `dtype`.

    Args:
      dtype: of the parameters as modules get them.
      wide_names: of parameters that modules get as they are stored.
    """
    wide = jnp.result_type(float)

    def create(creator, shape, _, init, context):
        del context
        return creator(shape, wide, init)

    def get(getter, value, context):
        name = context.full_name.rpartition("/")[2]
        return getter(value) if name in wide_names else getter(value).astype(dtype)

    with hk.custom_creator(create), hk.custom_getter(get):
        yield


def _channels_last(x: Array) -> Array:
    """Return an array `[*s, S, H, W, C]` as `[*s, H, W, S*C]`."""
    x = jnp.moveaxis(x, -4, -2)
    return x.reshape(*x.shape[:-2], -1)


def _patches(image: Float[Array, "n H W C"], side: int) -> Float[Array, "n h w _"]:
    """Return the flattened square patches of an image, zero-padded to a multiple of `side`."""
    _, height, width, _ = image.shape
    image = jnp.pad(image, ((0, 0), (0, -height % side), (0, -width % side), (0, 0)))
    return to_patches(image, side)


def _flatten(x: Array, axes: int) -> Array:
    """Flatten the last axes into one."""
    return x.reshape(*x.shape[: x.ndim - axes], -1)

"""The world model: a Transformer over frame and action tokens (IRIS, section 2.2, appendix A.2)."""

import functools
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from agents.iris.config import IrisConfig

_INIT = hk.initializers.RandomNormal(0.02)
REWARD_CLASSES = 3  # Signs of the reward: -1, 0 and 1.
LayerCache = tuple[Float[Array, "B heads P F"], Float[Array, "B heads P F"]]


class Cache(NamedTuple):
    """What the Transformer keeps of the tokens so far.

    Attributes:
      layers: keys and values of each layer, at P positions; those from `length` on are arbitrary.
      length: number of tokens so far.
    """

    layers: tuple[LayerCache, ...]
    length: Int[Array, ""]


def empty_cache(config: IrisConfig, num_tokens: int, batch_size: int) -> Cache:
    """Return a cache for `num_tokens` tokens of a step, the action's included."""
    head_size, num_positions = config.width // config.heads, config.memory_steps * num_tokens
    shape = (batch_size, config.heads, num_positions, head_size)
    return Cache(((jnp.zeros(shape), jnp.zeros(shape)),) * config.layers, jnp.zeros((), jnp.int32))


@hk.to_module
def transformer(
    x: Float[Array, "B T D"],
    config: IrisConfig,
    num_positions: int,
    cache: Cache | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "B T D"], Cache | None]:
    """Process T tokens by blocks of causal attention and an MLP, as GPT-2's.

    Each is after a norm and has a shortcut.

    Args:
      x: embeddings of the tokens.
      config: has the sizes.
      num_positions: most tokens of a sequence.
      cache: of earlier tokens, with room for T more; None if there are none and no later call needs
        a cache.
      key: random key of the dropout; None for none.

    Returns:
      The tokens' hidden vectors, and the cache with them.
    """
    length, shape = x.shape[1], (num_positions, config.width)
    positions = hk.get_parameter("positions", shape, jnp.float32, _INIT)
    begin = 0 if cache is None else cache.length
    x = x + jax.lax.dynamic_slice_in_dim(positions, begin, length)
    keys = iter([None] * (2 * config.layers + 1))
    if key is not None and config.dropout:
        keys = iter(jax.random.split(key, 2 * config.layers + 1))
    x = _dropout(config, x, next(keys))
    caches = []
    for i in range(config.layers):
        kept = None if cache is None else cache.layers[i]
        attend = causal_attention(f"block{i}_attention")
        y, kept = attend(_layer_norm(f"block{i}_norm1")(x), config.heads, kept, begin)
        caches.append(kept)
        x = x + _dropout(config, y, next(keys))
        y = _linear(4 * config.width, f"block{i}_up")(_layer_norm(f"block{i}_norm2")(x))
        y = _linear(config.width, f"block{i}_down")(jax.nn.gelu(y, approximate=False))
        x = x + _dropout(config, y, next(keys))
    x = _layer_norm("norm")(x)
    return x, None if cache is None else Cache(tuple(caches), cache.length + length)


@hk.to_module
def causal_attention(
    x: Float[Array, "B T D"],
    heads: int,
    cache: LayerCache | None,
    begin: Int[Array, ""] | int,
) -> tuple[Float[Array, "B T D"], LayerCache | None]:
    """Return vectors after attention to themselves and to earlier ones, and the cache with them.

    `cache` has keys and values of the `begin` earlier tokens; None if there are none.
    """
    width = x.shape[-1]
    shape = (*x.shape[:2], heads, width // heads)
    query, keys, values = (
        _linear(width, name)(x).reshape(shape) for name in ("query", "key", "value")
    )
    if cache is None:
        y = jax.nn.dot_product_attention(query, keys, values, is_causal=True)
    else:
        # Positions are the last axis but one, so that products with the cache do not copy it.
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new.swapaxes(1, 2), begin, axis=2)
            for old, new in zip(cache, (keys, values), strict=True)
        )
        cache = keys, values
        place = begin + jnp.arange(x.shape[1])
        visible = jnp.arange(keys.shape[2]) <= place[:, None]
        past = (x.swapaxes(1, 2) for x in cache)
        y = jax.nn.dot_product_attention(query, *past, mask=visible[None, None])
    return _linear(width, "output")(y.reshape(x.shape)), cache


@hk.to_module
def head(x: Float[Array, "*s D"], size: int) -> Float[Array, "*s O"]:
    """Return logits, by an MLP of one hidden layer."""
    return _linear(size, "output")(jax.nn.relu(_linear(x.shape[-1], "hidden")(x)))


def _linear(size: int, name: str) -> hk.Linear:
    return hk.Linear(size, w_init=_INIT, b_init=jnp.zeros, name=name)


def _layer_norm(name: str) -> hk.LayerNorm:
    return hk.LayerNorm(-1, create_scale=True, create_offset=True, eps=1e-5, name=name)


def _dropout(
    config: IrisConfig, x: Float[Array, "*s D"], key: PRNGKeyArray | None
) -> Float[Array, "*s D"]:
    if key is None:
        return x
    keep = 1.0 - config.dropout
    return jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0.0)


class Predictions(NamedTuple):
    """Logits of what follows each of L steps.

    Attributes:
      next_token: of the token after each token but a frame's last: of tokens 1 to K - 1 of the
        step's own frame, then of token 0 of the next.
      reward: of the reward's sign.
      end: of the episode's end.
    """

    next_token: Float[Array, "B L K N"]
    reward: Float[Array, "B L 3"]
    end: Float[Array, "B L 2"]


class WorldModel:
    """The layers on embedded tokens, which Haiku creates where this is made."""

    def __init__(self, config: IrisConfig, num_tokens: int, num_actions: int):
        """Make layers for frames of `num_tokens` tokens, each followed by one of the actions."""
        self._num_tokens, self._width = num_tokens, config.width
        self._transformer = functools.partial(
            transformer(), config=config, num_positions=config.memory_steps * (num_tokens + 1)
        )
        self._frame_tokens = hk.Embed(
            config.vocabulary, config.width, w_init=_INIT, name="frame_tokens"
        )
        self._action_tokens = hk.Embed(
            num_actions, config.width, w_init=_INIT, name="action_tokens"
        )
        self.next_token = functools.partial(head("next_token"), size=config.vocabulary)
        self.reward = functools.partial(head("reward"), size=REWARD_CLASSES)
        self.end = functools.partial(head("end"), size=2)

    def predict(
        self,
        tokens: Int[Array, "B L K"],
        actions: Int[Array, "B L"],
        key: PRNGKeyArray | None = None,
    ) -> Predictions:
        """Return what the layers predict along sequences; `key` is that of the dropout."""
        embedded = jnp.concatenate(
            [self._frame_tokens(tokens), self._action_tokens(actions)[:, :, None]], axis=2
        )
        flat = embedded.reshape(len(actions), -1, self._width)
        hidden = self._transformer(flat, key=key)[0].reshape(embedded.shape)
        # An action follows a frame's last token, and is not predicted.
        before_tokens = jnp.concatenate(
            [hidden[:, :, : self._num_tokens - 1], hidden[:, :, -1:]], axis=2
        )
        return Predictions(
            self.next_token(before_tokens),
            self.reward(hidden[:, :, -1]),
            self.end(hidden[:, :, -1]),
        )

    def feed(
        self, kind: str, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T D"], Cache | None]:
        """Return the hidden vectors of frames' `"tokens"` or of `"actions"`, and their cache."""
        embed = {"tokens": self._frame_tokens, "actions": self._action_tokens}[kind]
        return self._transformer(embed(tokens), cache=cache)

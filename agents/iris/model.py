"""All of an agent's networks, as pure functions of their parameters; imagination by them.

In imagination the policy acts in the world model (IRIS, section 2.3).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from agents.iris import actor_critic, tokenizer
from agents.iris.actor_critic import Output
from agents.iris.config import IrisConfig
from agents.iris.tokenizer import from_tiles, to_tiles
from agents.iris.world_model import Cache, Predictions, WorldModel, empty_cache

Params = dict[str, Any]
"""Parameters by network: `ENCODER`, `DECODER`, `CODEBOOK`, `WORLD_MODEL`, `ACTOR_CRITIC`."""

ENCODER, DECODER, CODEBOOK = "encoder", "decoder", "codebook"
WORLD_MODEL, ACTOR_CRITIC = "world_model", "actor_critic"
TOKENIZER = (ENCODER, DECODER, CODEBOOK)


@dataclasses.dataclass(frozen=True)
class Model:
    """An agent's networks. Equal models are the same functions, so that these are compiled once.

    Attributes:
      config: of the agent.
      image_size: S, of a square observation; a multiple of `config.downsampling`.
      image_channels: C, of the observation.
      num_actions: A, of the environment.
    """

    config: IrisConfig
    image_size: int
    image_channels: int
    num_actions: int

    @property
    def tokens_per_frame(self) -> int:
        """K."""
        return self._side**2

    @property
    def _side(self) -> int:
        """Tokens of a side of a frame."""
        return self.image_size // self.config.downsampling

    @property
    def _tiles(self) -> int:
        """Squares that the autoencoder takes for images, of a side of a frame."""
        return self.image_size // self.config.tile if self.config.tile else 1

    def init(self, key: PRNGKeyArray) -> Params:
        config, keys = self.config, jax.random.split(key, 5)
        side, tiles = self._side, self._tiles
        bound, size = 1.0 / config.vocabulary, (config.vocabulary, config.code_size)
        tokens = jnp.zeros((1, config.memory_steps, self.tokens_per_frame), jnp.int32)
        frame = jnp.zeros((1, self.image_size, self.image_size, self.image_channels))
        codes = jnp.zeros((1, side, side, config.code_size))

        def init(f: Callable[..., Any], key: PRNGKeyArray, *inputs: Any) -> Any:
            return hk.transform(f).init(key, *inputs)

        def act(frame: Array, state: hk.LSTMState) -> tuple[Output, hk.LSTMState]:
            features = actor_critic.vision(config, frame)
            return actor_critic.react(config, self.num_actions, features, state)

        return {
            ENCODER: init(self._encode, keys[0], to_tiles(frame, self.image_size // tiles)),
            DECODER: init(self._decode, keys[1], to_tiles(codes, side // tiles)),
            CODEBOOK: jax.random.uniform(keys[2], size, minval=-bound, maxval=bound),
            WORLD_MODEL: init(self._world("predict"), keys[3], tokens, tokens[:, :, 0]),
            ACTOR_CRITIC: init(act, keys[4], frame, actor_critic.initial_state(config, 1)),
        }

    def encode(self, params: Params, frames: Float[Array, "B S S C"]) -> Float[Array, "B K E"]:
        """Return the feature vectors of frames with entries in [0, 1]."""
        tiles = to_tiles(frames, self.image_size // self._tiles)
        x = from_tiles(_apply(self._encode, params[ENCODER], tiles), self._tiles)
        return x.reshape(len(x), -1, self.config.code_size)

    def decode(self, params: Params, codes: Float[Array, "B K E"]) -> Float[Array, "B S S C"]:
        """Return frames of codes' embeddings; entries are in [-1, 1], but for errors."""
        codes = codes.reshape(len(codes), self._side, self._side, -1)
        codes = to_tiles(codes, self._side // self._tiles)
        return from_tiles(_apply(self._decode, params[DECODER], codes), self._tiles)

    def predict(
        self,
        params: Params,
        tokens: Int[Array, "B L K"],
        actions: Int[Array, "B L"],
        key: PRNGKeyArray | None,
    ) -> Predictions:
        """Predict what follows each step; `key` is that of the dropout, or None for none."""
        return _apply(self._world("predict"), params[WORLD_MODEL], tokens, actions, key)

    def feed(
        self, params: Params, kind: str, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """Return the hidden vectors of frames' `"tokens"` or of `"actions"`, and their cache."""
        return _apply(self._world("feed"), params[WORLD_MODEL], kind, tokens, cache)

    def head(self, params: Params, name: str, hidden: Float[Array, "*s D"]) -> Float[Array, "*s _"]:
        """Return logits of the `"next_token"`, or of an action's `"reward"`'s sign or `"end"`."""
        return _apply(self._world(name), params[WORLD_MODEL], hidden)

    def vision(self, params: Params, frames: Float[Array, "N S S C"]) -> Float[Array, "N F"]:
        """Return the actor-critic's features of frames with entries in [0, 1]."""
        f = functools.partial(actor_critic.vision, self.config)
        return _apply(f, params[ACTOR_CRITIC], frames)

    def react(
        self, params: Params, features: Float[Array, "B F"], state: hk.LSTMState
    ) -> tuple[Output, hk.LSTMState]:
        """Return the actor-critic's output, and the LSTM's state after it."""
        f = functools.partial(actor_critic.react, self.config, self.num_actions)
        return _apply(f, params[ACTOR_CRITIC], features, state)

    def tokens(self, params: Params, frames: Float[Array, "B S S C"]) -> Int[Array, "B K"]:
        """Return the tokens of frames with entries in [0, 1]."""
        return tokenizer.quantize(self.encode(params, frames), params[CODEBOOK]).tokens

    def frames(self, params: Params, tokens: Int[Array, "B K"]) -> Float[Array, "B S S C"]:
        """Return decoded frames with entries in [0, 1]."""
        decoded = self.decode(params, params[CODEBOOK][tokens])
        return jnp.clip(0.5 * (decoded + 1.0), 0.0, 1.0)

    def reconstruct(self, params: Params, frames: Float[Array, "B S S C"]) -> Array:
        """Return frames as the actor-critic sees them, with entries in [0, 1]."""
        return self.frames(params, self.tokens(params, frames))

    def empty_cache(self, batch_size: int) -> Cache:
        """Return the Transformer's cache before the first token."""
        return empty_cache(self.config, self.tokens_per_frame + 1, batch_size)

    def burn_in(
        self,
        params: Params,
        frames: Float[Array, "T B S S C"],
        counts: Bool[Array, "T B"],
    ) -> hk.LSTMState:
        """Return the LSTM's state after frames with entries in [0, 1]; some do not count."""

        def step(state: hk.LSTMState, row: tuple[Array, Array]) -> tuple[hk.LSTMState, None]:
            features, counts = row
            _, after = self.react(params, features, state)
            return jax.tree.map(
                lambda new, old: jnp.where(counts[:, None], new, old), after, state
            ), None

        start = actor_critic.initial_state(self.config, counts.shape[1])
        return jax.lax.scan(step, start, (self._features(params, frames), counts))[0]

    def act_along(
        self, params: Params, frames: Float[Array, "T B S S C"], state: hk.LSTMState
    ) -> Output:
        """Return the actor-critic's outputs, leaves `[T, B, ...]`, along frames.

        Frames have entries in [0, 1]; `state` is the LSTM's before the first one.
        """

        def step(state: hk.LSTMState, features: Array) -> tuple[hk.LSTMState, Output]:
            output, state = self.react(params, features, state)
            return state, output

        return jax.lax.scan(step, state, self._features(params, frames))[1]

    def _features(self, params: Params, frames: Float[Array, "T B S S C"]) -> Array:
        features = self.vision(params, frames.reshape(-1, *frames.shape[2:]))
        return features.reshape(*frames.shape[:2], -1)

    def _encode(self, x: Array) -> Array:
        return tokenizer.encoder()(2.0 * x - 1.0, self.config)

    def _decode(self, x: Array) -> Array:
        return tokenizer.decoder()(x, self.config, self.image_channels)

    def _world(self, method: str) -> Callable[..., Any]:
        """Return a method of the world model's layers, which are created where it is called."""

        def call(*inputs: Any) -> Any:
            layers = WorldModel(self.config, self.tokens_per_frame, self.num_actions)
            return getattr(layers, method)(*inputs)

        return call


def _apply(f: Callable[..., Any], params: Params, *inputs: Any) -> Any:
    """Return the result of a function of Haiku modules with parameters."""
    return hk.without_apply_rng(hk.transform(f)).apply(params, *inputs)


class Imagined(NamedTuple):
    """Imagined steps.

    Attributes:
      tokens: of the frames.
      frames: with entries in [0, 1].
      action: of each frame.
      reward: of the action: -1, 0 or 1.
      end: whether the action ends the episode. The steps after it are imagined all the same.
    """

    tokens: Int[Array, "H B K"]
    frames: Float[Array, "H B S S C"]
    action: Int[Array, "H B"]
    reward: Float[Array, "H B"]
    end: Bool[Array, "H B"]


def imagine(
    model: Model,
    params: Params,
    tokens: Int[Array, "B K"],
    state: hk.LSTMState,
    key: PRNGKeyArray,
    horizon: int,
) -> Imagined:
    """Imagine what the policy experiences in H steps, from the first frame's tokens.

    `state` is the policy's before that frame. No frame follows the last action.
    """

    def act(state: Any, key: PRNGKeyArray, num_tokens: int) -> tuple[Any, ...]:
        """Return the policy's state and the cache after an action, its hidden vector, the step."""
        tokens, frames, policy, cache = state
        cache = with_room(model, params, tokens, cache, num_tokens, horizon)
        action_key, reward_key, end_key = jax.random.split(key, 3)
        output, policy = model.react(params, model.vision(params, frames), policy)
        action = jax.random.categorical(action_key, output.logits)
        hidden, cache = model.feed(params, "actions", action[:, None], cache)
        hidden = hidden[:, 0]
        reward = jax.random.categorical(reward_key, model.head(params, "reward", hidden)) - 1
        end = jax.random.categorical(end_key, model.head(params, "end", hidden)) == 1
        step = (tokens, frames, action, reward.astype(output.value.dtype), end)
        return policy, cache, hidden, step

    def advance(state: Any, key: PRNGKeyArray) -> tuple[Any, tuple[Array, ...]]:
        act_key, frame_key = jax.random.split(key)
        policy, cache, hidden, step = act(state, act_key, model.tokens_per_frame + 1)
        tokens, cache = next_frame(model, params, hidden, cache, frame_key)
        return (tokens, model.frames(params, tokens), policy, cache), step

    _, cache = model.feed(params, "tokens", tokens, model.empty_cache(len(tokens)))
    start = (tokens, model.frames(params, tokens), state, cache)
    keys = jax.random.split(key, horizon)
    last, steps = jax.lax.scan(advance, start, keys[:-1])
    *_, final = act(last, keys[-1], 1)
    return Imagined(*jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), steps, final))


def next_frame(
    model: Model,
    params: Params,
    hidden: Float[Array, "B D"],
    cache: Cache,
    key: PRNGKeyArray,
) -> tuple[Int[Array, "B K"], Cache]:
    """Return the next frame's tokens, one after the other, and the cache with them.

    `hidden` is the hidden vector of the action, which the cache contains.
    """
    first_key, key = jax.random.split(key)
    token = jax.random.categorical(first_key, model.head(params, "next_token", hidden))

    def step(carry: tuple[Array, Cache], key: PRNGKeyArray):
        token, cache = carry
        hidden, cache = model.feed(params, "tokens", token[:, None], cache)
        following = jax.random.categorical(key, model.head(params, "next_token", hidden[:, 0]))
        return (following, cache), token

    keys = jax.random.split(key, model.tokens_per_frame - 1)
    (token, cache), tokens = jax.lax.scan(step, (token, cache), keys)
    _, cache = model.feed(params, "tokens", token[:, None], cache)
    return jnp.concatenate([tokens, token[None]]).T, cache


def with_room(
    model: Model,
    params: Params,
    tokens: Int[Array, "B K"],
    cache: Cache,
    num_tokens: int,
    num_steps: int,
) -> Cache:
    """Return a cache with room for `num_tokens` more tokens.

    One without room is rebuilt from the current frame's tokens alone. Sequences of `num_steps`
    steps that the context contains never fill it.
    """
    if num_steps <= model.config.memory_steps:
        return cache

    def rebuild(cache: Cache) -> Cache:
        empty = cache._replace(length=jnp.zeros_like(cache.length))
        return model.feed(params, "tokens", tokens, empty)[1]

    capacity = cache.layers[0][0].shape[2]
    return jax.lax.cond(cache.length + num_tokens > capacity, rebuild, lambda x: x, cache)

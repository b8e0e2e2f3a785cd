"""All of an agent's networks, as pure functions of their parameters."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from agents.iris import actor_critic, tokenizer
from agents.iris.actor_critic import LSTMState, Output
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
    def _tile(self) -> int:
        """The side of the squares that the autoencoder takes for images, in pixels."""
        return self.config.tile or self.image_size

    def init(self, key: PRNGKeyArray) -> Params:
        config, keys = self.config, jax.random.split(key, 5)
        side, tiles = self._side, self.image_size // self._tile
        bound, size = 1.0 / config.vocabulary, (config.vocabulary, config.code_size)
        tokens = jnp.zeros((1, config.memory_steps, self.tokens_per_frame), jnp.int32)
        frame = jnp.zeros((1, self.image_size, self.image_size, self.image_channels))
        codes = jnp.zeros((1, side, side, config.code_size))

        def init(f: Callable[..., Any], key: PRNGKeyArray, *inputs: Any) -> Any:
            return hk.transform(f).init(key, *inputs)

        def act(frame: Array, state: LSTMState) -> tuple[Output, LSTMState]:
            features = actor_critic.vision(config, frame)
            return actor_critic.react(config, self.num_actions, features, state)

        return {
            ENCODER: init(self._encode, keys[0], to_tiles(frame, self._tile)),
            DECODER: init(self._decode, keys[1], to_tiles(codes, side // tiles)),
            CODEBOOK: jax.random.uniform(keys[2], size, minval=-bound, maxval=bound),
            WORLD_MODEL: init(self._world("predict"), keys[3], tokens, tokens[:, :, 0]),
            ACTOR_CRITIC: init(act, keys[4], frame, actor_critic.initial_state(config, 1)),
        }

    def encode(self, params: Params, frames: Float[Array, "B S S C"]) -> Float[Array, "B K E"]:
        """Return the feature vectors of frames with entries in [0, 1]."""
        tiles = self.image_size // self._tile
        x = _apply(self._encode, params[ENCODER], to_tiles(frames, self._tile))
        x = from_tiles(x, tiles)
        return x.reshape(len(x), -1, self.config.code_size)

    def decode(self, params: Params, codes: Float[Array, "B K E"]) -> Float[Array, "B S S C"]:
        """Return frames of codes' embeddings; entries are in [-1, 1], but for errors."""
        side, tiles = self._side, self.image_size // self._tile
        codes = to_tiles(codes.reshape(len(codes), side, side, -1), side // tiles)
        return from_tiles(_apply(self._decode, params[DECODER], codes), tiles)

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
        self, params: Params, features: Float[Array, "B F"], state: LSTMState
    ) -> tuple[Output, LSTMState]:
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
    ) -> LSTMState:
        """Return the LSTM's state after frames with entries in [0, 1]; some do not count."""

        def step(state: LSTMState, row: tuple[Array, Array]) -> tuple[LSTMState, None]:
            features, counts = row
            _, after = self.react(params, features, state)
            return jax.tree.map(
                lambda new, old: jnp.where(counts[:, None], new, old), after, state
            ), None

        start = actor_critic.initial_state(self.config, counts.shape[1])
        return jax.lax.scan(step, start, (self._features(params, frames), counts))[0]

    def act_along(
        self, params: Params, frames: Float[Array, "T B S S C"], state: LSTMState
    ) -> Output:
        """Return the actor-critic's outputs, leaves `[T, B, ...]`, along frames.

        Frames have entries in [0, 1]; `state` is the LSTM's before the first one.
        """

        def step(state: LSTMState, features: Array) -> tuple[LSTMState, Output]:
            output, state = self.react(params, features, state)
            return state, output

        return jax.lax.scan(step, state, self._features(params, frames))[1]

    def _features(self, params: Params, frames: Float[Array, "T B S S C"]) -> Array:
        features = self.vision(params, frames.reshape(-1, *frames.shape[2:]))
        return features.reshape(*frames.shape[:2], -1)

    def _encode(self, x: Array) -> Array:
        return tokenizer.Encoder(self.config)(2.0 * x - 1.0)

    def _decode(self, x: Array) -> Array:
        return tokenizer.Decoder(self.config, self.image_channels)(x)

    def _world(self, method: str) -> Callable[..., Any]:
        """Return a method of the world model's layers, which are created where it is called."""

        def call(*inputs: Any) -> Any:
            layers = WorldModel(self.config, self.tokens_per_frame, self.num_actions)
            return getattr(layers, method)(*inputs)

        return call


def _apply(f: Callable[..., Any], params: Params, *inputs: Any) -> Any:
    """Return the result of a function of Haiku modules with parameters."""
    return hk.without_apply_rng(hk.transform(f)).apply(params, *inputs)

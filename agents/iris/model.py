"""All of an agent's networks, as pure functions of their parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from agents.iris import actor_critic, tokenizer
from agents.iris.actor_critic import Output
from agents.iris.config import IrisConfig
from agents.iris.layers import LSTMState, from_tiles, to_tiles
from agents.iris.world_model import (
    REWARD_CLASSES,
    Cache,
    Embedding,
    Head,
    Predictions,
    Transformer,
    empty_cache,
)

Params = dict[str, Any]
"""Parameters by network: `ENCODER`, `DECODER`, `CODEBOOK`, `WORLD_MODEL`, `ACTOR_CRITIC`."""

ENCODER, DECODER, CODEBOOK = "encoder", "decoder", "codebook"
WORLD_MODEL, ACTOR_CRITIC = "world_model", "actor_critic"
TOKENIZER = (ENCODER, DECODER, CODEBOOK)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """An agent's networks, as functions whose first argument is `Params`, but for `init`.

    Attributes:
      init: from a key to parameters.
      encode: frames in [0, 1] `[B, S, S, C]` to feature vectors `[B, K, E]`.
      decode: embeddings of codes `[B, K, E]` to frames in [-1, 1], but for errors.
      predict: tokens `[B, L, K]`, actions `[B, L]` and a key for dropout, or None, to
        `Predictions`.
      feed_tokens: tokens `[B, T]` of frames and a cache to hidden vectors `[B, T, D]` and the cache
        with them.
      feed_actions: likewise actions.
      next_token: hidden vectors to logits of the next token.
      reward: hidden vectors of actions to logits of the reward's sign.
      end: hidden vectors of actions to logits of the episode's end.
      vision: frames in [0, 1] to the actor-critic's features `[N, F]`.
      react: features and the LSTM's state to `Output` and the state after it.
      config: of the agent.
      image_size: S.
      image_channels: C.
      num_actions: A.
    """

    init: Callable[[PRNGKeyArray], Params]
    encode: Callable[[Params, Array], Float[Array, "B K E"]]
    decode: Callable[[Params, Array], Float[Array, "B S S C"]]
    predict: Callable[..., Predictions]
    feed_tokens: Callable[[Params, Array, Cache], tuple[Array, Cache]]
    feed_actions: Callable[[Params, Array, Cache], tuple[Array, Cache]]
    next_token: Callable[[Params, Array], Float[Array, "*s N"]]
    reward: Callable[[Params, Array], Float[Array, "*s 3"]]
    end: Callable[[Params, Array], Float[Array, "*s 2"]]
    vision: Callable[[Params, Array], Float[Array, "N F"]]
    react: Callable[[Params, Array, LSTMState], tuple[Output, LSTMState]]
    config: IrisConfig
    image_size: int
    image_channels: int
    num_actions: int

    @property
    def tokens_per_frame(self) -> int:
        """K."""
        return (self.image_size // self.config.downsampling) ** 2

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

        Args:
          params: of the networks.
          frames: with entries in [0, 1].
          state: the LSTM's, before the first frame.
        """

        def step(state: LSTMState, features: Array) -> tuple[LSTMState, Output]:
            output, state = self.react(params, features, state)
            return state, output

        return jax.lax.scan(step, state, self._features(params, frames))[1]

    def _features(self, params: Params, frames: Float[Array, "T B S S C"]) -> Array:
        features = self.vision(params, frames.reshape(-1, *frames.shape[2:]))
        return features.reshape(*frames.shape[:2], -1)


def make_model(config: IrisConfig, image_size: int, image_channels: int, num_actions: int) -> Model:
    """Return an agent's networks.

    Args:
      config: of the agent.
      image_size: of a square observation, a multiple of `config.downsampling`.
      image_channels: of the observation.
      num_actions: of the environment.
    """
    side = image_size // config.downsampling
    tile = config.tile or image_size
    tiles = image_size // tile  # A side.
    encoder = hk.without_apply_rng(hk.transform(lambda x: tokenizer.Encoder(config)(2.0 * x - 1.0)))
    decoder = hk.without_apply_rng(
        hk.transform(lambda x: tokenizer.Decoder(config, image_channels)(x))
    )
    world = hk.without_apply_rng(
        hk.multi_transform(lambda: _world_model(config, side**2, num_actions))
    )
    actor = hk.without_apply_rng(hk.multi_transform(lambda: _actor_critic(config, num_actions)))
    predict, feed_tokens, feed_actions, next_token, reward, end = world.apply
    vision, react = actor.apply

    def init(key: PRNGKeyArray) -> Params:
        keys = jax.random.split(key, 5)
        bound = 1.0 / config.vocabulary
        size = (config.vocabulary, config.code_size)
        tokens = jnp.zeros((1, config.memory_steps, side**2), jnp.int32)
        frame = jnp.zeros((1, image_size, image_size, image_channels))
        codes = jnp.zeros((1, side, side, config.code_size))
        return {
            ENCODER: encoder.init(keys[0], to_tiles(frame, tile)),
            DECODER: decoder.init(keys[1], to_tiles(codes, side // tiles)),
            CODEBOOK: jax.random.uniform(keys[2], size, minval=-bound, maxval=bound),
            WORLD_MODEL: world.init(keys[3], tokens, tokens[:, :, 0]),
            ACTOR_CRITIC: actor.init(keys[4], frame, actor_critic.initial_state(config, 1)),
        }

    def encode(params: Params, frames: Float[Array, "B S S C"]) -> Float[Array, "B K E"]:
        features = from_tiles(encoder.apply(params[ENCODER], to_tiles(frames, tile)), tiles)
        return features.reshape(len(features), -1, config.code_size)

    def decode(params: Params, codes: Float[Array, "B K E"]) -> Float[Array, "B S S C"]:
        codes = to_tiles(codes.reshape(len(codes), side, side, -1), side // tiles)
        return from_tiles(decoder.apply(params[DECODER], codes), tiles)

    def of(network: str, apply: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, *arguments: apply(params[network], *arguments)

    return Model(
        init=init,
        encode=encode,
        decode=decode,
        predict=of(WORLD_MODEL, predict),
        feed_tokens=of(WORLD_MODEL, feed_tokens),
        feed_actions=of(WORLD_MODEL, feed_actions),
        next_token=of(WORLD_MODEL, next_token),
        reward=of(WORLD_MODEL, reward),
        end=of(WORLD_MODEL, end),
        vision=of(ACTOR_CRITIC, vision),
        react=of(ACTOR_CRITIC, react),
        config=config,
        image_size=image_size,
        image_channels=image_channels,
        num_actions=num_actions,
    )


def _world_model(config: IrisConfig, num_tokens: int, num_actions: int) -> Any:
    """Return the world model's functions, for `hk.multi_transform`; the first one initialises."""
    transformer = Transformer(config, num_tokens + 1)
    frame_tokens = Embedding(config.vocabulary, config.width, name="frame_tokens")
    action_tokens = Embedding(num_actions, config.width, name="action_tokens")
    next_token = Head(config.vocabulary, name="next_token")
    reward, end = Head(REWARD_CLASSES, name="reward"), Head(2, name="end")

    def predict(
        tokens: Int[Array, "B L K"], actions: Int[Array, "B L"], key: PRNGKeyArray | None = None
    ) -> Predictions:
        embedded = jnp.concatenate(
            [frame_tokens(tokens), action_tokens(actions)[:, :, None]], axis=2
        )
        hidden, _ = transformer(embedded.reshape(len(actions), -1, config.width), key=key)
        hidden = hidden.reshape(embedded.shape)
        before_tokens = jnp.concatenate([hidden[:, :, : num_tokens - 1], hidden[:, :, -1:]], axis=2)
        return Predictions(
            next_token(before_tokens), reward(hidden[:, :, -1]), end(hidden[:, :, -1])
        )

    def feed_tokens(tokens: Int[Array, "B T"], cache: Cache) -> tuple[Array, Cache | None]:
        return transformer(frame_tokens(tokens), cache)

    def feed_actions(actions: Int[Array, "B T"], cache: Cache) -> tuple[Array, Cache | None]:
        return transformer(action_tokens(actions), cache)

    return predict, (predict, feed_tokens, feed_actions, next_token, reward, end)


def _actor_critic(config: IrisConfig, num_actions: int) -> Any:
    """Return the actor-critic's functions, for `hk.multi_transform`; the first one initialises."""

    def vision(frames: Float[Array, "N S S C"]) -> Float[Array, "N F"]:
        return actor_critic.vision(config, frames)

    def react(features: Float[Array, "B F"], state: LSTMState) -> tuple[Output, LSTMState]:
        return actor_critic.react(config, num_actions, features, state)

    return lambda frames, state: react(vision(frames), state), (vision, react)

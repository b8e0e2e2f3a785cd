"""Imagination: the policy acts in the world model (IRIS, section 2.3)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from agents.iris.actor_critic import LSTMState
from agents.iris.model import Model, Params
from agents.iris.world_model import Cache

Sampler = Callable[[PRNGKeyArray, Float[Array, "B C"]], Int[Array, "B"]]
"""Chooses classes by their logits."""


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


class _State(NamedTuple):
    """The state of a roll-out: the current frame, the policy's state, the world model's memory."""

    tokens: Int[Array, "B K"]
    frames: Float[Array, "B S S C"]
    policy: LSTMState
    cache: Cache


def imagine(
    model: Model,
    params: Params,
    tokens: Int[Array, "B K"],
    state: LSTMState,
    key: PRNGKeyArray,
    horizon: int,
    sample: Sampler = jax.random.categorical,
) -> Imagined:
    """Imagine what the policy experiences in H steps, from the first frame's tokens.

    `state` is the policy's before that frame; `sample` chooses actions, rewards, ends and tokens.
    No frame follows the last action.
    """

    def act(state: _State, key: PRNGKeyArray) -> tuple[_State, Array, tuple[Array, ...]]:
        """Return the state after an action, its hidden vector, and what the step consists of."""
        action_key, reward_key, end_key = jax.random.split(key, 3)
        features = model.vision(params, state.frames)
        output, policy = model.react(params, features, state.policy)
        action = sample(action_key, output.logits)
        hidden, cache = model.feed(params, "actions", action[:, None], state.cache)
        reward = sample(reward_key, model.head(params, "reward", hidden[:, 0])) - 1
        end = sample(end_key, model.head(params, "end", hidden[:, 0])) == 1
        step = (state.tokens, state.frames, action, reward.astype(output.value.dtype), end)
        return state._replace(policy=policy, cache=cache), hidden[:, 0], step

    def make_room(state: _State, num_tokens: int) -> _State:
        # The context contains `memory_steps` steps, so fewer never fill it.
        needed = horizon > model.config.memory_steps
        if not needed:
            return state
        return state._replace(cache=with_room(model, params, state.tokens, state.cache, num_tokens))

    def advance(state: _State, key: PRNGKeyArray) -> tuple[_State, tuple[Array, ...]]:
        act_key, frame_key = jax.random.split(key)
        state = make_room(state, model.tokens_per_frame + 1)
        state, hidden, step = act(state, act_key)
        tokens, cache = next_frame(model, params, hidden, state.cache, frame_key, sample)
        state = state._replace(tokens=tokens, frames=model.frames(params, tokens), cache=cache)
        return state, step

    _, cache = model.feed(params, "tokens", tokens, model.empty_cache(len(tokens)))
    start = _State(tokens, model.frames(params, tokens), state, cache)
    keys = jax.random.split(key, horizon)
    last, steps = jax.lax.scan(advance, start, keys[:-1])
    _, _, final = act(make_room(last, 1), keys[-1])
    return Imagined(*jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), steps, final))


def next_frame(
    model: Model,
    params: Params,
    hidden: Float[Array, "B D"],
    cache: Cache,
    key: PRNGKeyArray,
    sample: Sampler = jax.random.categorical,
) -> tuple[Int[Array, "B K"], Cache]:
    """Return the next frame's tokens, one after the other, and the cache with them.

    `hidden` is the hidden vector of the action, which the cache contains.
    """
    first_key, key = jax.random.split(key)
    token = sample(first_key, model.head(params, "next_token", hidden))

    def step(carry: tuple[Array, Cache], key: PRNGKeyArray):
        token, cache = carry
        hidden, cache = model.feed(params, "tokens", token[:, None], cache)
        following = sample(key, model.head(params, "next_token", hidden[:, 0]))
        return (following, cache), token

    keys = jax.random.split(key, model.tokens_per_frame - 1)
    (token, cache), tokens = jax.lax.scan(step, (token, cache), keys)
    _, cache = model.feed(params, "tokens", token[:, None], cache)
    return jnp.concatenate([tokens, token[None]]).T, cache


def with_room(
    model: Model, params: Params, tokens: Int[Array, "B K"], cache: Cache, num_tokens: int
) -> Cache:
    """Return a cache with room for `num_tokens` more tokens.

    One without room is rebuilt from the current frame's tokens alone.
    """

    def rebuild(cache: Cache) -> Cache:
        empty = cache._replace(length=jnp.zeros_like(cache.length))
        return model.feed(params, "tokens", tokens, empty)[1]

    capacity = cache.layers[0].keys.shape[2]
    return jax.lax.cond(cache.length + num_tokens > capacity, rebuild, lambda x: x, cache)

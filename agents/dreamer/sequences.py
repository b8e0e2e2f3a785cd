"""Model states along replayed and along imagined sequences.

Arrays are time-major, `[T, B, ...]`, and named as in `agents.dreamer.losses`. A `key` is that of
all samples; without one they are the modes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from agents.dreamer.distributions import sample
from agents.dreamer.model import Model, Params
from agents.dreamer.rssm import State, embed_action

sg = jax.lax.stop_gradient


class Batch(NamedTuple):
    """Sequences from the replay, `[T, B, ...]`.

    Attributes:
      observation: x_t, by name.
      action: a_{t-1}, by name, which led to x_t.
      reward: r_t, of the transition to x_t.
      is_first: whether x_t is the first of an episode.
      is_last: whether x_t is the last of an episode, by termination or truncation.
      is_terminal: whether x_t is terminal.
    """

    observation: Mapping[str, Array]
    action: Mapping[str, Array]
    reward: Float[Array, "T B"]
    is_first: Bool[Array, "T B"]
    is_last: Bool[Array, "T B"]
    is_terminal: Bool[Array, "T B"]


class Observed(NamedTuple):
    """The world model's states and distributions along sequences.

    Attributes:
      states: model states, samples of the posterior, `[T, B]`.
      posterior: log-probabilities of z, `[T, B, S, C]`.
      prior: likewise.
    """

    states: State
    posterior: Float[Array, "T B S C"]
    prior: Float[Array, "T B S C"]


def observe_step(
    model: Model,
    params: Params,
    state: State,
    action: Float[Array, "B A"],
    tokens: Float[Array, "B E"],
    is_first: Bool[Array, "B"],
    key: PRNGKeyArray | None,
) -> tuple[State, Float[Array, "B S C"]]:
    """Advance the model state by one observed step (equation 3).

    The embedded action led to the encoded observation, `tokens`. State and action are set to zero
    where an episode begins.

    Returns:
      The state after the step, and the log-probabilities of its z.
    """
    keep = 1.0 - is_first.astype(tokens.dtype)
    state = jax.tree.map(lambda x: x * keep.reshape(-1, *(1,) * (x.ndim - 1)), state)
    h = model.advance(params, state, action * keep[:, None])
    posterior = model.posterior(params, h, tokens)
    return State(h, sample(key, posterior)), posterior


def observe(
    model: Model, params: Params, start: State, batch: Batch, key: PRNGKeyArray | None
) -> Observed:
    """Infer the model states along sequences, from the states before the first step, `[B]`."""
    tokens = model.encode(params, batch.observation)
    actions = embed_action(model.actions, batch.action)

    def step(state: State, row):
        tokens, action, is_first, t = row
        step_key = None if key is None else jax.random.fold_in(key, t)
        state, posterior = observe_step(model, params, state, action, tokens, is_first, step_key)
        return state, (state, posterior)

    steps = jnp.arange(len(batch.reward))
    _, (states, posterior) = jax.lax.scan(step, start, (tokens, actions, batch.is_first, steps))
    return Observed(states, posterior, model.prior(params, states.h))


class Imagined(NamedTuple):
    """Imagined sequences from N start states.

    Attributes:
      states: `[H+1, N]`; the first row contains the start states.
      actions: in each state, by name.
    """

    states: State
    actions: dict[str, Array]


def imagine(
    model: Model, params: Params, start: State, key: PRNGKeyArray | None, num_steps: int
) -> Imagined:
    """Imagine `num_steps` steps (H) by the policies, from states `[N]`.

    The start states and the model's parameters have no gradient here.
    """
    frozen = sg(params)

    def act(state: State, t):
        key_t = None if key is None else jax.random.fold_in(key, 2 * t)
        return _act(model, params, sg(state), key_t)

    def step(state: State, t):
        actions = act(state, t)
        h = model.advance(frozen, state, embed_action(model.actions, actions))
        z_key = None if key is None else jax.random.fold_in(key, 2 * t + 1)
        following = State(h, sample(z_key, model.prior(frozen, h)))
        return following, (state, actions)

    start = sg(start)
    last, (states, actions) = jax.lax.scan(step, start, jnp.arange(num_steps))
    final = act(last, num_steps)

    def with_last(rows, row):
        return jnp.concatenate([rows, row[None]])

    return Imagined(jax.tree.map(with_last, states, last), jax.tree.map(with_last, actions, final))


def _act(model: Model, params: Params, state: State, key: PRNGKeyArray | None) -> dict[str, Array]:
    """Sample each part of the action; the arXiv version's has a gradient."""
    found = {}
    for i, (name, policy) in enumerate(model.policies(params, state.features).items()):
        action = policy.sample(None if key is None else jax.random.fold_in(key, i))
        found[name] = action if model.config.is_v1 else sg(action)
    return found

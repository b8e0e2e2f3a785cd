"""The recurrent state-space model (the arXiv version, equation 3).

sequence model       h_t = f(h_{t-1}, z_{t-1}, a_{t-1})
encoder (posterior)  z_t ~ q(z_t | h_t, x_t)
dynamics (prior)     z_t ~ p(z_t | h_t)
"""

from collections.abc import Mapping
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import mixed_log_probabilities
from agents.dreamer.layers import BlockLinear, Dense, Linear, Norm
from agents.dreamer.networks import ActionPart

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

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


class RSSM(hk.Module):
    """The model's layers; the caller samples latents and scans over time."""

    def __init__(self, config: DreamerConfig, name: str = "rssm"):
        """Make the layers."""
        super().__init__(name)
        self._config = config
        hidden, norm = config.hidden, config.norm
        size = config.latents * config.classes
        if config.architecture == "nature":
            self._inputs = [Dense(hidden, norm, name=f"input_{x}") for x in ("h", "z", "a")]
            self._block = BlockLinear(config.deterministic, config.blocks, name="block")
            self._block_norm = Norm(norm, name="block_norm")
            self._gates = BlockLinear(3 * config.deterministic, config.blocks, name="gates")
            priors = 2
        else:
            self._inputs = [Dense(hidden, norm, name="input_za")]
            self._gates = Linear(3 * config.deterministic, bias=False, name="gates")
            self._gates_norm = Norm(norm, name="gates_norm")
            priors = 1
        self._prior = [Dense(hidden, norm, name=f"prior{i}") for i in range(priors)]
        self._prior_logits = Linear(size, name="prior_logits")
        self._posterior = Dense(hidden, norm, name="posterior")
        self._posterior_logits = Linear(size, name="posterior_logits")

    def advance(self, state: State, action: Float[Array, "*s A"]) -> Float[Array, "*s D"]:
        """Return h_t, from the previous state and the embedded action taken in it."""
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        if self._config.architecture == "nature":
            return self._advance_in_blocks(state, action)
        x = self._inputs[0](jnp.concatenate([state.flat_z, action], axis=-1))
        x = jnp.concatenate([state.h, x.astype(state.h.dtype)], axis=-1)
        gates = self._gates_norm(self._gates(x))
        return _gated(state.h, *jnp.split(gates, 3, axis=-1))

    def _advance_in_blocks(self, state: State, action: Float[Array, "*s A"]):
        groups, h = self._config.blocks, state.h
        lead = h.shape[:-1]
        x = jnp.concatenate(
            [
                layer(part)
                for layer, part in zip(self._inputs, (h, state.flat_z, action), strict=True)
            ],
            axis=-1,
        )
        # Each block reads its own part of h, and all of x.
        x = jax.nn.silu(self._block_norm(self._block(h, shared=x)))
        gates = self._gates(x).reshape(*lead, groups, 3, -1)
        return _gated(h, *(gates[..., i, :].reshape(h.shape) for i in range(3)))

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

    def log_probabilities(self, logits: Float[Array, "*s S C"]) -> Float[Array, "*s S C"]:
        """Return the latents' log-probabilities, in JAX's default float dtype."""
        return mixed_log_probabilities(logits.astype(jnp.result_type(float)), self._config.unimix)

    def _shaped(self, logits: Array) -> Array:
        return logits.reshape(*logits.shape[:-1], self._config.latents, self._config.classes)


def _gated(h, reset, candidate, update):
    """Return a GRU's next state; its reset gate scales the candidate, its update bias is -1."""
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - 1.0)
    # The state's dtype may be wider than the layers'.
    return (update * candidate).astype(h.dtype) + (1.0 - update).astype(h.dtype) * h

"""The actor-critic on reconstructed frames (IRIS, section 2.3, appendices A.3 and B)."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agents.convolutions import to_patches
from agents.iris.config import IrisConfig
from agents.iris.tokenizer import convolution, fan_in_uniform, linear


@hk.to_module
def lstm(x: Float[Array, "B I"], state: hk.LSTMState, size: int) -> hk.LSTMState:
    """Step an LSTM with two biases, of inputs and of the state, without a forget gate's offset."""
    init = fan_in_uniform(size)

    def project(name: str, x: Array) -> Array:
        shape = (x.shape[-1], 4 * size)
        weight = hk.get_parameter(f"{name}_w", shape, jnp.float32, init)
        return x @ weight + hk.get_parameter(f"{name}_b", shape[1:], jnp.float32, init)

    gates = project("input", x) + project("hidden", state.hidden)
    enter, forget, candidate, output = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * state.cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
    return hk.LSTMState(jax.nn.sigmoid(output) * jnp.tanh(cell), cell)


class Output(NamedTuple):
    """The actor-critic's output at a step.

    Attributes:
      logits: of the policy.
      value: the estimate of the return from here on.
    """

    logits: Float[Array, "*s A"]
    value: Float[Array, "*s"]


def vision(config: IrisConfig, frames: Float[Array, "N H W C"]) -> Float[Array, "N F"]:
    """Return features of frames with entries in [0, 1]: convolutions, each halving the side."""
    x = to_patches(2.0 * frames - 1.0, config.actor_patch)
    for i, channels in enumerate(config.actor_channels):
        x = convolution(f"convolution{i}")(x, channels)
        x = jax.nn.relu(hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    return x.reshape(len(x), -1)


def react(
    config: IrisConfig, num_actions: int, features: Float[Array, "B F"], state: hk.LSTMState
) -> tuple[Output, hk.LSTMState]:
    """Return the output after a frame, and the LSTM's state."""
    state = lstm()(features, state, config.lstm_size)
    logits = linear(state.hidden, num_actions, "policy")
    value = linear(state.hidden, 1, "value")[:, 0]
    return Output(logits, value), state


def initial_state(config: IrisConfig, batch_size: int) -> hk.LSTMState:
    """Return the LSTM's state at the beginning of an episode."""
    zeros = jnp.zeros((batch_size, config.lstm_size))
    return hk.LSTMState(zeros, zeros)

"""The actor-critic on reconstructed frames (IRIS, section 2.3, appendices A.3 and B)."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.convolutions import to_patches
from agents.iris.config import IrisConfig
from agents.iris.tokenizer import convolution, fan_in_uniform, linear
from disco.values import entropy


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


def lambda_returns(
    reward: Float[Array, "H B"],
    end: Bool[Array, "H B"],
    value: Float[Array, "H B"],
    discount: float | Float[Array, ""],
    lambda_: float | Float[Array, ""],
) -> Float[Array, "H B"]:
    """Return the λ-returns (appendix B); the last is the last value.

    Rewards and ends of the last step are not used.
    """
    discounts = discount * (1.0 - end.astype(value.dtype))
    returns = jax.vmap(rlax.lambda_returns, in_axes=(1, 1, 1, None), out_axes=1)
    earlier = returns(reward[:-1], discounts[:-1], value[1:], lambda_)
    return jnp.concatenate([earlier, value[-1:]])


def until_end(end: Bool[Array, "H B"]) -> Bool[Array, "H B"]:
    """Return which steps no earlier one of the same trajectory has ended."""
    return jnp.concatenate([jnp.ones_like(end[:1]), all_before(~end[:-1])])


def all_before(flags: Bool[Array, "T B"]) -> Bool[Array, "T B"]:
    """Return whether all flags up to each row are True."""
    return jnp.cumprod(flags, axis=0, dtype=jnp.int32) > 0


def losses(
    output: Output,
    action: Int[Array, "H B"],
    returns: Float[Array, "H B"],
    counts: Bool[Array, "H B"],
    entropy_cost: float | Float[Array, ""],
) -> dict[str, Float[Array, ""]]:
    """Return the losses of the policy, the value and the entropy by name (appendix B).

    They are means over H - 1 imagined steps: REINFORCE with a baseline. Returns are constants;
    `counts` says which of the steps are learned from.
    """
    output, action, returns, counts = jax.tree.map(
        lambda x: x[:-1], (output, action, returns, counts)
    )
    log_policy = jax.nn.log_softmax(output.logits)
    log_p = jnp.take_along_axis(log_policy, action[..., None], axis=-1)[..., 0]
    advantage = jax.lax.stop_gradient(returns - output.value)

    def mean(x: Array) -> Array:
        return jnp.sum(x, where=counts) / jnp.maximum(1.0, jnp.sum(counts, dtype=x.dtype))

    return {
        "policy": -mean(log_p * advantage),
        "value": mean(jnp.square(output.value - jax.lax.stop_gradient(returns))),
        "entropy": -entropy_cost * mean(entropy(log_policy)),
    }

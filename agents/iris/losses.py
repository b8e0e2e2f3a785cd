"""IRIS' losses: the autoencoder's, the world model's, and the actor-critic's."""

import jax
import jax.numpy as jnp
import optax
import rlax
from jaxtyping import Array, Bool, Float, Int, PyTree

from agents.iris import tokenizer
from agents.iris.actor_critic import Output
from agents.iris.model import CODEBOOK, Model, Params
from agents.iris.world_model import Predictions
from disco.types import Metrics
from disco.values import entropy

COMMITMENT_COST = 1.0  # Weight of the encoder's part of the commitment loss (appendix A.1).
SQUARED_COST = 10.0  # Of the squared error, which `tiles` has beside the absolute one.


def tokenizer_loss(
    model: Model,
    images: Float[Array, "B S S C"],
    perceptual_params: PyTree[Array] | None,
    params: Params,
) -> tuple[Array, tuple[Array, Array, Metrics]]:
    """Return the autoencoder's loss, and with it tokens, decoded images and each loss.

    Section 2.1 and appendix A.1.
    """
    features = model.encode(params, images)
    quantized = tokenizer.quantize(features, params[CODEBOOK])
    decoded, expected = model.decode(params, quantized.straight_through), 2.0 * images - 1.0
    losses = {
        "reconstruction": jnp.mean(jnp.abs(expected - decoded)),
        "commitment": commitment_loss(features, quantized.codes, COMMITMENT_COST),
    }
    if model.config.tile:
        losses["squared"] = SQUARED_COST * jnp.mean(jnp.square(expected - decoded))
    if perceptual_params is not None:
        losses["perceptual"] = tokenizer.distance(perceptual_params, expected, decoded)
    return sum(losses.values(), jnp.zeros(())), (quantized.tokens, decoded, losses)


def commitment_loss(
    features: Float[Array, "*s E"], codes: Float[Array, "*s E"], cost: float
) -> Float[Array, ""]:
    """Return the loss that moves codes to feature vectors, and `cost` of the reverse."""
    stop = jax.lax.stop_gradient
    to_features = jnp.mean(jnp.square(stop(features) - codes))
    return to_features + cost * jnp.mean(jnp.square(features - stop(codes)))


def world_model_losses(
    predicted: Predictions,
    tokens: Int[Array, "B L K"],
    reward: Float[Array, "B L"],
    end: Bool[Array, "B L"],
    counts: Bool[Array, "B L"],
) -> dict[str, Float[Array, ""]]:
    """Return the cross-entropies of the predictions by their names, means over steps that count.

    Rewards and ends are of the action that follows each frame; `counts` is False for the steps
    after the sequence's end, which are not learned from.
    """
    batch, _, num_tokens = tokens.shape
    logits = predicted.next_token.reshape(batch, -1, predicted.next_token.shape[-1])[:, :-1]
    next_token = tokens.reshape(batch, -1)[:, 1:]
    token_counts = jnp.repeat(counts, num_tokens, axis=1)[:, 1:]
    sign = jnp.sign(reward).astype(jnp.int32) + 1
    return {
        "next_token": _mean_cross_entropy(logits, next_token, token_counts),
        "reward": _mean_cross_entropy(predicted.reward, sign, counts),
        "end": _mean_cross_entropy(predicted.end, end.astype(jnp.int32), counts),
    }


def _mean_cross_entropy(
    logits: Float[Array, "B T C"], labels: Int[Array, "B T"], counts: Bool[Array, "B T"]
) -> Float[Array, ""]:
    each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.sum(each, where=counts) / jnp.maximum(1.0, jnp.sum(counts, dtype=each.dtype))


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


def actor_critic_losses(
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

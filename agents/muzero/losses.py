"""MuZero's targets and loss (Schrittwieser et al. 2020, appendices F and G).

A sequence begins at a position. The model is unrolled from there along the actions taken, K steps:

    z_k = n-step return from row k, bootstrapped by the value that a search found in row k + n
    L = CE(search policy_0, p_0) + c CE(z_0, v_0)
        + 1/K Σ_k [CE(reward_k, r_k) + CE(search policy_k, p_k) + c CE(z_k, v_k)]

The gradient through each state of the unroll is halved. After the end of an episode rewards and
values are 0 and there is no policy to predict; returns bootstrap where it was truncated.
"""

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float

import disco
from agents.latent_model import LatentModel, bin_loss, unroll_model, unroll_targets
from agents.muzero.config import MuZeroConfig
from agents.protocol import Batch
from disco.types import Metrics
from disco.values import decode_value, masked_mean, probability_times


def importance_weights(priority: Float[Array, "B"], acts: Bool[Array, "B"]) -> Float[Array, "B"]:
    """Return the weights of positions drawn by priority, inverse to it.

    They make the expected loss that of uniform draws (Schrittwieser et al. 2020, appendix G), but
    for a factor: their mean is 1 over the positions of a batch that are learned from (`acts`).
    """
    inverse = 1.0 / priority
    return inverse / masked_mean(inverse, acts)


def value_targets(
    batch: Batch, search_value: Float[Array, "T B"], discount: float, num_steps: int
) -> Float[Array, "T B"]:
    """Return n-step returns from each row but the last, which has its search's value.

    Within the last n rows there are fewer rewards before the value that a return ends with. A row
    that only leads to the next episode has its search's value, too: it is the state where an
    episode was truncated.
    """
    dtype = search_value.dtype
    continues = 1.0 - jnp.asarray(batch.last, dtype)[:-1]
    reward, discounts = (jnp.asarray(x, dtype)[:-1] for x in (batch.reward, batch.discount))

    def returns(reward, discounts, value, continues):
        return rlax.n_step_bootstrapped_returns(reward, discounts, value, num_steps, continues)

    found = jax.vmap(returns, in_axes=1, out_axes=1)(
        reward, discount * discounts, search_value[1:], continues
    )
    found = jnp.concatenate([found, search_value[-1:]])
    return jnp.where(jnp.asarray(batch.mask), found, search_value)


def loss(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "B E"],
    batch: Batch,
    search_policy: Float[Array, "T B A"],
    search_value: Float[Array, "T B"],
    config: MuZeroConfig,
    weight: Float[Array, "B"] | None = None,
) -> tuple[Float[Array, ""], tuple[Metrics, Float[Array, "B"]]]:
    """Return the loss of a batch of positions, metrics, and the errors of the positions' values.

    `embedding` is of each sequence's first observation, `search_policy` and `search_value` are of
    each row's search, and `weight` is that of each position.
    """
    value = value_targets(batch, search_value, config.discount, config.td_steps)
    # The state after the last row, which no unroll from row 0 reaches, has any value.
    wanted = unroll_targets(batch, jnp.concatenate([value, value[-1:]]), config.model_steps)
    found = unroll_model(model, params, embedding, wanted.action[0], gradient_scale=0.5)
    is_known, has_policy = wanted.is_known[:, 0], wanted.has_policy[:, 0]
    reward_loss = bin_loss(found.reward, wanted.reward[:, 0], config.max_value)
    value_loss = bin_loss(found.value, wanted.value[:, 0], config.max_value)
    policy = search_policy[wanted.index[:, 0]]
    policy_loss = _cross_entropy(policy, jax.nn.log_softmax(found.logits))

    first = model.predict(params, model.start(params, embedding))
    log_policy = jax.nn.log_softmax(first.logits)
    first_policy_loss = _cross_entropy(search_policy[0], log_policy)
    first_value_loss = bin_loss(first.value, value[0], config.max_value)
    acts = jnp.asarray(batch.mask)[0]
    weight = jnp.ones_like(first_value_loss) if weight is None else weight

    def mean(later: Array, mask: Bool[Array, "K B"], first: Array | float = 0.0) -> Array:
        """Return the mean over positions of a first loss and the mean of K later ones."""
        later = jnp.mean(jnp.where(mask, later, 0.0), axis=0)
        return masked_mean(weight * (first + later), acts)

    parts = {
        "policy_loss": mean(policy_loss, has_policy, first_policy_loss),
        "value_loss": mean(value_loss, is_known, first_value_loss),
        "reward_loss": mean(reward_loss, is_known),
    }
    total = parts["policy_loss"] + config.value_cost * parts["value_loss"] + parts["reward_loss"]
    searched = _cross_entropy(search_policy[0], jnp.log(search_policy[0] + 1e-30))
    metrics = parts | {
        "loss": total,
        "entropy": masked_mean(_cross_entropy(jnp.exp(log_policy), log_policy), acts),
        "search_entropy": masked_mean(searched, acts),
    }
    error = jnp.abs(decode_value(first.value, config.max_value) - value[0])
    return total, (metrics, jax.lax.stop_gradient(error))


def _cross_entropy(p: Float[Array, "*s A"], log_q: Float[Array, "*s A"]) -> Float[Array, "*s"]:
    """Return -E_p[log q], to which actions of probability 0 add nothing."""
    return -jnp.sum(probability_times(p, log_q), axis=-1)

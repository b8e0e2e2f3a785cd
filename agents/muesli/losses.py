"""Muesli's losses: a policy gradient towards CMPO's policy, and a model's losses.

Hessel et al. 2021, arXiv 2104.06159. A prime denotes the target network, a moving average of the
parameters, whose policy is the prior.

    q'(s, a) = r'_1(s, a) + γ v'_1(s, a),  v'(s) = Σ_a π'(a|s) q'(s, a)         one-step look-ahead
    G(s, a) = Retrace(λ) of π', with q'
    σ² = moving mean of (G - v')²
    π_CMPO(a|s) ∝ π'(a|s) exp(clip((q'(s, a) - v'(s)) / σ, -c, c))                (equation 8)
    L = -min(1, π/μ) (G - v') / σ log π + λ KL(π_CMPO | π) + the model's losses   (equation 10)

The model predicts K steps ahead: rewards, values, and π_CMPO of the states that were reached
(section 4.4). Where the paper is silent:

- the target of a value is `v' + min(1, π'/μ) (G - q'(s, a))`, whose mean is that of q' under π';
- the KL divergences are exact sums over actions (figure 3b), and CMPO's policy is normalised
  exactly.
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import disco
from agents.latent_model import LatentModel, bin_loss, unroll_model, unroll_targets
from agents.muesli.config import MuesliConfig
from disco import moments
from disco.moments import Moments
from disco.types import Metrics
from disco.values import (
    decode_value,
    entropy,
    importance_ratio,
    kl_divergence,
    masked_mean,
    retrace,
    select_action,
)


@chex.dataclass(frozen=True)
class Targets:
    """What the target network says of some sequences; no gradient flows through it.

    Attributes:
      policy: π_CMPO, logarithms of probabilities.
      advantage: (G - v') / σ, of the actions taken.
      value: to predict in each state.
      moments: of G - v', after these sequences.
    """

    policy: Float[Array, "T_plus_1 B A"]
    advantage: Float[Array, "T B"]
    value: Float[Array, "T_plus_1 B"]
    moments: Moments


def look_ahead(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "*s E"],
    discount: float,
    max_value: float,
) -> Float[Array, "*s A"]:
    """Return the value of each action, by one step of the model."""
    state = model.start(params, embedding)
    shape = (*embedding.shape[:-1], model.num_actions)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x[..., None, :], (*shape, x.shape[-1])), state)
    action = jnp.broadcast_to(jnp.arange(model.num_actions), shape)
    prediction = model.predict(params, model.step(params, states, action))
    reward = decode_value(prediction.reward, max_value)
    return reward + discount * decode_value(prediction.value, max_value)


def targets(
    prior_logits: Float[Array, "T_plus_1 B A"],
    action_value: Float[Array, "T_plus_1 B A"],
    trajectory: disco.Trajectory,
    before: Moments,
    config: MuesliConfig,
) -> Targets:
    """Return the targets.

    `prior_logits` are those of π', `action_value` is q', `before` the moments of G - v' before
    these sequences.
    """
    estimates = retrace(
        prior_logits,
        action_value,
        action_value,
        trajectory,
        discount=config.discount,
        lambda_=config.lambda_,
    )
    after = moments.update(before, estimates.advantage, trajectory.mask)
    after = moments.kept_if_finite(after, before)
    scale = moments.root_mean_square(after)
    clip = config.advantage_clip
    improvement = jnp.clip(estimates.action_advantage / scale, -clip, clip)
    correction = jnp.minimum(1.0, importance_ratio(prior_logits, trajectory)) * estimates.td
    # A row that only leads to the next episode has no return.
    correction = jnp.where(trajectory.mask, correction, 0.0)
    value = estimates.target_value.at[:-1].add(correction)
    return jax.lax.stop_gradient(
        Targets(
            policy=jax.nn.log_softmax(prior_logits + improvement),
            advantage=estimates.advantage / scale,
            value=value,
            moments=after,
        )
    )


def policy_loss(
    logits: Float[Array, "T_plus_1 B A"],
    trajectory: disco.Trajectory,
    target: Targets,
    regularizer_cost: float,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Return the loss of the policy in the first T states, and its regulariser, the KL."""
    ratio = jax.lax.stop_gradient(jnp.minimum(1.0, importance_ratio(logits, trajectory)))
    log_policy = jax.nn.log_softmax(logits[:-1])
    gradient_loss = -ratio * target.advantage * select_action(log_policy, trajectory.action)
    regularizer = kl_divergence(target.policy[:-1], log_policy)
    return gradient_loss + regularizer_cost * regularizer, regularizer


def model_losses(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "T_plus_1 B E"],
    trajectory: disco.Trajectory,
    target: Targets,
    config: MuesliConfig,
) -> dict[str, Float[Array, ""]]:
    """Return the means of the model's losses over all that is known of the next K steps."""
    wanted = unroll_targets(trajectory, target.value, config.model_steps)
    found = unroll_model(model, params, embedding[:-1], wanted.action)
    reward_loss = bin_loss(found.reward, wanted.reward, config.max_value)
    value_loss = bin_loss(found.value, wanted.value, config.max_value)
    policy = kl_divergence(target.policy[wanted.index], jax.nn.log_softmax(found.logits))
    return {
        "reward_loss": masked_mean(reward_loss, wanted.is_known),
        "value_loss": masked_mean(value_loss, wanted.is_known),
        "model_policy_loss": masked_mean(policy, wanted.has_policy),
    }


def loss(
    model: LatentModel,
    params: disco.Params,
    target_params: disco.Params,
    before: Moments,
    trajectory: disco.Trajectory,
    config: MuesliConfig,
) -> tuple[Float[Array, ""], tuple[Moments, Metrics]]:
    """Return the loss of some sequences, the moments after them, and metrics.

    `before` are the moments of G - v' before these sequences.
    """
    inputs = trajectory.observation, trajectory.core_state
    prior = model.embed_unroll(target_params, *inputs)
    action_value = look_ahead(model, target_params, prior, config.discount, config.max_value)
    target = targets(model.logits(target_params, prior), action_value, trajectory, before, config)
    embedding = model.embed_unroll(params, *inputs)
    logits = model.logits(params, embedding)
    of_policy, regularizer = policy_loss(logits, trajectory, target, config.regularizer_cost)
    parts = model_losses(model, params, embedding, trajectory, target, config)
    parts["policy_loss"] = masked_mean(of_policy, trajectory.mask)
    total = (
        parts["policy_loss"]
        + config.reward_cost * parts["reward_loss"]
        + config.value_cost * parts["value_loss"]
        + config.model_policy_cost * parts["model_policy_loss"]
    )
    log_policy = jax.nn.log_softmax(logits[:-1])
    metrics = parts | {
        "loss": total,
        "regularizer": masked_mean(regularizer, trajectory.mask),
        "entropy": masked_mean(entropy(log_policy), trajectory.mask),
        "advantage_scale": moments.root_mean_square(target.moments),
    }
    return total, (target.moments, metrics)

"""DiCE's losses: a policy of any temperature from one advantage function.

The policy at temperature τ is `π_τ = exp(A / τ) / Z` with the learned advantage A, and Q = V + A
(Xiao et al. 2021, arXiv 2106.00707, section 3.1). A is `logits - E_π_τ[logits]`, a dueling form: of
each temperature's own policy, so that E_π_τ[Q] is V at all of them. In the paper V and Q are those
of the average policy over temperatures, and how A is centred is not said. Temperatures are given by
their inverse, 0 for the uniform policy.
"""

import functools

import distrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import disco
from agents.dice.config import DiceConfig
from disco.types import Metrics
from disco.values import masked_mean, probability_times, retrace, select_action, vtrace


def shaped_reward(reward: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return 2 log(1 + r) for rewards r of at least 0, -log(1 + |r|) for others (table 5)."""
    size = jnp.log1p(jnp.abs(reward))
    return jnp.where(reward >= 0.0, 2.0 * size, -size)


def advantages(
    logits: Float[Array, "*s A"], inverse_temperature: Float[Array, "*s"]
) -> Float[Array, "*s A"]:
    """Return A, centred on its mean under the policy at a temperature.

    No gradient flows through that policy.
    """
    policy = jax.nn.softmax(at_temperature(jax.lax.stop_gradient(logits), inverse_temperature))
    return logits - jnp.sum(probability_times(policy, logits), axis=-1, keepdims=True)


def at_temperature(
    logits: Float[Array, "*s A"], inverse_temperature: Float[Array, "*s"]
) -> Float[Array, "*s A"]:
    """Return the policy's logits at a temperature, -inf for illegal actions at all of them."""
    return jnp.where(logits == -jnp.inf, logits, logits * inverse_temperature[..., None])


def loss(
    logits: Float[Array, "T_plus_1 B A"],
    value: Float[Array, "T_plus_1 B"],
    inverse_temperature: Float[Array, "T B"],
    trajectory: disco.Trajectory,
    config: DiceConfig,
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of some sequences, and metrics.

    The gradient of `τ log π_τ(a)` is that of A(a), so that the policy's loss, scaled by τ (equation
    8), is finite at all temperatures. Q's targets are Retrace's, which bootstrap from E_π_τ[Q]
    (Munos et al. 2016, arXiv 1606.02647); equation 2 prints the same operator with the action that
    was taken. Both targets are cut where an episode ends.

    The inverse temperature is the behaviour policy's; the last state has that of the row before.
    Rewards of the trajectory are shaped, and `logits` are A, not centred.
    """
    inverse = jnp.concatenate([inverse_temperature, inverse_temperature[-1:]])
    tempered = at_temperature(logits, inverse)
    advantage = advantages(logits, inverse)
    q = value[..., None] + advantage
    constants = {
        "discount": config.discount,
        "lambda_": config.lambda_,
        "max_ratio": config.max_ratio,
    }
    of_value = vtrace(tempered, value, value, trajectory, **constants)
    of_q = retrace(tempered, q, q, trajectory, value=value, target_value=value, **constants)

    mean = functools.partial(masked_mean, mask=trajectory.mask)
    advantage_taken = select_action(advantage, trajectory.action)
    policy_loss = -mean(of_value.advantage * advantage_taken)
    value_loss = 0.5 * mean(jnp.square(of_value.value_target - value[:-1]))
    errors = of_q.q_target - value[:-1] - advantage_taken
    action_value_loss = 0.5 * mean(jnp.square(errors))
    entropy = mean(distrax.Categorical(logits=tempered[:-1]).entropy())
    total = (
        config.policy_cost * policy_loss
        + config.value_cost * value_loss
        + config.action_value_cost * action_value_loss
        - config.entropy_cost * entropy
    )
    return total, {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "action_value_loss": action_value_loss,
        "entropy": entropy,
        "clipped_ratio": mean(jnp.minimum(config.max_ratio, of_value.importance_ratio)),
    }

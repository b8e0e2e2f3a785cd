"""PPO's loss: advantages, the drift from the behaviour policy, the value, the entropy.

r is the ratio of an action's probabilities under the policy and under the behaviour policy, A its
advantage. The policy's objective is `mean(r A - drift(r, A))`. A drift that is not negative, and 0
with derivative 0 at r = 1, makes it an instance of mirror learning (Kuba et al. 2022, arXiv
2201.02373). PPO's clipping is one, and meta-learning found another one.
"""

import functools
from collections.abc import Callable, Mapping

import chex
import distrax
import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.ppo.config import PPOConfig
from disco.types import Metrics
from disco.values import masked_mean

_DPO_ALPHA, _DPO_BETA = 2.0, 0.6


def generalized_advantages(
    value: Float[Array, "T_plus_1 B"],
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    last: Bool[Array, "T B"],
    lambda_: float,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Return generalised advantage estimates (Schulman et al. 2016, arXiv 1506.02438), and returns.

    `discount` is 0 where a transition terminates its episode. Where it ends it otherwise (`last`),
    the estimate bootstraps from the episode's last observation.
    """
    traces = lambda_ * (1.0 - last.astype(value.dtype))
    advantage = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=1, out_axes=1)(
        reward, discount, traces, value
    )
    return advantage, advantage + value[:-1]


def clip_drift(
    log_ratio: Float[Array, "*s"], advantage: Float[Array, "*s"], clip: float
) -> Float[Array, "*s"]:
    """Return PPO's drift: the gain of a ratio outside [1 - clip, 1 + clip] beyond its bound.

    Then `r A - drift` is `min(r A, clip(r) A)` (Schulman et al. 2017, equation 7).
    """
    ratio = jnp.exp(log_ratio)
    return jax.nn.relu((ratio - jnp.clip(ratio, 1.0 - clip, 1.0 + clip)) * advantage)


def dpo_drift(
    log_ratio: Float[Array, "*s"], advantage: Float[Array, "*s"], clip: float
) -> Float[Array, "*s"]:
    """Return the drift of Discovered Policy Optimisation (Lu et al. 2022, arXiv 2210.05639).

    It is the closed form, in section 5, of what meta-learning found; `clip` is not used.
    """
    del clip
    is_good = advantage >= 0.0
    # The exponential of the other branch may overflow, and has no part in the derivative.
    change = jnp.where(is_good, jnp.expm1(jnp.where(is_good, log_ratio, 0.0)), log_ratio)
    gain, scale = change * advantage, jnp.where(is_good, _DPO_ALPHA, _DPO_BETA)
    return jax.nn.relu(gain - scale * jnp.tanh(gain / scale))


Drift = Callable[[Float[Array, "*s"], Float[Array, "*s"], float], Float[Array, "*s"]]
DRIFTS: Mapping[str, Drift] = {"clip": clip_drift, "dpo": dpo_drift}


@chex.dataclass(frozen=True)
class Samples:
    """Transitions to learn from, leaves `[*s]`.

    Attributes:
      action: taken by the behaviour policy.
      log_prob: of the action, under the behaviour policy.
      value: of the state, before the update.
      advantage: of the action.
      value_target: the return to predict.
      mask: False for transitions that have weight 0.
    """

    action: Int[Array, "*s"]
    log_prob: Float[Array, "*s"]
    value: Float[Array, "*s"]
    advantage: Float[Array, "*s"]
    value_target: Float[Array, "*s"]
    mask: Bool[Array, "*s"]


def loss(
    logits: Float[Array, "*s A"], value: Float[Array, "*s"], samples: Samples, config: PPOConfig
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of a minibatch, and metrics."""
    mean = functools.partial(masked_mean, mask=samples.mask)
    policy = distrax.Categorical(logits=logits)
    log_ratio = policy.log_prob(samples.action) - samples.log_prob
    ratio, advantage = jnp.exp(log_ratio), samples.advantage
    if config.normalize_advantage:
        centred = advantage - mean(advantage)
        advantage = centred / (jnp.sqrt(mean(jnp.square(centred))) + 1e-8)
    drift = DRIFTS[config.drift](log_ratio, advantage, config.clip)
    policy_loss = -mean(ratio * advantage - drift)

    errors = jnp.square(value - samples.value_target)
    if config.value_clip:
        change = jnp.clip(value - samples.value, -config.value_clip, config.value_clip)
        bounded = jnp.square(samples.value + change - samples.value_target)
        errors = jnp.maximum(errors, bounded)
    value_loss = 0.5 * mean(errors)

    entropy = mean(policy.entropy())
    total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    is_outside = jnp.abs(ratio - 1.0) > config.clip
    metrics = {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "kl_from_behaviour": mean(ratio - 1.0 - log_ratio),
        "clipped_fraction": mean(is_outside.astype(value.dtype)),
    }
    return total, metrics

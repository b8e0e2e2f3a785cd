"""PPO's settings and loss: advantages, the drift from the behaviour policy, the value, the entropy.

r is the ratio of an action's probabilities under the policy and under the behaviour policy, A its
advantage. The policy's objective is `mean(r A - drift(r, A))`. A drift that is not negative, and 0
with derivative 0 at r = 1, makes it an instance of mirror learning (Kuba et al. 2022, arXiv
2201.02373). PPO's clipping is one, and meta-learning found another one.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import chex
import distrax
import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.baselines import BaselineConfig
from agents.networks import NetworkConfig
from disco.types import Metrics
from disco.values import masked_mean
from disco_common.ranges import AtLeast0, Count, Fraction, Positive

_DPO_ALPHA, _DPO_BETA = 2.0, 0.6


@dataclasses.dataclass(frozen=True)
class PPOConfig(BaselineConfig):
    """Settings of PPO (Schulman et al. 2017, arXiv 1707.06347), by default Stable-Baselines3's.

    With a memory of the network, minibatches consist of whole unrolls.

    Attributes:
      separate_value_network: whether the value has a network of its own instead of a head.
      drift: `"clip"`, or `"dpo"` for Discovered Policy Optimisation (`agents.ppo.losses`).
      num_epochs: passes over the transitions of an unroll.
      num_minibatches: gradient steps of a pass, each on as many samples; a pass leaves out the rest
        at random.
      gae_lambda: decay of the advantage estimates.
      clip: epsilon, the range of the probability ratio; for the drift `"clip"`.
      value_clip: range of a value's change in an update; 0 for no bound.
      value_cost, entropy_cost: weights of half the squared error of values, and of the policy's
        entropy; that of the policy's loss is 1.
      normalize_advantage: whether advantages have mean 0 and deviation 1 in each minibatch.
      adam_epsilon: added to the denominator of Adam's update.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), activation="tanh")
    separate_value_network: bool = True
    drift: str = "clip"
    learning_rate: Positive = 3e-4
    num_environments: Count = 1
    unroll_length: Count = 2048
    num_epochs: Count = 10
    num_minibatches: Count = 32
    gae_lambda: Fraction = 0.95
    clip: Positive = 0.2
    value_clip: AtLeast0[float] = 0.0
    value_cost: AtLeast0[float] = 1.0
    entropy_cost: AtLeast0[float] = 0.0
    normalize_advantage: bool = True
    adam_epsilon: Positive = 1e-5

    def __post_init__(self):
        super().__post_init__()
        if self.drift not in DRIFTS:
            raise ValueError(f"drift is {self.drift!r}; expected one of {', '.join(DRIFTS)}.")
        if self.network.memory and self.separate_value_network:
            raise ValueError(
                f"network.memory is {self.network.memory} and separate_value_network True; expected"
                " one network where there is a memory."
            )
        # Of one transition, the normalised advantage is 0.
        least = 2 if self.normalize_advantage and not self.network.memory else 1
        if self.minibatch_size < least:
            raise ValueError(
                f"num_minibatches is {self.num_minibatches}; expected at most"
                f" {self.num_samples // least}, with at least {least} of the {self.num_samples}"
                f" {'unrolls' if self.network.memory else 'transitions'} of an update in each"
                f" (num_environments {self.num_environments}, unroll_length {self.unroll_length})."
            )

    @property
    def num_samples(self) -> int:
        """What an update's minibatches divide: transitions, or unrolls of a recurrent network."""
        return self.num_environments * (1 if self.network.memory else self.unroll_length)

    @property
    def minibatch_size(self) -> int:
        """Samples of a minibatch."""
        return self.num_samples // self.num_minibatches


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

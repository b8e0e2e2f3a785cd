"""The meta-loss: the policy-gradient loss of the updated agent, with regularisers.

Minimising it maximises the meta-objective J of DiscoRL. The regularisers are those of Methods,
"Meta-optimization stabilization", and two of the authors' meta-training notebook
(https://github.com/google-deepmind/disco_rl).
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import disco
from disco import values
from disco.types import Metrics
from disco.values import entropy, kl_divergence, mean_of_legal, probability_times
from disco_common.ranges import AT_LEAST_0


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Weights of the meta-loss's regularisers; the weight of the policy-gradient loss is 1.

    Attributes:
      policy_entropy_cost: of the updated agent's policy entropy (from the authors' notebook).
      prediction_entropy_cost: of the entropy of its predictions y and z (L_ent in the paper).
      target_kl_cost: of KL(target network's policy || policy target) (L_KL in the paper).
      target_mean_cost: of the squared mean of each target's logits (from the authors' notebook).
    """

    policy_entropy_cost: float = 1e-2
    prediction_entropy_cost: float = 1e-3
    target_kl_cost: float = 1e-2
    target_mean_cost: float = 1e-3

    def __post_init__(self):
        costs = "policy_entropy_cost prediction_entropy_cost target_kl_cost target_mean_cost"
        AT_LEAST_0.require(self, "objective.", *costs.split())


@chex.dataclass(frozen=True)
class TargetStatistics:
    """Statistics of an update's targets, for the regularisers; scalars, or `[K]` of K updates.

    Attributes:
      pi_mean, y_mean, z_mean: mean of each target's logits, but those of illegal actions.
      policy_kl: mean of KL(target network's policy || policy target).
    """

    pi_mean: Float[Array, "*K"]
    y_mean: Float[Array, "*K"]
    z_mean: Float[Array, "*K"]
    policy_kl: Float[Array, "*K"]


def target_statistics(
    targets: disco.DiscoveredTargets, target_network_logits: Float[Array, "T_plus_1 B A"]
) -> TargetStatistics:
    """Return the statistics of one update.

    Args:
      targets: of the update.
      target_network_logits: the target network's policy on the batch; no gradient flows.
    """
    log_pi_target = jax.nn.log_softmax(targets.pi)
    log_pi_bar = jax.lax.stop_gradient(jax.nn.log_softmax(target_network_logits[:-1]))
    return TargetStatistics(
        pi_mean=mean_of_legal(targets.pi),
        y_mean=jnp.mean(targets.y),
        z_mean=jnp.mean(targets.z),
        policy_kl=jnp.mean(kl_divergence(log_pi_bar, log_pi_target)),
    )


def meta_loss(
    config: ObjectiveConfig,
    outputs: disco.Outputs,
    normalized_advantage: Float[Array, "T B"],
    validation: disco.Trajectory,
    statistics: TargetStatistics,
) -> tuple[Float[Array, ""], Metrics]:
    """Return the meta-loss, whose gradient with respect to the rule is the meta-gradient; metrics.

    Args:
      config: weights.
      outputs: of the agent after K updates, on the validation trajectories.
      normalized_advantage: of the validation trajectories; no gradient flows.
      validation: trajectories of the agent after K updates.
      statistics: of the targets of the K updates, each `[K]`.
    """
    weight = validation.mask.astype(normalized_advantage.dtype)

    def mean(x):
        return jnp.sum(probability_times(weight, x)) / jnp.maximum(jnp.sum(weight), 1.0)

    log_pi = jax.nn.log_softmax(outputs["logits"][:-1])
    log_likelihood = values.select_action(log_pi, validation.action)
    policy_gradient = -mean(log_likelihood * jax.lax.stop_gradient(normalized_advantage))

    policy_entropy = mean(_entropy(outputs["logits"][:-1]))
    prediction_entropies = {}
    if "y" in outputs:
        z_taken = values.output_taken(outputs, "z", validation.action)
        prediction_entropies = {
            "y_entropy": jnp.mean(_entropy(outputs["y"])),
            "z_entropy": mean(_entropy(z_taken)),
        }

    target_kl = jnp.mean(statistics.policy_kl)
    means = (statistics.pi_mean, statistics.y_mean, statistics.z_mean)
    target_mean = sum(jnp.mean(jnp.square(mean)) for mean in means)

    loss = (
        policy_gradient
        - config.policy_entropy_cost * policy_entropy
        - config.prediction_entropy_cost * sum(prediction_entropies.values())
        + config.target_kl_cost * target_kl
        + config.target_mean_cost * target_mean
    )
    metrics = {
        "meta_loss": loss,
        "meta_policy_gradient_loss": policy_gradient,
        "meta_regularizer": loss - policy_gradient,
        "policy_entropy": policy_entropy,
        **prediction_entropies,
        "target_kl": target_kl,
        "target_mean_square": target_mean,
    }
    return loss, jax.lax.stop_gradient(metrics)


def _entropy(logits: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    return entropy(jax.nn.log_softmax(logits))

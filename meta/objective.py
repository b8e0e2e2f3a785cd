"""The meta-objective: how good the updated agent is, and how sane the rule's targets were.

DiscoRL, Methods, "Meta-optimization stabilization"; the specification's section 7.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import disco
from common.ranges import AT_LEAST_0
from disco import values
from disco.types import Metrics


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Weights of the regularisers beside the policy gradient's 1.

    Attributes:
      policy_entropy_cost: of the updated agent's policy (the published tutorial's).
      prediction_entropy_cost: of its predictions y and z (the paper's L_ent).
      target_kl_cost: of the policy target's distance from the target network (L_KL).
      target_mean_cost: of the squared mean of each target's logits (the tutorial's).
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
    """What the regularisers need of one update's targets; all scalars.

    Attributes:
      pi_mean, y_mean, z_mean: mean of each target's logits.
      policy_kl: KL(target network's policy || policy target), averaged.
    """

    pi_mean: Float[Array, "*k"]
    y_mean: Float[Array, "*k"]
    z_mean: Float[Array, "*k"]
    policy_kl: Float[Array, "*k"]


def target_statistics(
    targets: Any, target_network_logits: Float[Array, "T+1 B A"]
) -> TargetStatistics:
    """Statistics of one update.

    Args:
      targets: of the update.
      target_network_logits: the target network's policy on its batch; a constant.
    """
    log_pi_target = jax.nn.log_softmax(targets.pi)
    log_pi_bar = jax.lax.stop_gradient(jax.nn.log_softmax(target_network_logits[:-1]))
    kl = jnp.sum(jnp.exp(log_pi_bar) * (log_pi_bar - log_pi_target), axis=-1)
    return TargetStatistics(
        pi_mean=jnp.mean(targets.pi),
        y_mean=jnp.mean(targets.y),
        z_mean=jnp.mean(targets.z),
        policy_kl=jnp.mean(kl),
    )


def meta_objective(
    config: ObjectiveConfig,
    outputs: disco.Outputs,
    normalized_advantage: Float[Array, "T B"],
    validation: disco.Trajectory,
    statistics: TargetStatistics,
) -> tuple[Float[Array, ""], Metrics]:
    """The loss whose gradient with respect to the rule is the meta-gradient.

    Args:
      config: weights.
      outputs: of the agent after K updates, on the validation trajectories.
      normalized_advantage: of the validation trajectories; a constant.
      validation: trajectories of the agent after K updates.
      statistics: of the targets of the K updates, each `[K]`.
    """
    weight = validation.mask.astype(normalized_advantage.dtype)

    def mean(x):
        return jnp.sum(weight * x) / jnp.maximum(jnp.sum(weight), 1.0)

    log_pi = jax.nn.log_softmax(outputs["logits"][:-1])
    log_likelihood = values.select_action(log_pi, validation.action)
    policy_gradient = -mean(log_likelihood * jax.lax.stop_gradient(normalized_advantage))

    z_taken = values.output_taken(outputs, "z", validation.action)
    policy_entropy = mean(_entropy(outputs["logits"][:-1]))
    y_entropy = jnp.mean(_entropy(outputs["y"]))
    z_entropy = mean(_entropy(z_taken))

    target_kl = jnp.mean(statistics.policy_kl)
    means = (statistics.pi_mean, statistics.y_mean, statistics.z_mean)
    target_mean = sum(jnp.mean(jnp.square(mean)) for mean in means)

    loss = (
        policy_gradient
        - config.policy_entropy_cost * policy_entropy
        - config.prediction_entropy_cost * (y_entropy + z_entropy)
        + config.target_kl_cost * target_kl
        + config.target_mean_cost * target_mean
    )
    metrics = {
        "meta_loss": loss,
        "meta_policy_gradient_loss": policy_gradient,
        "meta_regularizer": loss - policy_gradient,
        "policy_entropy": policy_entropy,
        "y_entropy": y_entropy,
        "z_entropy": z_entropy,
        "target_kl": target_kl,
        "target_mean_square": target_mean,
    }
    return loss, jax.lax.stop_gradient(metrics)


def _entropy(logits: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

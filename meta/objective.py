"""The meta-loss, and the meta-value function that is its baseline.

It is the policy-gradient loss of the updated agent, with regularisers; minimising it maximises the
meta-objective J of DiscoRL. The regularisers are those of Methods,
"Meta-optimization stabilization", and two of the authors' meta-training notebook
(https://github.com/google-deepmind/disco_rl).
"""

import dataclasses
from collections.abc import Callable

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
from agents import history
from agents.encoders import Encoder
from agents.history import HistorySpec
from agents.networks import NetworkConfig, flat_init
from agents.optimizers import agent_optimizer
from disco import moments, values
from disco.moments import Moments
from disco.types import Metrics
from disco.values import entropy, kl_divergence, mean_of_legal, probability_times
from environments import ObservationSpec
from meta.config import ObjectiveConfig, ValueFunctionConfig


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
    trajectory: disco.Trajectory,
    statistics: TargetStatistics,
) -> tuple[Float[Array, ""], Metrics]:
    """Return the meta-loss, whose gradient with respect to the rule is the meta-gradient; metrics.

    Args:
      config: weights.
      outputs: of the agent after K updates, on the validation trajectories.
      normalized_advantage: of the validation trajectories; no gradient flows.
      trajectory: of the agent after K updates, the validation trajectories.
      statistics: of the targets of the K updates, each `[K]`.
    """
    weight = trajectory.mask.astype(normalized_advantage.dtype)

    def mean(x):
        return jnp.sum(probability_times(weight, x)) / jnp.maximum(jnp.sum(weight), 1.0)

    log_pi = jax.nn.log_softmax(outputs["logits"][:-1])
    log_likelihood = values.select_action(log_pi, trajectory.action)
    policy_gradient = -mean(log_likelihood * jax.lax.stop_gradient(normalized_advantage))

    policy_entropy = mean(_entropy(outputs["logits"][:-1]))
    prediction_entropies = {}
    if "y" in outputs:
        z_taken = values.output_taken(outputs, "z", trajectory.action)
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


@chex.dataclass(frozen=True)
class ValueFunctionState:
    """Parameters, optimiser and moments of one agent's meta-value function."""

    params: disco.Params
    optimizer: optax.OptState
    advantage: Moments
    td: Moments


@dataclasses.dataclass(frozen=True)
class ValueFunction:
    """The baseline in the meta-loss, on the scale of h (see `disco.values`); one per agent.

    It estimates the value of the agent's policy, for V-trace advantages on the validation
    trajectories (DiscoRL, Methods, "Implementation details"). The agent's updates do not use it.

    Attributes:
      config: how it learns.
      init_params: from a key to parameters.
      apply: from parameters and a trajectory's observation to values `[T+1, B]`, on the scale of h.
    """

    config: ValueFunctionConfig
    init_params: Callable[[PRNGKeyArray], disco.Params]
    apply: Callable[[disco.Params, PyTree[Array]], Float[Array, "T_plus_1 B"]]

    @classmethod
    def create(
        cls,
        config: ValueFunctionConfig,
        observation_spec: ObservationSpec,
        network: NetworkConfig = NetworkConfig(),
        history_spec: HistorySpec = HistorySpec(),
    ) -> "ValueFunction":
        """Return a meta-value function with the encoder of the agent's network and no memory."""

        def forward(observation):
            stacked = history.stack(history_spec, observation_spec, observation)
            stacked = jax.tree.map(lambda x: x[history_spec.burn_in :], stacked)
            hidden = Encoder(dataclasses.replace(network, torso=config.hidden), observation_spec)(
                stacked
            )
            return hk.Linear(1, w_init=hk.initializers.TruncatedNormal(1e-2))(hidden)[..., 0]

        transformed = hk.without_apply_rng(hk.transform(forward))
        init, unravel = flat_init(
            lambda key: transformed.init(key, history.example(history_spec, observation_spec))
        )
        return cls(
            config=config,
            init_params=init,
            apply=lambda params, observation: transformed.apply(unravel(params), observation),
        )

    def init(self, key: PRNGKeyArray) -> ValueFunctionState:
        """Return the state for an initial agent."""
        params = self.init_params(key)
        return ValueFunctionState(
            params=params,
            optimizer=agent_optimizer(self.config.learning_rate).init(params),
            advantage=moments.init(jnp.result_type(float)),
            td=moments.init(jnp.result_type(float)),
        )

    def evaluate(
        self,
        state: ValueFunctionState,
        logits: Float[Array, "T_plus_1 B A"],
        trajectory: disco.Trajectory,
    ) -> tuple[values.ValueEstimates, Float[Array, "T B"], ValueFunctionState]:
        """Return V-trace estimates for a policy.

        Returns:
          The estimates; the advantages, normalised by their moments over the lifetime; and the
          state with its moments updated.
        """
        value = values.signed_parabolic(self.apply(state.params, trajectory.observation))
        estimates = values.vtrace(
            logits,
            value,
            value,
            trajectory,
            discount=self.config.discount,
            lambda_=self.config.lambda_,
        )
        state = dataclasses.replace(
            state,
            advantage=moments.update(state.advantage, estimates.advantage),
            td=moments.update(state.td, estimates.td),
        )
        normalized = moments.normalize(state.advantage, estimates.advantage)
        return estimates, normalized, state

    def update(
        self,
        state: ValueFunctionState,
        logits: Float[Array, "T_plus_1 B A"],
        trajectory: disco.Trajectory,
    ) -> ValueFunctionState:
        """Make one gradient step towards the V-trace returns of a policy.

        The loss is half the squared error, on the scale of h, to the output plus the normalised
        temporal-difference error.
        """
        estimates, _, state = self.evaluate(state, logits, trajectory)
        td = moments.normalize(state.td, estimates.td, subtract_mean=False)

        def loss(params):
            output = self.apply(params, trajectory.observation)[:-1]
            target = jax.lax.stop_gradient(output + td)
            weight = trajectory.mask.astype(output.dtype)
            error = 0.5 * jnp.square(output - target)
            return jnp.sum(weight * error) / jnp.maximum(jnp.sum(weight), 1.0)

        gradients = jax.grad(loss)(state.params)
        update = agent_optimizer(self.config.learning_rate).update
        updates, optimizer = update(gradients, state.optimizer, state.params)
        return dataclasses.replace(
            state, params=optax.apply_updates(state.params, updates), optimizer=optimizer
        )

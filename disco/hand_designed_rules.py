"""Hand-designed rules with the interface of the discovered ones; they have no meta-parameters.

`ActorCritic` is IMPALA's loss, `PolicyGradient` REINFORCE with a baseline. `HandSetRule` has the
form of a discovered rule (`disco.discovered`), which trains the policy to a target that a
meta-network computes, and an action value by Retrace; but its target is fixed, and it has no
predictions y, z and aux_pi. Beside a discovered rule it shows what discovery adds.
"""

import dataclasses
from typing import Annotated, Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from disco import moments, values
from disco.checks import Cost, MaxValue, OutputShapes, odd_number
from disco.moments import Moments
from disco.rule import Rule
from disco.types import Leaf, Metrics, Outputs, RuleState, Trajectory
from disco.values import entropy, kl_divergence, mean_of_legal
from disco_common.pytrees import register_dataclass, static
from disco_common.ranges import AT_LEAST_1, Fraction, require_ranges


@chex.dataclass(frozen=True)
class HandSetTargets:
    """The targets of a hand-set rule, for each transition.

    Attributes:
      pi: target logits `[T, B, A]`.
      q_target: `[T, B]`, the return G of the action value (`disco.values`).
      q_td: `[T, B]`, G - q(s_t, a_t).
      advantage: `[T, B]`, G - V bar(s_t), V bar being the target network's state value.
      normalized_advantage: `[T, B]`, normalised by its moving moments.
    """

    pi: Float[Array, "T B A"]
    q_target: Float[Array, "T B"]
    q_td: Float[Array, "T B"]
    advantage: Float[Array, "T B"]
    normalized_advantage: Float[Array, "T B"]


@chex.dataclass(frozen=True)
class AdvantageMemory:
    """Moments of the advantages over an agent's lifetime."""

    advantage: Moments


class _AdvantageRule(Rule):
    """A rule whose memory is moments of the advantages."""

    def init_memory(self) -> AdvantageMemory:
        return AdvantageMemory(advantage=moments.init(jnp.zeros(()).dtype))

    def _with_moments(
        self, advantage: Float[Array, "T B"], mask: Bool[Leaf, "T B"], state: RuleState
    ) -> tuple[Moments, RuleState]:
        """Return the moments with a batch's, and the state, which has them if they are finite."""
        tracked = moments.update(state.memory.advantage, advantage, mask)
        kept = moments.kept_if_finite(AdvantageMemory(advantage=tracked), state.memory)
        return tracked, dataclasses.replace(state, memory=kept)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HandSetRule(_AdvantageRule):
    """The policy's own logits, and advantages, as its target (`policy_target`).

    Raises ValueError if a hyper-parameter is out of range.

    Attributes:
      policy_prior: weight of the agent's own logits, 0 to 1. With less than 1 the target is nearer
        to the uniform policy.
      advantage_weight: weight of the advantage, at the action taken.
      action_advantage_weight: weight of the advantages of all actions, q bar(s_t, a) - V bar(s_t).
      normalize_advantage: whether advantages are normalised by the moving moments of those of
        actions taken. Where rewards are rare, that makes the value function's noise as large as
        rewards.
      num_bins: bins of the action value. Odd.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      discount: gamma.
      lambda_: decay of the return's traces.
      target_params_coefficient: weight of the old target parameters in their average.
      value_cost: weight of the action value's loss; that of the policy's is 1.
    """

    policy_prior: Fraction = static(0.95)
    advantage_weight: Cost = static(1.0)
    action_advantage_weight: Cost = static(0.0)
    normalize_advantage: bool = static(True)
    num_bins: Annotated[int, odd_number(at_least=3)] = static(601)
    max_value: MaxValue = static(300.0)
    discount: Fraction = static(0.997)
    lambda_: Fraction = static(0.95)
    target_params_coefficient: Fraction = static(0.9)  # pyright: ignore[reportIncompatibleVariableOverride]
    value_cost: Cost = static(0.2)

    def __post_init__(self):
        require_ranges(self)

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output, per state: `logits` `[A]` and `q` `[A, N]`.

        They are logits of the policy, and of the action values' bins, as those of
        `DiscoveredRule.output_shapes`.
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        return {"logits": (num_actions,), "q": (num_actions, self.num_bins)}

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[HandSetTargets, RuleState]:
        outputs, target_outputs, trajectory = self._checked(outputs, target_outputs, trajectory)
        estimates = values.estimates_from_outputs(outputs, target_outputs, trajectory, self)
        tracked, after = self._with_moments(estimates.advantage, trajectory.mask, state)
        normalized = [
            moments.normalize(tracked, x) for x in (estimates.advantage, estimates.action_advantage)
        ]
        advantage, action_advantage = estimates.advantage, estimates.action_advantage
        if self.normalize_advantage:
            advantage, action_advantage = normalized
        targets = HandSetTargets(
            pi=policy_target(
                outputs["logits"][:-1],
                advantage,
                action_advantage[:-1],
                trajectory.action,
                policy_prior=self.policy_prior,
                advantage_weight=self.advantage_weight,
                action_advantage_weight=self.action_advantage_weight,
            ),
            q_target=estimates.q_target,
            q_td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=normalized[0],
        )
        return targets, after

    def transition_losses(
        self, outputs: Outputs, targets: HandSetTargets, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        log_pi = jax.nn.log_softmax(outputs["logits"][:-1])
        pi_loss = kl_divergence(jax.nn.log_softmax(targets.pi), log_pi)
        q_loss = values.action_value_loss(outputs, targets.q_td, trajectory.action, self.max_value)
        means = {
            "pi_loss": pi_loss,
            "q_loss": q_loss,
            "entropy": entropy(log_pi),
            "q_target": targets.q_target,
            "td": targets.q_td,
            "advantage": targets.advantage,
        }
        metrics = jax.lax.stop_gradient({name: jnp.mean(x) for name, x in means.items()})
        return pi_loss + self.value_cost * q_loss, metrics


def policy_target(
    logits: Float[Array, "T B A"],
    advantage: Float[Array, "T B"],
    action_advantage: Float[Array, "T B A"],
    action: Int[Leaf, "T B"],
    *,
    policy_prior: float | Float[Array, "T B 1"],
    advantage_weight: float | Float[Array, "T B 1"],
    action_advantage_weight: float | Float[Array, "T B 1"],
) -> Float[Array, "T B A"]:
    """Return the logits of a policy target, from the agent's own and from advantages.

    `target(a) = c (logits(a) - mean of logits) + k advantage 1[a = a_t] + m action_advantage(a)`

    where c, k and m are the last three arguments, and -inf for illegal actions, whose logits are
    -inf; the mean is over the others. Where the target is reached, logits are 1 / (1 - c) times the
    mean of what is added. The last term is that of regularised policy iteration with an action
    value (Vieillard et al. 2020, arXiv 2003.14089; CMPO in Muesli, Hessel et al. 2021, arXiv
    2104.06159, section 3).

    Args:
      logits: of the agent.
      advantage: of the action taken, from its return.
      action_advantage: of all actions, by the action value.
      action: taken.
      policy_prior: c.
      advantage_weight: k.
      action_advantage_weight: m.
    """
    is_legal = logits != -jnp.inf
    centred = jnp.where(is_legal, logits, 0.0) - mean_of_legal(logits, -1, keepdims=True)
    is_taken = jax.nn.one_hot(action, logits.shape[-1], dtype=advantage.dtype)
    of_taken = advantage_weight * advantage[..., None] * is_taken
    target = policy_prior * centred + of_taken + action_advantage_weight * action_advantage
    return jnp.where(is_legal, target, -jnp.inf)


@chex.dataclass(frozen=True)
class ActorCriticTargets:
    """The targets of an actor-critic rule.

    Attributes:
      value: `[T, B]`, the return to predict.
      td: `[T, B]`, that return minus the prediction.
      advantage: `[T, B]`, before normalisation.
      normalized_advantage: `[T, B]`, the weight of the policy gradient.
    """

    value: Float[Array, "T B"]
    td: Float[Array, "T B"]
    advantage: Float[Array, "T B"]
    normalized_advantage: Float[Array, "T B"]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ActorCritic(_AdvantageRule):
    """Actor-critic with V-trace: IMPALA's loss (Espeholt et al. 2018, arXiv 1802.01561).

    Raises ValueError if a hyper-parameter is out of range.

    Attributes:
      num_bins: bins of a categorical value, odd; 1 for a scalar one.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      transform_value: predict h(value) instead of the value; always true for a categorical value.
      discount: gamma.
      lambda_: decay of V-trace's traces; 1 in IMPALA.
      value_cost, entropy_cost: weights of the loss terms; that of the policy gradient is 1.
      normalize_advantage: divide the advantages by their moving standard deviation.
    """

    num_bins: Annotated[int, odd_number(at_least=1)] = static(1)
    max_value: MaxValue = static(300.0)
    transform_value: bool = static(False)
    discount: Fraction = static(0.997)
    lambda_: Fraction = static(1.0)
    value_cost: Cost = static(0.5)
    entropy_cost: Cost = static(0.01)
    normalize_advantage: bool = static(False)

    def __post_init__(self):
        require_ranges(self)

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output, per state: `logits` `[A]` and `value` `[N]`.

        `logits` are the policy's. `value` is the state's value: the logits of its N bins
        (`num_bins`), as those of q in `DiscoveredRule.output_shapes`; with one bin a number, with
        `transform_value` on the scale of the signed hyperbolic transform.
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        return {"logits": (num_actions,), "value": (self.num_bins,)}

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[ActorCriticTargets, RuleState]:
        outputs, _, trajectory = self._checked(outputs, target_outputs, trajectory)
        estimates = self._estimates(outputs["logits"], self._value(outputs["value"]), trajectory)
        tracked, after = self._with_moments(estimates.advantage, trajectory.mask, state)
        weight = estimates.advantage
        if self.normalize_advantage:
            weight = moments.normalize(tracked, weight, subtract_mean=False)
        targets = ActorCriticTargets(
            value=estimates.value_target,
            td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=weight,
        )
        return targets, after

    def _estimates(
        self,
        logits: Float[Array, "T_plus_1 B A"],
        value: Float[Array, "T_plus_1 B"],
        trajectory: Trajectory,
    ) -> values.ValueEstimates:
        return values.vtrace(
            logits, value, value, trajectory, discount=self.discount, lambda_=self.lambda_
        )

    def transition_losses(
        self, outputs: Outputs, targets: ActorCriticTargets, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        log_policy = jax.nn.log_softmax(outputs["logits"][:-1])
        advantage = jax.lax.stop_gradient(targets.normalized_advantage)
        log_prob = values.select_action(log_policy, trajectory.action)
        # A masked row may have an illegal action.
        policy_loss = -advantage * jnp.where(log_prob == -jnp.inf, 0.0, log_prob)
        value_target = targets.value
        if self._is_transformed:
            value_target = values.signed_hyperbolic(value_target)
        value_loss = values.value_loss_to(outputs["value"][:-1], value_target, self.max_value)
        policy_entropy = values.entropy(log_policy)
        means = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": policy_entropy,
            "td": targets.td,
            "advantage": targets.advantage,
        }
        metrics = jax.lax.stop_gradient({name: jnp.mean(x) for name, x in means.items()})
        losses = policy_loss + self.value_cost * value_loss - self.entropy_cost * policy_entropy
        return losses, metrics

    @property
    def _is_transformed(self) -> bool:
        return self.transform_value or self.num_bins > 1

    def _value(self, output: Float[Array, "*s N"]) -> Float[Array, "*s"]:
        output = jax.lax.stop_gradient(output)
        code = output[..., 0] if self.num_bins == 1 else values.decode(output, self.max_value)
        return values.signed_parabolic(code) if self._is_transformed else code


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyGradient(ActorCritic):
    """REINFORCE with a learned baseline (Williams 1992), on truncated trajectories.

    The return is the sum of discounted rewards to the end of the episode or of the trajectory. The
    value is a baseline only: nothing bootstraps from it, so that the returns of an episode that the
    trajectory's end or a time limit cuts lack what would come after. Long trajectories make this
    error small. There is no importance correction, so that the rule is valid on trajectories of the
    present policy only. Fields as in `ActorCritic`; `lambda_` is not used.
    """

    def _estimates(
        self,
        logits: Float[Array, "T_plus_1 B A"],
        value: Float[Array, "T_plus_1 B"],
        trajectory: Trajectory,
    ) -> values.ValueEstimates:
        dtype = value.dtype
        continues = trajectory.discount.astype(dtype) * (1.0 - trajectory.last.astype(dtype))
        reward = trajectory.reward.astype(dtype)
        returns = values.discounted_sums(reward, self.discount * continues)
        advantage = returns - value[:-1]
        return jax.lax.stop_gradient(
            values.ValueEstimates(
                importance_ratio=values.importance_ratio(logits, trajectory),
                value_target=returns,
                advantage=advantage,
                td=advantage,
            )
        )


def hand_designed(name: str, **hyper_parameters: Any) -> Rule:
    """Return a hand-designed rule by name: `actor_critic`, `policy_gradient` or `hand_set`.

    Raises ValueError if the name or a hyper-parameter is unknown.
    """
    rules: dict[str, type] = {
        "actor_critic": ActorCritic,
        "policy_gradient": PolicyGradient,
        "hand_set": HandSetRule,
    }
    if name not in rules:
        raise ValueError(f"Unknown hand-designed rule {name!r}; known are {sorted(rules)}.")
    known = sorted(field.name for field in dataclasses.fields(rules[name]))
    if unknown := sorted(set(hyper_parameters) - set(known)):
        raise ValueError(f"{name} has no hyper-parameters {unknown}; it has {known}.")
    return rules[name](**hyper_parameters)

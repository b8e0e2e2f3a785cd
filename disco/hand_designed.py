"""Hand-designed rules with the interface of the discovered ones.

They have no meta-parameters; their targets are returns and advantages.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from disco import distributions, moments, values
from disco.checks import OutputShapes
from disco.hand_set import HandSetRule
from disco.hyper_parameters import COST, POSITIVE, odd_number
from disco.moments import Moments
from disco.rule import Rule
from disco.types import Leaf, Metrics, Outputs, RuleState, Trajectory
from disco_common.pytrees import register_dataclass, static
from disco_common.ranges import AT_LEAST_1, FRACTION


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


@chex.dataclass(frozen=True)
class ActorCriticMemory:
    """Moments of the advantages over an agent's lifetime."""

    advantage: Moments


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ActorCritic(Rule):
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

    num_bins: int = static(1)
    max_value: float = static(300.0)
    transform_value: bool = static(False)
    discount: float = static(0.997)
    lambda_: float = static(1.0)
    value_cost: float = static(0.5)
    entropy_cost: float = static(0.01)
    normalize_advantage: bool = static(False)

    def __post_init__(self):
        odd_number(at_least=1).require_value("num_bins", self.num_bins)
        POSITIVE.require_value("max_value", self.max_value)
        for name in ("discount", "lambda_"):
            FRACTION.require_value(name, getattr(self, name))
        for name in ("value_cost", "entropy_cost"):
            COST.require_value(name, getattr(self, name))

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output, per state: `logits` `[A]` and `value` `[N]`.

        `logits` are the policy's. `value` is the state's value: the logits of its N bins
        (`num_bins`), as those of q in `DiscoveredRule.output_shapes`; with one bin a number, with
        `transform_value` on the scale of the signed hyperbolic transform.
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        return {"logits": (num_actions,), "value": (self.num_bins,)}

    def init_memory(self) -> ActorCriticMemory:
        return ActorCriticMemory(advantage=moments.init(jnp.zeros(()).dtype))

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[ActorCriticTargets, RuleState]:
        outputs, _, trajectory = self._checked(outputs, target_outputs, trajectory)
        estimates = self._estimates(outputs["logits"], self._value(outputs["value"]), trajectory)
        return self._with_normalized_advantage(estimates, trajectory.mask, state)

    def _estimates(
        self,
        logits: Float[Array, "T_plus_1 B A"],
        value: Float[Array, "T_plus_1 B"],
        trajectory: Trajectory,
    ) -> values.ValueEstimates:
        return values.vtrace(
            logits, value, value, trajectory, discount=self.discount, lambda_=self.lambda_
        )

    def _with_normalized_advantage(
        self, estimates: values.ValueEstimates, mask: Bool[Leaf, "T B"], state: RuleState
    ) -> tuple[ActorCriticTargets, RuleState]:
        memory: ActorCriticMemory = state.memory
        tracked = moments.update(memory.advantage, estimates.advantage, mask)
        weight = estimates.advantage
        if self.normalize_advantage:
            weight = moments.normalize(tracked, weight, subtract_mean=False)
        targets = ActorCriticTargets(
            value=estimates.value_target,
            td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=weight,
        )
        kept = moments.kept_if_finite(ActorCriticMemory(advantage=tracked), memory)
        return targets, RuleState(target_params=state.target_params, memory=kept)

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
        entropy = distributions.entropy(log_policy)
        means = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "td": targets.td,
            "advantage": targets.advantage,
        }
        metrics = jax.lax.stop_gradient({name: jnp.mean(x) for name, x in means.items()})
        losses = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
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

    Raises:
      ValueError: if the name or a hyper-parameter is unknown.
    """
    rules: dict[str, type] = {
        "actor_critic": ActorCritic,
        "policy_gradient": PolicyGradient,
        "hand_set": HandSetRule,
    }
    if name not in rules:
        raise ValueError(f"Unknown hand-designed rule {name!r}; known are {sorted(rules)}.")
    known = {field.name for field in dataclasses.fields(rules[name])}
    unknown = set(hyper_parameters) - known
    if unknown:
        raise ValueError(
            f"{name} has no hyper-parameters {sorted(unknown)}; it has {sorted(known)}."
        )
    return rules[name](**hyper_parameters)

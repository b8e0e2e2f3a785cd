"""A rule of the discovered form whose policy target is computed by three constants.

A discovered rule (`disco.discovered`) trains the policy towards a target that a meta-network
computes, and an action value by Retrace. `HandSetRule` is the same with a fixed target and without
the predictions y, z and aux_pi. Beside a discovered rule it shows what discovery adds.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from disco import moments, values
from disco.checks import OutputShapes
from disco.distributions import entropy, kl_divergence, mean_of_legal
from disco.hyper_parameters import COST, POSITIVE, odd_number
from disco.moments import Moments
from disco.rule import Rule
from disco.types import Leaf, Metrics, Outputs, RuleState, Trajectory
from disco_common.pytrees import register_dataclass, static
from disco_common.ranges import AT_LEAST_1, FRACTION


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
class HandSetMemory:
    """Moments of the advantages over an agent's lifetime."""

    advantage: Moments


@register_dataclass
@dataclasses.dataclass(frozen=True)
class HandSetRule(Rule):
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

    policy_prior: float = static(0.95)
    advantage_weight: float = static(1.0)
    action_advantage_weight: float = static(0.0)
    normalize_advantage: bool = static(True)
    num_bins: int = static(601)
    max_value: float = static(300.0)
    discount: float = static(0.997)
    lambda_: float = static(0.95)
    target_params_coefficient: float = static(0.9)  # pyright: ignore[reportIncompatibleVariableOverride]
    value_cost: float = static(0.2)

    def __post_init__(self):
        odd_number(at_least=3).require_value("num_bins", self.num_bins)
        POSITIVE.require_value("max_value", self.max_value)
        for name in ("policy_prior", "discount", "lambda_", "target_params_coefficient"):
            FRACTION.require_value(name, getattr(self, name))
        for name in ("advantage_weight", "action_advantage_weight", "value_cost"):
            COST.require_value(name, getattr(self, name))

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output, per state: `logits` `[A]` and `q` `[A, N]`.

        They are logits of the policy, and of the action values' bins, as those of
        `DiscoveredRule.output_shapes`.
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        return {"logits": (num_actions,), "q": (num_actions, self.num_bins)}

    def init_memory(self) -> HandSetMemory:
        return HandSetMemory(advantage=moments.init(jnp.zeros(()).dtype))

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[HandSetTargets, RuleState]:
        outputs, target_outputs, trajectory = self._checked(outputs, target_outputs, trajectory)
        estimates = values.estimates_from_outputs(
            outputs,
            target_outputs,
            trajectory,
            max_value=self.max_value,
            discount=self.discount,
            lambda_=self.lambda_,
        )
        memory: HandSetMemory = state.memory
        tracked = moments.update(memory.advantage, estimates.advantage, trajectory.mask)
        advantage, action_advantage = (
            moments.normalize(tracked, x) for x in (estimates.advantage, estimates.action_advantage)
        )
        is_normalized = self.normalize_advantage
        targets = HandSetTargets(
            pi=policy_target(
                outputs["logits"][:-1],
                advantage if is_normalized else estimates.advantage,
                (action_advantage if is_normalized else estimates.action_advantage)[:-1],
                trajectory.action,
                policy_prior=self.policy_prior,
                advantage_weight=self.advantage_weight,
                action_advantage_weight=self.action_advantage_weight,
            ),
            q_target=estimates.q_target,
            q_td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=advantage,
        )
        kept = moments.kept_if_finite(HandSetMemory(advantage=tracked), memory)
        return targets, RuleState(target_params=state.target_params, memory=kept)

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
    -inf; the mean is over the others. Where the target is reached, logits are 1 / (1 -
    c) times the mean of what is added. The last term is that of regularised policy iteration with
    an action value (Vieillard et al. 2020, arXiv 2003.14089; CMPO in Muesli, Hessel et al. 2021,
    arXiv 2104.06159, section 3).

    Args:
      logits: of the agent, -inf for illegal actions; their mean over the others is subtracted.
      advantage: of the action taken, from its return.
      action_advantage: of all actions, by the action value.
      action: taken.
      policy_prior: weight of the logits.
      advantage_weight: weight of the advantage, at the action taken.
      action_advantage_weight: weight of the advantages of all actions.
    """
    is_legal = logits != -jnp.inf
    centred = jnp.where(is_legal, logits, 0.0) - mean_of_legal(logits, -1, keepdims=True)
    is_taken = jax.nn.one_hot(action, logits.shape[-1], dtype=advantage.dtype)
    of_taken = advantage_weight * advantage[..., None] * is_taken
    target = policy_prior * centred + of_taken + action_advantage_weight * action_advantage
    return jnp.where(is_legal, target, -jnp.inf)

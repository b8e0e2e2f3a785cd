"""Discovered rules: a meta-network computes the targets (DiscoRL, Oh et al., Nature 2025).

The agent predicts a policy, two vectors y(s) and z(s, a) without predefined meaning, an action
value q, and the policy one step later (aux_pi). The meta-network computes the targets of pi, y
and z; those of q and aux_pi are predefined.
"""

import dataclasses
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from disco import meta_network, moments, values
from disco.checks import OutputShapes
from disco.distributions import entropy, kl_divergence
from disco.hand_set import policy_target
from disco.hyper_parameters import COST, POSITIVE, odd_number
from disco.meta_network import LifetimeState
from disco.moments import Moments
from disco.rule import Rule
from disco.sizes import MetaNetworkSizes
from disco.types import Metrics, Outputs, RuleState, Trajectory
from disco_common.pytrees import register_dataclass
from disco_common.ranges import AT_LEAST_1, FRACTION


@chex.dataclass(frozen=True)
class DiscoveredTargets:
    """The targets of a discovered rule, for each transition.

    Attributes:
      pi, y, z: target logits `[T, B, A]`, `[T, B, Y]`, `[T, B, Y]`; z of the action taken.
      q_target: `[T, B]`, the return G of the action value (`disco.values`).
      q_td: `[T, B]`, G - q(s_t, a_t).
      advantage: `[T, B]`, G - V bar(s_t), V bar being the target network's state value.
      normalized_advantage: `[T, B]`, normalised by its moving moments.
      normalized_q_td: `[T, B]`, divided by the moving deviation of q_td, mean not subtracted.
      summary: `[T, B, 1]`, the output of the backward LSTM that the lifetime RNN reads.
      prior: `[T, B, P]`, the outputs that change the policy target's prior
        (`DiscoveredRule.prior_weights`), if the meta-network has them.
    """

    pi: Float[Array, "T B A"]
    y: Float[Array, "T B Y"]
    z: Float[Array, "T B Y"]
    q_target: Float[Array, "T B"]
    q_td: Float[Array, "T B"]
    advantage: Float[Array, "T B"]
    normalized_advantage: Float[Array, "T B"]
    normalized_q_td: Float[Array, "T B"]
    summary: Float[Array, "T B 1"]
    prior: Float[Array, "T B P"] | None = None


@chex.dataclass(frozen=True)
class DiscoveredMemory:
    """The state of a discovered rule over an agent's lifetime.

    Attributes:
      lifetime: of the lifetime RNN.
      advantage: moments of the advantages.
      td: moments of the TD errors.
      updates: number of updates so far, if the rule reads it.
    """

    lifetime: LifetimeState
    advantage: Moments
    td: Moments
    updates: Float[Array, ""] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DiscoveredRule(Rule):
    """A rule computed by a meta-network; the defaults are the published rule's.

    Raises ValueError if a size or hyper-parameter is out of range.

    Attributes:
      parameters: the meta-parameters, `{layer: {"w", "b"}}` (see `meta_network.layer_shapes`).
      sizes: the meta-network's widths; `sizes.prediction` is Y.
      num_bins: N, the bins of the action value. Odd.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      discount: gamma.
      lambda_: decay of the return's traces.
      target_params_coefficient: weight of the old target parameters in their average.
      policy_prior: a scalar, the weight of the agent's own logits, minus their mean, in the logits
        of the policy target. With 0, as in the published rule, the meta-network computes the target
        itself; with 1 it computes the change of the policy, and an output of 0 leaves the policy
        unchanged. If the meta-network computes the weight of each transition
        (`sizes.prior_outputs`), it is the weight for an output of 0.
      advantage_weight: weight of the advantage in the logit of the action taken, in the policy
        target, as `HandSetRule` has it; 0 in the published rule. It is multiplied by the
        exponential of the meta-network's second output of the prior, if there is one. A new rule
        with a weight above 0 starts as the hand-set rule: its meta-network adds nothing yet.
      action_advantage_weight: weight of the advantages of all actions, likewise; it is multiplied
        by the exponential of the third output of the prior, if there is one.
      normalize_advantage: whether these advantages are normalised, as in `HandSetRule`.
      pi_cost, y_cost, z_cost, aux_policy_cost, value_cost: weights of the loss's terms. Agents have
        no aux_pi if its weight is 0, and no y and z if theirs are 0 and `reads_predictions` false.
      reads_predictions: whether the meta-network reads y and z; otherwise it reads zeros.
      reads_values: whether it reads values, returns and advantages; otherwise it reads zeros.
      has_lifetime: whether the lifetime RNN is stepped; otherwise it keeps its initial state.
      masks_moments: whether masked transitions, between two episodes, are left out of the moments
        that normalise advantages and TD errors. The published rule counts them.
    """

    parameters: PyTree[Any]  # JAX rebuilds rules with leaves that are not arrays.
    sizes: MetaNetworkSizes = dataclasses.field(
        default=MetaNetworkSizes(), metadata={"static": True}
    )
    num_bins: int = dataclasses.field(default=601, metadata={"static": True})
    max_value: float = dataclasses.field(default=300.0, metadata={"static": True})
    discount: float = dataclasses.field(default=0.997, metadata={"static": True})
    lambda_: float = dataclasses.field(default=0.95, metadata={"static": True})
    # Narrower than in `Rule`, which is sound because fields of frozen dataclasses are not assigned.
    target_params_coefficient: float = dataclasses.field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=0.9, metadata={"static": True}
    )
    policy_prior: float = dataclasses.field(default=0.0, metadata={"static": True})
    advantage_weight: float = dataclasses.field(default=0.0, metadata={"static": True})
    action_advantage_weight: float = dataclasses.field(default=0.0, metadata={"static": True})
    normalize_advantage: bool = dataclasses.field(default=True, metadata={"static": True})
    pi_cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    y_cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    z_cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    aux_policy_cost: float = dataclasses.field(default=1.0, metadata={"static": True})
    value_cost: float = dataclasses.field(default=0.2, metadata={"static": True})
    reads_predictions: bool = dataclasses.field(default=True, metadata={"static": True})
    reads_values: bool = dataclasses.field(default=True, metadata={"static": True})
    has_lifetime: bool = dataclasses.field(default=True, metadata={"static": True})
    masks_moments: bool = dataclasses.field(default=False, metadata={"static": True})

    def __repr__(self) -> str:
        """Return the settings, and how many meta-parameters there are, but not these."""
        number = sum(math.prod(jnp.shape(x)) for x in jax.tree.leaves(self.parameters))
        settings = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "parameters"
        )
        return f"{type(self).__name__}(<{number:,} parameters>, {', '.join(settings)})"

    @classmethod
    def create(
        cls,
        key: PRNGKeyArray,
        sizes: MetaNetworkSizes = MetaNetworkSizes(),
        is_published: bool = False,
        **hyper_parameters: Any,
    ) -> "DiscoveredRule":
        """Return a random rule, to start a discovery from.

        Args:
          key: of the meta-parameters.
          sizes: of the meta-network.
          is_published: whether their distribution is exactly that of the authors' release
            (`meta_network.init`).
          **hyper_parameters: of the rule.

        Raises:
          ValueError: if a size or hyper-parameter is out of range, or the release has no such rule.
        """
        rule = cls(parameters={}, sizes=sizes, **hyper_parameters)
        is_silent = rule.advantage_weight > 0.0
        if is_published and is_silent:
            raise ValueError(
                f"advantage_weight is {rule.advantage_weight}, with which the policy target starts"
                " without the meta-network; expected 0 with the release's initialisation."
            )
        parameters = meta_network.init(key, sizes, is_silent=is_silent, is_published=is_published)
        return dataclasses.replace(rule, parameters=parameters)

    def __post_init__(self):
        odd_number(at_least=3).require_value("num_bins", self.num_bins)
        POSITIVE.require_value("max_value", self.max_value)
        for name in ("discount", "lambda_", "target_params_coefficient", "policy_prior"):
            FRACTION.require_value(name, getattr(self, name))
        if self.sizes.prior_outputs and not 0.0 < self.policy_prior < 1.0:
            raise ValueError(
                f"policy_prior is {self.policy_prior}; expected more than 0 and less than 1 beside"
                f" sizes.prior_outputs {self.sizes.prior_outputs}, as the output is added to its"
                " logit."
            )
        multiplied = ("advantage_weight", "action_advantage_weight")
        for number, name in enumerate(multiplied, start=2):
            if self.sizes.prior_outputs >= number and getattr(self, name) == 0.0:
                raise ValueError(
                    f"{name} is 0.0; expected more than 0 beside sizes.prior_outputs"
                    f" {self.sizes.prior_outputs}, as output {number} multiplies it."
                )
        for name in (
            *multiplied,
            "pi_cost",
            "y_cost",
            "z_cost",
            "aux_policy_cost",
            "value_cost",
        ):
            COST.require_value(name, getattr(self, name))

    @property
    def prediction_size(self) -> int:
        """Y, the number of logits of the predictions y and z."""
        return self.sizes.prediction

    @property
    def has_predictions(self) -> bool:
        """Whether agents have the outputs y and z: the meta-network or the loss reads them."""
        return self.reads_predictions or self.y_cost > 0.0 or self.z_cost > 0.0

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output that the agent must have, per state.

        All outputs are logits, or numbers of any size: the network ends in linear layers.

        - `logits`, `[A]`: of the policy pi. The agent acts by them.
        - `y`, `[Y]`: a vector of predictions of the state. It has no predefined meaning: the rule
          says what it should be, and reads it to say so.
        - `z`, `[A, Y]`: such a vector for each action.
        - `q`, `[A, N]`: of the action value, the discounted return after each action: a categorical
          distribution over N bins (`num_bins`), evenly spaced from `-max_value` to `max_value` on
          the scale of the signed hyperbolic transform. `disco.values` makes it a number.
        - `aux_pi`, `[A, A]`: for each action, of the policy in the state that follows it.

        `Unroll` returns them as `[T+1, B, ...]`. Some rules need fewer: those that neither read nor
        learn y and z, and those that do not learn aux_pi (`has_predictions`, `aux_policy_cost`).

        Args:
          num_actions: A.

        Raises:
          ValueError: if there is no action.
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        shapes = {
            "logits": (num_actions,),
            "y": (self.prediction_size,),
            "z": (num_actions, self.prediction_size),
            "q": (num_actions, self.num_bins),
            "aux_pi": (num_actions, num_actions),
        }
        unused = {"y", "z"} if not self.has_predictions else set()
        unused |= {"aux_pi"} if self.aux_policy_cost == 0.0 else set()
        return {name: shape for name, shape in shapes.items() if name not in unused}

    def init_memory(self) -> DiscoveredMemory:
        lifetime = meta_network.initial_lifetime(self.parameters)
        dtype = lifetime.hidden.dtype
        return DiscoveredMemory(
            lifetime=lifetime,
            advantage=moments.init(dtype),
            td=moments.init(dtype),
            updates=jnp.zeros((), dtype) if self.sizes.agent_features else None,
        )

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[DiscoveredTargets, RuleState]:
        outputs, target_outputs, trajectory = self._checked(outputs, target_outputs, trajectory)
        if not self.reads_predictions:
            outputs, target_outputs = map(_without_predictions, (outputs, target_outputs))
        estimates = self.estimates(outputs, target_outputs, trajectory)
        memory: DiscoveredMemory = state.memory
        counted = trajectory.mask if self.masks_moments else None
        advantage_moments = moments.update(memory.advantage, estimates.advantage, counted)
        td_moments = moments.update(memory.td, estimates.td, counted)
        normalized_advantage = moments.normalize(advantage_moments, estimates.advantage)
        normalized_action_advantage = moments.normalize(
            advantage_moments, estimates.action_advantage
        )

        def read(values):
            return values if self.reads_values else jax.tree.map(jnp.zeros_like, values)

        raw, lifetime = meta_network.apply(
            self.sizes,
            self.parameters,
            outputs,
            target_outputs,
            read(estimates),
            read(normalized_advantage),
            read(normalized_action_advantage),
            trajectory,
            memory.lifetime,
            self._agent_features(memory.updates, read(moments.deviation(advantage_moments))),
        )
        if not self.has_lifetime:
            lifetime = memory.lifetime
        if self.normalize_advantage:
            advantages = normalized_advantage, normalized_action_advantage
        else:
            advantages = estimates.advantage, estimates.action_advantage
        prior = self._prior(raw, outputs["logits"], read(advantages), trajectory)
        targets = DiscoveredTargets(
            pi=prior + raw.pi,
            prior=raw.prior,
            y=raw.y,
            z=raw.z,
            q_target=estimates.q_target,
            q_td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=normalized_advantage,
            normalized_q_td=moments.normalize(td_moments, estimates.td, subtract_mean=False),
            summary=raw.summary,
        )
        after = DiscoveredMemory(
            lifetime=lifetime,
            advantage=advantage_moments,
            td=td_moments,
            updates=None if memory.updates is None else memory.updates + 1.0,
        )
        memory = moments.kept_if_finite(after, memory)
        return targets, RuleState(target_params=state.target_params, memory=memory)

    def _agent_features(
        self, updates: Float[Array, ""] | None, deviation: Float[Array, ""]
    ) -> tuple[Float[Array, ""], ...]:
        """Return what the meta-network reads of the agent."""
        if updates is None:
            return ()
        return meta_network.agent_features(updates, deviation)[: self.sizes.agent_features]

    def _prior(
        self,
        raw: meta_network.RawTargets,
        logits: Float[Array, "T_plus_1 B A"],
        advantages: tuple[Float[Array, "T B"], Float[Array, "T_plus_1 B A"]],
        trajectory: Trajectory,
    ) -> Float[Array, "T B A"]:
        """Return the part of the policy target that has a form.

        `advantages` are those of the actions taken, and of all actions.
        """
        advantage, action_advantage = advantages
        return policy_target(
            logits[:-1],
            advantage,
            action_advantage[:-1],
            trajectory.action,
            **self.prior_weights(raw.prior),
        )

    def prior_weights(
        self, outputs: Float[Array, "*s P"] | None
    ) -> dict[str, float | Float[Array, "*s 1"]]:
        """Return the weights of `policy_target`, by name.

        Args:
          outputs: of the meta-network's prior; None if it has none, and the weights are constants.
        """
        names = ("policy_prior", "advantage_weight", "action_advantage_weight")
        weights: dict[str, Any] = {name: getattr(self, name) for name in names}
        if outputs is None:
            return weights
        first, *others = jnp.split(outputs, self.sizes.prior_outputs, axis=-1)
        at_0 = math.log(self.policy_prior / (1.0 - self.policy_prior))
        weights[names[0]] = jax.nn.sigmoid(at_0 + first)
        for name, output in zip(names[1:], others, strict=False):
            weights[name] *= jnp.exp(output)
        return weights

    def estimates(
        self, outputs: Outputs, target_outputs: Outputs, trajectory: Trajectory
    ) -> values.ActionValueEstimates:
        """Return the returns and advantages of the batch under the online policy."""
        return values.estimates_from_outputs(
            outputs,
            target_outputs,
            trajectory,
            max_value=self.max_value,
            discount=self.discount,
            lambda_=self.lambda_,
        )

    def transition_losses(
        self, outputs: Outputs, targets: DiscoveredTargets, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        target_loss, value_loss, metrics = self.loss_terms(outputs, targets, trajectory)
        return target_loss + value_loss, metrics

    def loss_terms(
        self, outputs: Outputs, targets: DiscoveredTargets, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Float[Array, "T B"], Metrics]:
        """Return the loss terms of each transition.

        Returns:
          The weighted sum of the losses of pi, y, z and aux_pi, the weighted loss of q, and the
          metrics of both; without y and z, or aux_pi, if agents do not have these outputs.
        """
        action = trajectory.action
        log_pi = jax.nn.log_softmax(outputs["logits"])
        log_pi_target = jax.nn.log_softmax(targets.pi)
        pi_loss = kl_divergence(log_pi_target, log_pi[:-1])
        target_loss, means = self.pi_cost * pi_loss, {"pi_loss": pi_loss}
        if self.has_predictions:
            log_y = jax.nn.log_softmax(outputs["y"][:-1])
            log_z = jax.nn.log_softmax(values.output_taken(outputs, "z", action))
            means["y_loss"] = kl_divergence(jax.nn.log_softmax(targets.y), log_y)
            means["z_loss"] = kl_divergence(jax.nn.log_softmax(targets.z), log_z)
            means |= {"y_entropy": entropy(log_y), "z_entropy": entropy(log_z)}
            target_loss += self.y_cost * means["y_loss"]
            target_loss += self.z_cost * means["z_loss"]
        if self.aux_policy_cost:
            log_aux_pi = jax.nn.log_softmax(values.output_taken(outputs, "aux_pi", action))
            loss = kl_divergence(jax.lax.stop_gradient(log_pi[1:]), log_aux_pi)
            means["aux_policy_loss"] = loss * (trajectory.discount != 0).astype(loss.dtype)
            target_loss += self.aux_policy_cost * means["aux_policy_loss"]
        q_loss = values.action_value_loss(outputs, targets.q_td, action, self.max_value)
        means |= {
            "q_loss": q_loss,
            "entropy": entropy(log_pi[:-1]),
            "pi_target_entropy": entropy(log_pi_target),
            "q_target": targets.q_target,
            "td": targets.q_td,
            "normalized_td": targets.normalized_q_td,
            "advantage": targets.advantage,
        }
        if targets.prior is not None:
            means |= self.prior_weights(targets.prior)
        metrics = jax.lax.stop_gradient({name: jnp.mean(x) for name, x in means.items()})
        return target_loss, self.value_cost * q_loss, metrics


def _without_predictions(outputs: Outputs) -> Outputs:
    return {name: x for name, x in outputs.items() if name not in ("y", "z")}

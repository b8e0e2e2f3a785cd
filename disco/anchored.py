"""Our form of a discovered rule: a hand-set policy target, and what a meta-network adds to it.

The policy target is that of `disco.hand_designed_rules`, whose three weights may be outputs of the
meta-network, plus the meta-network's logits. A new rule starts as the hand-set rule.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from disco import meta_network, moments
from disco.architectures import MetaNetworkSizes, linear
from disco.checks import Cost
from disco.discovered import DiscoveredMemory, DiscoveredRule, DiscoveredTargets
from disco.hand_designed_rules import policy_target
from disco.meta_network import Inputs, LifetimeState, RawTargets
from disco.types import Metrics, Outputs, RuleState, Trajectory
from disco.values import select_action
from disco_common.pytrees import register_dataclass, static
from disco_common.ranges import Fraction

RuleT = TypeVar("RuleT", bound="AnchoredRule")

PRIOR = "trajectory/policy_prior"  # The layer whose outputs change the weights.

_LARGEST_LOG = 5.0  # Of probabilities and ratios that the prior reads.
_LARGE_LOG_AGE = 10.0  # So that the feature is about 1 after 20,000 updates.
_WEIGHTS = ("policy_prior", "advantage_weight", "action_advantage_weight")


@chex.dataclass(frozen=True)
class AnchoredTargets(DiscoveredTargets):
    """The targets of an anchored rule.

    `prior` are the outputs that change the hand-set target's weights
    (`AnchoredRule.prior_weights`), if the meta-network has them.
    """

    prior: Float[Array, "T B P"] | None = None


@chex.dataclass(frozen=True)
class AnchoredMemory(DiscoveredMemory):
    """The state of an anchored rule, with the number of updates so far, if the rule reads it."""

    updates: Float[Array, ""] | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class AnchoredRule(DiscoveredRule):
    """A rule whose policy target is a hand-set one plus the meta-network's logits.

    The target's logits are, for the agent's logits l, advantages A, the action taken a_t, and the
    meta-network's output f_η,

        π̂(a) = c (l(a) - mean l) + k A 1[a = a_t] + m A(a) + f_η(a),

    with the weights c = `policy_prior`, k = `advantage_weight`, m = `action_advantage_weight`, or
    those that outputs o of the meta-network (`sizes.prior_outputs`) make of them at each
    transition: c = sigmoid(logit `policy_prior` + o₁), k = `advantage_weight` exp(o₂),
    m = `action_advantage_weight` exp(o₃). "Prior" is the name of these weights: no distribution.

    The defaults are those with which it is the published rule. Raises ValueError if a size or
    hyper-parameter is out of range. Further fields as in `DiscoveredRule`.

    Attributes:
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
      reads_predictions: whether the meta-network reads y and z; otherwise it reads zeros, and
        agents have no y and z if their weights in the loss are 0.
      masks_moments: whether masked transitions, between two episodes, are left out of the moments
        that normalise advantages and TD errors. The published rule counts them.
    """

    policy_prior: Fraction = static(0.0)
    advantage_weight: Cost = static(0.0)
    action_advantage_weight: Cost = static(0.0)
    normalize_advantage: bool = static(True)
    reads_predictions: bool = static(True)
    masks_moments: bool = static(False)

    @classmethod
    def create(
        cls: type[RuleT],
        key: PRNGKeyArray,
        sizes: MetaNetworkSizes = MetaNetworkSizes(),
        is_published: bool = False,
        **hyper_parameters: Any,
    ) -> RuleT:
        rule = super().create(key, sizes, is_published, **hyper_parameters)
        if rule.advantage_weight == 0.0:
            return rule
        if is_published:
            raise ValueError(
                f"advantage_weight is {rule.advantage_weight}, with which the policy target starts"
                " without the meta-network; expected 0 with the release's initialisation."
            )
        names = {"trajectory/policy_target_1", PRIOR} & set(rule.parameters)
        silent = {name: jax.tree.map(jnp.zeros_like, rule.parameters[name]) for name in names}
        return dataclasses.replace(rule, parameters=rule.parameters | silent)

    def _require_form(self) -> None:
        outputs = self.sizes.prior_outputs
        if outputs and not 0.0 < self.policy_prior < 1.0:
            raise ValueError(
                f"policy_prior is {self.policy_prior}; expected more than 0 and less than 1 beside"
                f" sizes.prior_outputs {outputs}, as the output is added to its logit."
            )
        for number, name in enumerate(_WEIGHTS[1:outputs], start=2):
            if getattr(self, name) == 0.0:
                raise ValueError(
                    f"{name} is 0.0; expected more than 0 beside sizes.prior_outputs {outputs}, as"
                    f" output {number} multiplies it."
                )

    @property
    def has_predictions(self) -> bool:
        return self.reads_predictions or self.y_cost > 0.0 or self.z_cost > 0.0

    def init_memory(self) -> AnchoredMemory:
        memory = super().init_memory()
        zero = jnp.zeros((), memory.lifetime.hidden.dtype)
        return AnchoredMemory(**vars(memory), updates=zero if self.sizes.agent_features else None)

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[AnchoredTargets, RuleState]:
        memory: AnchoredMemory = state.memory
        inputs, tracked = self._inputs_and_memory(
            outputs, target_outputs, trajectory, memory, is_masked=self.masks_moments
        )
        read = self._read(inputs, tracked)
        raw, lifetime = meta_network.apply(self.sizes, self.parameters, read, memory.lifetime)
        prior = self._prior(raw, read) if self.sizes.prior_outputs else None
        pi = self._hand_set_target(prior, read) + raw.pi
        targets = AnchoredTargets.of(raw, inputs, tracked.td, pi=pi, prior=prior)
        kept = moments.kept_if_finite(self._advanced(tracked, lifetime), memory)
        return targets, RuleState(target_params=state.target_params, memory=kept)

    def _read(self, inputs: Inputs, memory: AnchoredMemory) -> Inputs:
        """Return the inputs that the meta-network and the weights of the hand-set target read."""
        read: dict[str, Any] = {}
        if not self.reads_predictions:
            for name in ("outputs", "target_outputs"):
                given: Outputs = getattr(inputs, name)
                read[name] = {x: given[x] for x in given if x not in ("y", "z")}
        if memory.updates is not None:
            of_agent = agent_features(memory.updates, moments.deviation(memory.advantage))
            read["of_agent"] = of_agent[: self.sizes.agent_features]
        return dataclasses.replace(inputs, **read)

    def _advanced(self, memory: AnchoredMemory, lifetime: LifetimeState) -> AnchoredMemory:
        """Return the memory after an update, with the lifetime RNN's new state."""
        updates = None if memory.updates is None else memory.updates + 1.0
        return dataclasses.replace(memory, lifetime=lifetime, updates=updates)

    def _hand_set_target(
        self, prior: Float[Array, "T B P"] | None, inputs: Inputs
    ) -> Float[Array, "T B A"]:
        advantage = inputs.normalized_advantage
        action_advantage = inputs.normalized_action_advantage
        if not self.normalize_advantage:
            advantage = inputs.estimates.advantage
            action_advantage = inputs.estimates.action_advantage
        return policy_target(
            inputs.outputs["logits"][:-1],
            advantage,
            action_advantage[:-1],
            inputs.trajectory.action,
            **self.prior_weights(prior),
        )

    def _prior(self, raw: RawTargets, inputs: Inputs) -> Float[Array, "T B P"]:
        """Return the outputs that change the weights of the hand-set target.

        They are linear in the LSTM's output, in the agent's numbers, and in those of the action
        taken.
        """
        action = inputs.trajectory.action
        policies = inputs.outputs["logits"], inputs.trajectory.behaviour_logits
        of_action = prior_features(
            *(select_action(jax.nn.log_softmax(logits), action) for logits in policies)
        )
        numbers = [*inputs.of_agent, *of_action[: self.sizes.prior_features]]
        columns = [jnp.broadcast_to(number, action.shape)[..., None] for number in numbers]
        return linear(self.parameters[PRIOR], jnp.concatenate([raw.embedding, *columns], axis=-1))

    def prior_weights(
        self, outputs: Float[Array, "*s P"] | None
    ) -> dict[str, float | Float[Array, "*s 1"]]:
        """Return the weights of `policy_target`, by name; constants if outputs are None."""
        weights: dict[str, Any] = {name: getattr(self, name) for name in _WEIGHTS}
        if outputs is None:
            return weights
        first, *others = jnp.split(outputs, self.sizes.prior_outputs, axis=-1)
        at_0 = math.log(self.policy_prior / (1.0 - self.policy_prior))
        weights[_WEIGHTS[0]] = jax.nn.sigmoid(at_0 + first)
        for name, output in zip(_WEIGHTS[1:], others, strict=False):
            weights[name] *= jnp.exp(output)
        return weights

    def transition_losses(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        losses, metrics = super().transition_losses(outputs, targets, trajectory)
        if targets.prior is not None:
            weights = self.prior_weights(targets.prior)
            metrics |= jax.lax.stop_gradient({name: jnp.mean(x) for name, x in weights.items()})
        return losses, metrics


FORMS: tuple[type[DiscoveredRule], ...] = (DiscoveredRule, AnchoredRule)  # The simplest first.


def form_of(
    sizes: MetaNetworkSizes,
    settings: Mapping[str, Any],
    forms: Sequence[type[DiscoveredRule]] = FORMS,
) -> tuple[type[DiscoveredRule], dict[str, Any]]:
    """Return the simplest form of a rule that has some settings, and those that are its fields.

    Each form is a subclass of the one before it. A form has a setting, a hyper-parameter by name,
    if it is a field of it, or the default of the last form.
    """
    for form in forms:
        names = {field.name for field in dataclasses.fields(form)} & set(settings)
        has_sizes = sizes.is_published or issubclass(form, AnchoredRule)
        others = set(settings) - names
        if has_sizes and all(settings[x] == getattr(forms[-1], x, None) for x in others):
            return form, {name: settings[name] for name in names}
    raise ValueError(f"No form of a rule has the hyper-parameters {sorted(settings)}.")


def agent_features(
    updates: Float[Array, "*s"], deviation: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], ...]:
    """Return what the networks may read of an agent: its age, and the scale of its advantages.

    Returns:
      log(1 + updates), scaled, and the decimal logarithm of the deviation, which is at least 1e-3.
    """
    return jnp.log1p(updates) / _LARGE_LOG_AGE, jnp.log10(jnp.maximum(deviation, 1e-3))


def prior_features(
    log_probability: Float[Array, "*s"], behaviour: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], ...]:
    """Return what the outputs of the prior may read of an action taken; no gradient flows.

    A weight of the first one makes a weight of advantages a power of the action's probability: the
    derivative of the KL divergence from a target whose logit of the action is raised by k A is,
    for small k A, k A times the probability, where that of a policy gradient is A; a weight of -1
    makes up for it. One of the second makes it a power of the ratio, as the drifts of mirror
    learning are functions of it (Lu et al. 2022, arXiv 2210.05639).

    Returns:
      The logarithms of the probability and of the ratio, from -5 and from -5 to 5.
    """
    ratio = jnp.clip(log_probability - behaviour, -_LARGEST_LOG, _LARGEST_LOG)
    return jax.lax.stop_gradient((jnp.maximum(log_probability, -_LARGEST_LOG), ratio))

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
from disco.moments import Moments
from disco.types import Metrics, Outputs, RuleState, Trajectory
from disco.values import entropy, select_action
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
    """The state of an anchored rule, with what it reads of the agent's progress.

    Attributes:
      updates: so far.
      rewards: moments of rewards.
      arrived: moments of whether a reward is not 0.
      recent: moving mean of rewards of about the last ten batches.
    """

    updates: Float[Array, ""] | None = None
    rewards: Moments | None = None
    arrived: Moments | None = None
    recent: Float[Array, ""] | None = None


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
        dtype, number = memory.lifetime.hidden.dtype, self.sizes.agent_features
        zero = jnp.zeros((), dtype)
        own: dict[str, Any] = {"updates": zero} if number else {}
        if number > len(_WITHOUT_REWARDS):
            own |= {name: moments.init(dtype) for name in ("rewards", "arrived")}
            own |= {"recent": zero}
        return AnchoredMemory(**vars(memory), **own)

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[AnchoredTargets, RuleState]:
        memory: AnchoredMemory = state.memory
        inputs, tracked = self.inputs_and_memory(outputs, target_outputs, trajectory, memory)
        read = self.read(inputs, tracked)
        raw, prior, lifetime = self.computed(read, tracked)
        pi = self._hand_set_target(prior, read) + raw.pi
        targets = AnchoredTargets.of(raw, inputs, tracked.td, pi=pi, prior=prior)
        kept = moments.kept_if_finite(self._advanced(tracked, lifetime), memory)
        return targets, RuleState(target_params=state.target_params, memory=kept)

    def inputs_and_memory(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        memory: AnchoredMemory,
    ) -> tuple[Inputs, AnchoredMemory]:
        """Return the inputs before any is hidden (`read`), and the memory with this batch's."""
        inputs, tracked = self._inputs_and_memory(
            outputs, target_outputs, trajectory, memory, is_masked=self.masks_moments
        )
        return inputs, _with_rewards(tracked, inputs.trajectory)

    def read(self, inputs: Inputs, memory: AnchoredMemory) -> Inputs:
        """Return the inputs that the meta-network and the weights of the hand-set target read."""
        read: dict[str, Any] = {}
        if not self.reads_predictions:
            for name in ("outputs", "target_outputs"):
                given: Outputs = getattr(inputs, name)
                read[name] = {x: given[x] for x in given if x not in ("y", "z")}
        if memory.updates is not None:
            of_agent = agent_features(memory, inputs)
            read["of_agent"] = of_agent[: self.sizes.agent_features]
        return dataclasses.replace(inputs, **read)

    def computed(
        self, inputs: Inputs, memory: AnchoredMemory
    ) -> tuple[RawTargets, Float[Array, "T B P"] | None, LifetimeState]:
        """Return what the meta-network computes of `read` inputs, and the lifetime RNN's state.

        These are f_η and the targets of y and z, and the outputs o that change the hand-set
        target's weights, None if `sizes.prior_outputs` is 0.
        """
        raw, lifetime = meta_network.apply(self.sizes, self.parameters, inputs, memory.lifetime)
        prior = self._prior(raw, inputs) if self.sizes.prior_outputs else None
        return raw, prior, lifetime

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
        numbers = [*inputs.of_agent, *features_of_taken(inputs)[: self.sizes.prior_features]]
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

    def step(self, targets: AnchoredTargets) -> Float[Array, ""] | None:
        if self.sizes.prior_outputs < len(_WEIGHTS) + 1:
            return None
        assert targets.prior is not None
        mean = jnp.mean(targets.prior[..., len(_WEIGHTS)])
        return jnp.exp(jnp.clip(mean, -_LARGEST_LOG, _LARGEST_LOG))

    def transition_losses(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        losses, metrics = super().transition_losses(outputs, targets, trajectory)
        if targets.prior is not None:
            weights = self.prior_weights(targets.prior)
            metrics |= jax.lax.stop_gradient({name: jnp.mean(x) for name, x in weights.items()})
            if (step := self.step(targets)) is not None:
                metrics["step"] = jax.lax.stop_gradient(step)
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


AGENT_FEATURES = ("age", "advantages", "entropy", "errors", "arrivals", "trend", "signal")
_WITHOUT_REWARDS = AGENT_FEATURES[:4]
_RECENT = 0.9  # Decay of the mean of recent rewards.


def _with_rewards(memory: AnchoredMemory, trajectory: Trajectory) -> AnchoredMemory:
    """Return the memory after the rewards of a batch, if the rule reads them."""
    if memory.rewards is None or memory.arrived is None or memory.recent is None:
        return memory
    dtype, mask = memory.recent.dtype, trajectory.mask
    reward = trajectory.reward.astype(dtype)
    number = jnp.maximum(jnp.sum(mask.astype(dtype)), 1.0)
    mean = jnp.sum(jnp.where(mask, reward, 0.0)) / number
    return dataclasses.replace(
        memory,
        rewards=moments.update(memory.rewards, reward, mask),
        arrived=moments.update(memory.arrived, (reward != 0).astype(dtype), mask),
        recent=jax.lax.stop_gradient(_RECENT * memory.recent + (1.0 - _RECENT) * mean),
    )


def agent_features(memory: AnchoredMemory, inputs: Inputs) -> tuple[Float[Array, ""], ...]:
    """Return what the networks may read of an agent's progress; no gradient flows.

    Returns:
      By `AGENT_FEATURES`: log(1 + updates), scaled; the decimal logarithm of the deviation of
      advantages, at least 1e-3; the policy's mean entropy by the largest there is; the decimal
      logarithm of the errors of values by the deviation of advantages, from -2 to 2; that of the
      part of rewards that are not 0, at least 1e-3; the mean of recent rewards minus that of the
      last hundred batches, by their root mean square; and the decimal logarithm of the advantages
      of the actions taken by the action value, by the deviation of those by returns, from -2 to 1:
      small where returns are mostly noise. The last three only if rewards' moments are kept.
    """
    assert memory.updates is not None
    logits, action = inputs.outputs["logits"][:-1], inputs.trajectory.action
    deviation = moments.deviation(memory.advantage)
    log_policy = jax.nn.log_softmax(logits)
    legal = jnp.sum((logits != -jnp.inf).astype(logits.dtype), axis=-1)
    part = entropy(log_policy) / jnp.log(jnp.maximum(legal, 2.0))
    errors = moments.root_mean_square(memory.td) / jnp.maximum(deviation, 1e-3)
    features = [
        jnp.log1p(memory.updates) / _LARGE_LOG_AGE,
        jnp.log10(jnp.maximum(deviation, 1e-3)),
        jnp.mean(part),
        jnp.clip(jnp.log10(jnp.maximum(errors, 1e-3)), -2.0, 2.0),
    ]
    if memory.rewards is not None and memory.arrived is not None and memory.recent is not None:
        size = moments.root_mean_square(memory.rewards)
        recent = memory.recent / (1.0 - _RECENT ** (memory.updates + 1.0))
        by_value = select_action(inputs.estimates.action_advantage, action)
        signal = jnp.sqrt(jnp.mean(jnp.square(by_value))) / jnp.maximum(deviation, 1e-3)
        features += [
            jnp.log10(jnp.maximum(moments.mean(memory.arrived), 1e-3)),
            (recent - moments.mean(memory.rewards)) / (size + 1e-6),
            jnp.clip(jnp.log10(jnp.maximum(signal, 1e-2)), -2.0, 1.0),
        ]
    return tuple(jax.lax.stop_gradient(x) for x in features)


def features_of_taken(inputs: Inputs) -> tuple[Float[Array, "T B"], ...]:
    """Return the `prior_features` of the actions taken."""
    action = inputs.trajectory.action
    policies = inputs.outputs["logits"], inputs.trajectory.behaviour_logits
    log_pi, log_mu = (select_action(jax.nn.log_softmax(x), action) for x in policies)
    return prior_features(log_pi, log_mu, inputs.normalized_advantage)


def prior_features(
    log_probability: Float[Array, "*s"],
    behaviour: Float[Array, "*s"],
    normalized_advantage: Float[Array, "*s"],
) -> tuple[Float[Array, "*s"], ...]:
    """Return what the outputs of the prior may read of an action taken; no gradient flows.

    A weight of the first one makes a weight of advantages a power of the action's probability: the
    derivative of the KL divergence from a target whose logit of the action is raised by k A is,
    for small k A, k A times the probability, where that of a policy gradient is A; a weight of -1
    makes up for it. One of the second makes it a power of the ratio, as the drifts of mirror
    learning are functions of it (Lu et al. 2022, arXiv 2210.05639). One of the third lets what is
    better than expected weigh more, or less, than what is worse.

    Returns:
      The logarithms of the probability and of the ratio, from -5 and from -5 to 5, and a third of
      the normalised advantage, from -1 to 1.
    """
    ratio = jnp.clip(log_probability - behaviour, -_LARGEST_LOG, _LARGEST_LOG)
    advantage = jnp.clip(normalized_advantage / 3.0, -1.0, 1.0)
    return jax.lax.stop_gradient((jnp.maximum(log_probability, -_LARGEST_LOG), ratio, advantage))

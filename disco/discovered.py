"""The published rule: a meta-network computes the targets (DiscoRL, Oh et al., Nature 2025).

The agent predicts a policy, two vectors y(s) and z(s, a) without predefined meaning, an action
value q, and the policy one step later (aux_pi). The meta-network computes the targets of pi, y
and z; those of q and aux_pi are predefined.
"""

import dataclasses
from typing import Annotated, Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from disco import meta_network, moments, values
from disco.architectures import MetaNetworkSizes
from disco.checks import Cost, MaxValue, OutputShapes, odd_number
from disco.meta_network import Inputs, LifetimeState, RawTargets
from disco.moments import Moments
from disco.rule import Rule
from disco.types import Metrics, Outputs, RuleState, Trajectory
from disco.values import entropy, kl_divergence
from disco_common.pytrees import register_dataclass, static
from disco_common.ranges import AT_LEAST_1, Fraction, require_ranges

TargetsT = TypeVar("TargetsT", bound="DiscoveredTargets")
RuleT = TypeVar("RuleT", bound="DiscoveredRule")
MemoryT = TypeVar("MemoryT", bound="DiscoveredMemory")


@chex.dataclass(frozen=True)
class DiscoveredMemory:
    """The state over an agent's lifetime: the RNN's, moments of advantages and of TD errors."""

    lifetime: LifetimeState
    advantage: Moments
    td: Moments


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

    @classmethod
    def of(
        cls: type[TargetsT], raw: RawTargets, inputs: Inputs, td: Moments, **own: Any
    ) -> TargetsT:
        """Return the targets of a batch, with `pi`; `td` are the moments after it."""
        estimates = inputs.estimates
        return cls(
            y=raw.y,
            z=raw.z,
            q_target=estimates.q_target,
            q_td=estimates.td,
            advantage=estimates.advantage,
            normalized_advantage=inputs.normalized_advantage,
            normalized_q_td=moments.normalize(td, estimates.td, subtract_mean=False),
            summary=raw.summary,
            **own,
        )


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
      pi_cost, y_cost, z_cost, aux_policy_cost, value_cost: weights of the loss's terms. Agents have
        no aux_pi if its weight is 0.
    """

    # JAX rebuilds rules with leaves that are not arrays.
    parameters: PyTree[Any] = dataclasses.field(repr=False)
    sizes: MetaNetworkSizes = static(MetaNetworkSizes())
    num_bins: Annotated[int, odd_number(at_least=3)] = static(601)
    max_value: MaxValue = static(300.0)
    discount: Fraction = static(0.997)
    lambda_: Fraction = static(0.95)
    # Narrower than in `Rule`, which is sound because fields of frozen dataclasses are not assigned.
    target_params_coefficient: Fraction = static(0.9)  # pyright: ignore[reportIncompatibleVariableOverride]
    pi_cost: Cost = static(1.0)
    y_cost: Cost = static(1.0)
    z_cost: Cost = static(1.0)
    aux_policy_cost: Cost = static(1.0)
    value_cost: Cost = static(0.2)

    @classmethod
    def create(
        cls: type[RuleT],
        key: PRNGKeyArray,
        sizes: MetaNetworkSizes = MetaNetworkSizes(),
        is_published: bool = False,
        **hyper_parameters: Any,
    ) -> RuleT:
        """Return a random rule, to start a discovery from.

        With `is_published`, it is initialised as in the authors' release (`meta_network.init`).
        Raises ValueError if a size or hyper-parameter is out of range, or the release has no such
        rule.
        """
        rule = cls(parameters={}, sizes=sizes, **hyper_parameters)
        parameters = meta_network.init(key, sizes, is_published=is_published)
        return dataclasses.replace(rule, parameters=parameters)

    def __post_init__(self):
        self._require_form()
        require_ranges(self)

    def _require_form(self) -> None:
        """Refuse sizes that the rule's form does not have."""
        if not self.sizes.is_published:
            raise ValueError(
                "sizes has agent_features, prior_outputs or prior_features above 0, which the"
                " published rule has not; expected 0, or disco.AnchoredRule."
            )

    @property
    def has_predictions(self) -> bool:
        """Whether agents have the outputs y and z: the meta-network or the loss reads them."""
        return True

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output that the agent must have, per state.

        All outputs are logits, or numbers of any size: the network ends in linear layers.

        - `logits`, `[A]`: of the policy pi. The agent acts by them.
        - `y`, `[Y]`: predictions of the state without predefined meaning: the rule says what they
          should be, and reads them to say so.
        - `z`, `[A, Y]`: such a vector for each action.
        - `q`, `[A, N]`: of the action value, the discounted return after each action: a categorical
          distribution over N bins (`num_bins`), evenly spaced from `-max_value` to `max_value` on
          the scale of the signed hyperbolic transform. `disco.values` makes it a number.
        - `aux_pi`, `[A, A]`: for each action, of the policy in the state that follows it.

        `Unroll` returns them as `[T+1, B, ...]`. Some rules need fewer: those that do not learn
        aux_pi (`aux_policy_cost`), and ours that neither read nor learn y and z (`AnchoredRule`).
        """
        AT_LEAST_1.require_value("num_actions", num_actions)
        shapes = {
            "logits": (num_actions,),
            "y": (self.sizes.prediction,),
            "z": (num_actions, self.sizes.prediction),
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
            lifetime=lifetime, advantage=moments.init(dtype), td=moments.init(dtype)
        )

    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[DiscoveredTargets, RuleState]:
        memory: DiscoveredMemory = state.memory
        inputs, tracked = self._inputs_and_memory(outputs, target_outputs, trajectory, memory)
        raw, lifetime = meta_network.apply(self.sizes, self.parameters, inputs, memory.lifetime)
        is_legal = inputs.outputs["logits"][:-1] != -jnp.inf
        pi = jnp.where(is_legal, jnp.zeros_like(raw.pi), -jnp.inf) + raw.pi
        targets = DiscoveredTargets.of(raw, inputs, tracked.td, pi=pi)
        after = dataclasses.replace(tracked, lifetime=lifetime)
        after = moments.kept_if_finite(after, memory)
        return targets, RuleState(target_params=state.target_params, memory=after)

    def _inputs_and_memory(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        memory: MemoryT,
        *,
        is_masked: bool = False,
    ) -> tuple[Inputs, MemoryT]:
        """Return what the meta-network reads, and the memory with the moments of this batch.

        If `is_masked`, the moments leave out masked transitions.
        """
        outputs, target_outputs, trajectory = self._checked(outputs, target_outputs, trajectory)
        estimates = values.estimates_from_outputs(outputs, target_outputs, trajectory, self)
        counted = trajectory.mask if is_masked else None
        tracked = dataclasses.replace(
            memory,
            advantage=moments.update(memory.advantage, estimates.advantage, counted),
            td=moments.update(memory.td, estimates.td, counted),
        )
        inputs = Inputs(
            outputs=outputs,
            target_outputs=target_outputs,
            trajectory=trajectory,
            estimates=estimates,
            normalized_advantage=moments.normalize(tracked.advantage, estimates.advantage),
            normalized_action_advantage=moments.normalize(
                tracked.advantage, estimates.action_advantage
            ),
        )
        return inputs, tracked

    def transition_losses(
        self, outputs: Outputs, targets: DiscoveredTargets, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        """Return the loss of each transition, and metrics.

        With targets π̂, ŷ, ẑ and q's target G, the weights c (`pi_cost` and so on), and those terms
        only that agents have (Methods, "Agent update"):

            c_π KL(π̂ ‖ π) + c_y KL(ŷ ‖ y) + c_z KL(ẑ ‖ z_a) + c_aux KL(π(s') ‖ aux_π_a)

        plus c_q times the cross-entropy of h(G) and q_a (`values.action_value_loss`).
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
        metrics = jax.lax.stop_gradient({name: jnp.mean(x) for name, x in means.items()})
        return target_loss + self.value_cost * q_loss, metrics

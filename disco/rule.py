"""An update rule: what it asks of an agent, its loss, and its learning gradient.

The algorithm, for one agent update:

1. unroll the agent's network, and its target network, over a batch of trajectories;
2. the rule maps outputs, rewards and terminations to *targets*;
3. the loss measures the outputs' distance from the targets, which count as constants;
4. its gradient with respect to the outputs is pulled back to the parameters.

`Rule.loss` offers steps 1-3 to anyone who differentiates himself, `Rule.gradient` all four.
The second can itself be differentiated, with respect to the rule and to all else that it
read, and that is what discovery does. See `_gradient_pullback` for how.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from disco.checks import OutputShapes, check_outputs, check_state, check_trajectory
from disco.types import Aux, Metrics, Outputs, Params, RuleState, Trajectory, Unroll, taken
from disco.values import output_taken

RuleT = TypeVar("RuleT", bound="Rule")


@chex.dataclass(frozen=True)
class Remembered:
    """What of an update must be kept to differentiate it later without computing it again.

    Attributes:
      gradients: as `Rule.gradient` returned them.
      targets: `aux.targets`.
      memory: `aux.state.memory`.
    """

    gradients: Params
    targets: PyTree[Array]
    memory: PyTree[Array]


class Rule(abc.ABC):
    """An update rule: a pytree whose leaves are its meta-parameters.

    Subclasses are frozen dataclasses registered with JAX; sizes and hyper-parameters are
    static fields.
    """

    target_params_coefficient: float | None = None
    """Weight of the old target parameters in their moving average; None for no target network."""

    @abc.abstractmethod
    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Shape of each output that the agent must have, per state.

        Outputs of rank 2 have one row per action and are to be computed from the state and
        that action; the others from the state alone.
        """

    @abc.abstractmethod
    def init_memory(self) -> Any:
        """The rule's own part of a new agent's `RuleState`."""

    @abc.abstractmethod
    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[Any, RuleState]:
        """What the outputs shall become, and the state after this batch.

        Args:
          outputs: of the agent, each `[T+1, B, ...]`.
          target_outputs: of the target network on the same states; None for a rule that has
            no target network.
          trajectory: the batch.
          state: of the agent's lifetime. Its target parameters are handed on as they are.

        Raises:
          ValueError: if an output or a field of the trajectory is missing or misshapen.
        """

    @abc.abstractmethod
    def transition_losses(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        """Each transition's loss, masked or not, with the targets as constants.

        Of the outputs per action it looks at those of the actions taken only, which it gets by
        `disco.values.output_taken`: `outputs` need not have the others.
        """

    def init(self, params: Params) -> RuleState:
        """The state of a newborn agent: its target network equals itself."""
        has_target = self.target_params_coefficient is not None
        # A copy, so that a caller may donate parameters and state to one jitted function.
        target_params = jax.tree.map(jnp.array, params) if has_target else None
        return RuleState(target_params=target_params, memory=self.init_memory())

    def output_loss(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, ""], Metrics]:
        """Mean loss of the unmasked transitions; 0 if there are none."""
        losses, metrics = self.transition_losses(outputs, targets, trajectory)
        mask = trajectory.mask.astype(losses.dtype)
        loss = jnp.sum(mask * losses) / (jnp.sum(mask) + 1e-8)
        return loss, metrics | {"loss": loss}

    def loss(
        self, params: Params, state: RuleState, trajectory: Trajectory, unroll: Unroll
    ) -> tuple[Float[Array, ""], Aux]:
        """The loss to differentiate with respect to `params`.

        Targets are constants in it, so it says nothing of how the rule is to change:
        differentiating it with respect to the rule is refused. `gradient` is for that.

        Args:
          params: the agent's.
          state: from `init`, or the last update's `aux.state`.
          trajectory: the batch to learn from.
          unroll: the agent's network.

        Raises:
          ValueError: if an output is missing, or a shape or dtype does not fit, naming it; if the
            state is not of this rule. Numbers out of range are not noticed (`check_values`).
          TypeError: if it is differentiated with respect to the rule.
        """
        self._check_state(state, params)
        rule = _constant(self)
        looked_at, outputs = self._unroll(unroll, params, trajectory)
        target_outputs = self._target_outputs(unroll, state.target_params, trajectory)
        targets, new_state = jax.lax.stop_gradient(
            rule.targets(jax.lax.stop_gradient(outputs), target_outputs, trajectory, state)
        )
        loss, metrics = self.output_loss(looked_at, targets, trajectory)
        new_state = self._track(new_state, jax.lax.stop_gradient(params))
        return loss, Aux(state=new_state, targets=targets, metrics=metrics)

    def gradient(
        self, params: Params, state: RuleState, trajectory: Trajectory, unroll: Unroll
    ) -> tuple[Params, Aux]:
        """The gradient of `loss`, by one forward pass of each network and one backward pass.

        Unlike `jax.grad(rule.loss)` it can be differentiated with respect to the rule, the
        parameters and the state: for the outer derivative targets are not constants.
        Arguments and errors are those of `loss`; `unroll` must support forward-mode derivatives
        if this is differentiated.

        A meta-gradient goes through the optimiser, too. Adam divides by the square root of a
        moment, whose derivative is infinite where a gradient is 0, as a newborn agent's often are:
        with `optax.adam(rate)` the meta-gradient is NaN in all leaves, with
        `optax.adam(rate, eps_root=1e-8)` it is not (`examples/meta_gradient.py`).
        """
        self._check_state(state, params)
        gradients, targets, memory, metrics = _gradient(
            unroll, self, params, state.target_params, state.memory, trajectory
        )
        new_state = RuleState(target_params=state.target_params, memory=memory)
        new_state = self._track(new_state, params)
        return gradients, Aux(state=new_state, targets=targets, metrics=metrics)

    def recall(
        self,
        params: Params,
        state: RuleState,
        trajectory: Trajectory,
        unroll: Unroll,
        remembered: "Remembered",
    ) -> tuple[Params, Aux]:
        """What `gradient` returned for these arguments, from memory, with its derivatives.

        Nothing is computed again, until it is differentiated. So the K updates that a
        meta-gradient flows through can be lived once (acting in between, even outside JAX),
        and pulled back later from what was remembered of each.
        """
        gradients, targets, memory = _recalled(
            unroll,
            self,
            params,
            state.target_params,
            state.memory,
            trajectory,
            (remembered.gradients, remembered.targets, remembered.memory),
        )
        new_state = RuleState(target_params=state.target_params, memory=memory)
        new_state = self._track(new_state, params)
        return gradients, Aux(state=new_state, targets=targets, metrics={})

    def _track(self, state: RuleState, params: Params) -> RuleState:
        """Moves the target network towards the parameters from before the update."""
        old = self.target_params_coefficient
        if old is None:
            return state
        average = jax.tree.map(lambda t, p: old * t + (1.0 - old) * p, state.target_params, params)
        return dataclasses.replace(state, target_params=average)

    def _check_state(self, state: RuleState, params: Params) -> None:
        has_target = self.target_params_coefficient is not None
        check_state(state, params, self.init_memory, has_target)

    def _unroll(
        self, unroll: Unroll, params: Params, trajectory: Trajectory
    ) -> tuple[Outputs, Outputs]:
        """The outputs that the loss looks at, and those that the targets are made from."""
        shapes = self.output_shapes(check_trajectory(trajectory))
        outputs = check_outputs(unroll(params, trajectory), shapes, trajectory)
        looked_at = {}
        for name, shape in shapes.items():
            if len(shape) == 1:
                looked_at[name] = outputs[name]
            else:
                looked_at[taken(name)] = output_taken(outputs, name, trajectory.action)
        return looked_at, {name: outputs[name] for name in shapes}

    def _target_outputs(
        self, unroll: Unroll, target_params: Params | None, trajectory: Trajectory
    ) -> Outputs | None:
        if self.target_params_coefficient is None:
            return None
        return self._unroll(unroll, target_params, trajectory)[1]


@jax.custom_jvp
def _constant(rule: RuleT) -> RuleT:
    """The rule, not to be differentiated."""
    return rule


@_constant.defjvp
def _refuse_derivative(primals, tangents):
    raise TypeError(
        "rule.loss is differentiated with respect to the rule. Its targets are constants, so that"
        " the derivative would be 0; expected rule.gradient, which has one with respect to the"
        " rule, in place of jax.grad(rule.loss)."
    )


def _directions_to_outputs(rule: Rule, outputs: Outputs, targets: Any, trajectory: Trajectory):
    """The output loss's gradient with respect to (outputs, targets), and its metrics."""
    return jax.grad(rule.output_loss, argnums=(0, 1), has_aux=True)(outputs, targets, trajectory)


def _custom_vjp(function: Callable[..., Any]) -> Any:
    """`jax.custom_vjp` for a function whose first argument is the network."""
    return jax.custom_vjp(function, nondiff_argnums=(0,))


@_custom_vjp
def _gradient(unroll, rule: Rule, params, target_params, memory, trajectory: Trajectory):
    """Steps 1-4 of the module's algorithm: (gradients, targets, new memory, metrics)."""
    looked_at, pull_back, outputs = jax.vjp(
        lambda p: rule._unroll(unroll, p, trajectory), params, has_aux=True
    )
    target_outputs = rule._target_outputs(unroll, target_params, trajectory)
    state = RuleState(target_params=None, memory=memory)
    targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
    (output_gradient, _), metrics = _directions_to_outputs(rule, looked_at, targets, trajectory)
    (gradients,) = pull_back(output_gradient)
    return gradients, targets, new_state.memory, metrics


def _gradient_forward(unroll, rule, params, target_params, memory, trajectory):
    inputs = (rule, params, target_params, memory, trajectory)
    return _gradient(unroll, *inputs), inputs


def _gradient_pullback(unroll, inputs, cotangents):
    """The second-order product of a meta-gradient, in mixed mode (MixFlow-MG, 2505.00793).

    Let o(p) be the outputs, t the targets, l(o, t) the loss and g = J(p)^T dl/do its gradient,
    J = do/dp. The cotangent v of g contracts it to one number, the derivative of the loss
    along v:

        <v, g> = <do, dl/do(o, t)>,  do = J v,

    and what is wanted is that number's gradient. One dual forward pass yields (o, do). Then:

    - with respect to the targets it is the derivative of dl/dt along do; joined with the
      targets' other cotangents, it is pulled back through the rule, to the meta-parameters
      and (through what the rule reads) to the outputs, say w;
    - with respect to the parameters it is J^T (derivative of dl/do along do) + (D_v J)^T dl/do.
      Because second derivatives commute, that and J^T w are together one backward pass
      through the dual forward pass, with cotangents (derivative + w) for o and dl/do for do.

    The loss looks at the actions taken only, and so do l's derivatives and the dual numbers;
    what the rule reads, and w, are of all actions.

    So, whatever the network, the cost is one forward and one backward pass of it in dual
    numbers, plus the target network's, and nothing of a previous pass is kept in memory.
    """
    rule, params, target_params, memory, trajectory = inputs
    direction, targets_cotangent, memory_cotangent = cotangents

    def dual(rule, params, target_params, memory):
        looked_at, looked_at_dot, outputs = jax.jvp(
            lambda p: rule._unroll(unroll, p, trajectory), (params,), (direction,), has_aux=True
        )
        target_outputs = rule._target_outputs(unroll, target_params, trajectory)
        state = RuleState(target_params=None, memory=memory)
        targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
        return looked_at, looked_at_dot, targets, new_state.memory

    (looked_at, looked_at_dot, targets, _), pull_back = jax.vjp(
        dual, rule, params, target_params, memory
    )
    (output_gradient, _), (output_gradient_dot, targets_gradient_dot) = jax.jvp(
        lambda o: _directions_to_outputs(rule, o, targets, trajectory)[0],
        (looked_at,),
        (looked_at_dot,),
    )
    targets_cotangent = jax.tree.map(jnp.add, targets_cotangent, targets_gradient_dot)
    return pull_back((output_gradient_dot, output_gradient, targets_cotangent, memory_cotangent))


@_custom_vjp
def _recalled(unroll, rule, params, target_params, memory, trajectory, remembered):
    """`_gradient`, whose results are known."""
    return remembered


_gradient.defvjp(
    _gradient_forward,
    lambda unroll, inputs, bars: (*_gradient_pullback(unroll, inputs, bars[:3]), None),
)
_recalled.defvjp(
    lambda unroll, *args: (args[-1], args[:-1]),
    lambda unroll, inputs, bars: (*_gradient_pullback(unroll, inputs, bars), None, None),
)

"""The interface of update rules: an agent's outputs, their targets, the loss and its gradient.

The algorithm, for one agent update:

1. unroll the agent's network, and its target network, over a batch of trajectories;
2. the rule maps outputs, rewards and terminations to *targets*;
3. the loss measures the distance of the outputs from the targets, which are constants in it;
4. its gradient with respect to the outputs is pulled back to the parameters.

`Rule.loss` makes steps 1 to 3, for callers of `jax.grad`; `Rule.gradient` makes all four.
`Rule.gradient` can itself be differentiated with respect to the rule, the parameters and the
state, for the meta-gradient of discovery. `_gradient_pullback` explains how.
"""

import abc
import dataclasses
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from disco.checks import OutputShapes, check_outputs, check_state, check_trajectory
from disco.types import (
    Aux,
    Metrics,
    Outputs,
    Params,
    RuleState,
    Trajectory,
    Unroll,
    taken,
    without_masked_damage,
)
from disco.values import output_taken

RuleT = TypeVar("RuleT", bound="Rule")


@chex.dataclass(frozen=True)
class UpdateResiduals:
    """The results of an update that `Rule.gradient_from_residuals` needs to differentiate it later.

    They are what `Rule.gradient` returned: the gradient, `aux.targets` and `aux.state.memory`.
    """

    gradients: Params
    targets: PyTree[Array]
    memory: PyTree[Array]


class Rule(abc.ABC):
    """An update rule: a pytree whose leaves are its meta-parameters.

    Subclasses are frozen dataclasses, registered by `disco_common.pytrees.register_dataclass`.
    Sizes and hyper-parameters are static fields.
    """

    target_params_coefficient: float | None = None
    """Weight of the old target parameters in their moving average; None for no target network."""

    @abc.abstractmethod
    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output that the agent must have, per state.

        It is without the axes `[T+1, B]` that `unroll` puts in front. Outputs of rank 2 have one
        row for each of the A actions, computed from the state and that action. The others are
        computed from the state alone. The rule's own method says what each output means.

        Raises:
          ValueError: if there is no action.
        """

    @abc.abstractmethod
    def init_memory(self) -> Any:
        """Return the rule's own part of the `RuleState` of an initial agent."""

    @abc.abstractmethod
    def targets(
        self,
        outputs: Outputs,
        target_outputs: Outputs | None,
        trajectory: Trajectory,
        state: RuleState,
    ) -> tuple[Any, RuleState]:
        """Return the targets of the outputs, and the state after this batch.

        Args:
          outputs: of the agent, each `[T+1, B, ...]`.
          target_outputs: likewise, of the target network; None for a rule without one.
          trajectory: the batch.
          state: of the agent's lifetime. Its target parameters are returned unchanged.

        Raises:
          ValueError: if an output or a field of the trajectory is missing or misshapen.
        """

    @abc.abstractmethod
    def transition_losses(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        """Return the loss of each transition, masked or not, with the targets as constants.

        Of outputs per action it reads only those taken, by `disco.values.output_taken`; `outputs`
        need not have the others.
        """

    def step(self, targets: Any) -> Float[Array, ""] | None:
        """Return the factor of the optimiser's step that the rule asks for; None for 1."""
        del targets
        return None

    def init(self, params: Params) -> RuleState:
        """Return the state of an initial agent, whose target network has the agent's parameters."""
        # A copy, so that a caller may donate parameters and state to one jitted function.
        target_params = jax.tree.map(jnp.array, params) if self._has_target_network else None
        return RuleState(target_params=target_params, memory=self.init_memory())

    @property
    def _has_target_network(self) -> bool:
        return self.target_params_coefficient is not None

    def output_loss(
        self, outputs: Outputs, targets: Any, trajectory: Trajectory
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the mean loss of the unmasked transitions, 0 if there are none, and metrics."""
        losses, metrics = self.transition_losses(outputs, targets, trajectory)
        mask = trajectory.mask.astype(losses.dtype)
        loss = jnp.sum(mask * losses) / (jnp.sum(mask) + 1e-8)
        return loss, metrics | {"loss": loss}

    def loss(
        self, params: Params, state: RuleState, trajectory: Trajectory, unroll: Unroll
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the loss to differentiate with respect to `params`.

        The targets are constants in it, so that a meta-gradient by `jax.grad` through
        `jax.grad(rule.loss)`, which is a derivative with respect to the rule, would be 0. Computing
        it raises an error instead; `gradient` supports it, and through `optax.adam` the
        meta-gradient is NaN unless `eps_root` is set (see `gradient`).

        Args:
          params: of the agent.
          state: from `init`, or the `aux.state` of the last update.
          trajectory: the batch to learn from.
          unroll: the agent's network.

        Raises:
          ValueError: if an output is missing, or a shape or dtype does not fit, naming it; if the
            state is not of this rule. Values out of range are not checked (see `check_values`).
          TypeError: if it is differentiated with respect to the rule.
        """
        check_state(state, params, self.init_memory, self._has_target_network)
        rule = _constant(self)
        loss_outputs, outputs = self._unroll(unroll, params, trajectory)
        target_outputs = self._target_outputs(unroll, state.target_params, trajectory)
        targets, new_state = jax.lax.stop_gradient(
            rule.targets(jax.lax.stop_gradient(outputs), target_outputs, trajectory, state)
        )
        loss, metrics = self.output_loss(loss_outputs, targets, trajectory)
        new_state = self._move_target_params(new_state, jax.lax.stop_gradient(params))
        return loss, Aux(state=new_state, targets=targets, metrics=metrics, step=rule.step(targets))

    def gradient(
        self, params: Params, state: RuleState, trajectory: Trajectory, unroll: Unroll
    ) -> tuple[Params, Aux]:
        """Return the gradient of `loss`, by one forward pass of each network and one backward pass.

        It can be differentiated with respect to the rule, the parameters and the state: in the
        outer derivative the targets are not constants. `jax.grad` through `jax.grad(rule.loss)`
        would be 0 with respect to the rule, and raises an error. Arguments and other errors are
        those of `loss`. To be differentiated, `unroll` must support forward-mode derivatives.

        A meta-gradient flows through the optimiser, too. Adam divides by the square root of a
        moment, whose derivative is infinite where a gradient is 0, which is common at
        initialisation: with `optax.adam(rate)` all leaves of the meta-gradient are NaN, with
        `optax.adam(rate, eps_root=1e-8)` they are not (`examples/meta_gradient.py`).
        """
        check_state(state, params, self.init_memory, self._has_target_network)
        return self._gradient_and_aux(params, state, trajectory, unroll)

    def gradient_from_residuals(
        self,
        params: Params,
        state: RuleState,
        trajectory: Trajectory,
        unroll: Unroll,
        residuals: UpdateResiduals,
    ) -> tuple[Params, Aux]:
        """Return what `gradient` returned for these arguments but its metrics, with derivatives.

        Nothing is recomputed until it is differentiated. So the K updates that a meta-gradient
        flows through can run first, with acting in between, also outside JAX.
        """
        return self._gradient_and_aux(params, state, trajectory, unroll, residuals)

    def _gradient_and_aux(
        self,
        params: Params,
        state: RuleState,
        trajectory: Trajectory,
        unroll: Unroll,
        residuals: UpdateResiduals | None = None,
    ) -> tuple[Params, Aux]:
        gradients, targets, memory, metrics = _gradient(
            unroll, self, params, state.target_params, state.memory, trajectory, residuals
        )
        after = dataclasses.replace(state, memory=memory)
        return gradients, Aux(
            state=self._move_target_params(after, params),
            targets=targets,
            metrics=metrics,
            step=self.step(targets),
        )

    def _move_target_params(self, state: RuleState, params: Params) -> RuleState:
        """Move the target network towards the parameters from before the update."""
        old = self.target_params_coefficient
        if old is None:
            return state
        average = jax.tree.map(lambda t, p: old * t + (1.0 - old) * p, state.target_params, params)
        return dataclasses.replace(state, target_params=average)

    def _unroll(
        self, unroll: Unroll, params: Params, trajectory: Trajectory
    ) -> tuple[Outputs, Outputs]:
        """Return the outputs that the loss reads, and those that the targets are computed from."""
        shapes = self.output_shapes(check_trajectory(trajectory))
        outputs = check_outputs(unroll(params, trajectory), shapes, trajectory)
        loss_outputs = {}
        for name, shape in shapes.items():
            if len(shape) == 1:
                loss_outputs[name] = outputs[name]
            else:
                loss_outputs[taken(name)] = output_taken(outputs, name, trajectory.action)
        return loss_outputs, {name: outputs[name] for name in shapes}

    def _checked(
        self, outputs: Outputs, target_outputs: Outputs | None, trajectory: Trajectory
    ) -> tuple[Outputs, Outputs, Trajectory]:
        """Return the arguments of `targets`, checked, and without what masked transitions hold."""
        shapes = self.output_shapes(check_trajectory(trajectory))
        outputs = check_outputs(outputs, shapes, trajectory)
        trajectory = without_masked_damage(trajectory)
        if not self._has_target_network:
            return outputs, {}, trajectory
        if target_outputs is None:
            raise ValueError(
                f"target_outputs is None; {type(self).__name__} reads those of a target network."
            )
        return outputs, check_outputs(target_outputs, shapes, trajectory), trajectory

    def _target_outputs(
        self, unroll: Unroll, target_params: Params | None, trajectory: Trajectory
    ) -> Outputs | None:
        if not self._has_target_network:
            return None
        return self._unroll(unroll, target_params, trajectory)[1]


@jax.custom_jvp
def _constant(rule: RuleT) -> RuleT:
    """Return the rule; differentiating it raises an error."""
    return rule


@_constant.defjvp
def _refuse_derivative(primals, tangents):
    raise TypeError(
        "rule.loss is differentiated with respect to the rule. Its targets are constants, so that"
        " the derivative would be 0; expected rule.gradient, which has one with respect to the"
        " rule, in place of jax.grad(rule.loss)."
    )


def _output_gradients(rule: Rule, outputs: Outputs, targets: Any, trajectory: Trajectory):
    """Return the gradients of the loss with respect to (outputs, targets), and its metrics."""
    return jax.grad(rule.output_loss, argnums=(0, 1), has_aux=True)(outputs, targets, trajectory)


def _targets_and_gradient(
    unroll, rule: Rule, params, target_params, memory, trajectory: Trajectory, residuals
):
    """Make steps 1 to 4 of the algorithm; return (gradients, targets, new memory, metrics).

    They are not made again if their results, the residuals, are given; there are no metrics then.
    """
    if residuals is not None:
        return residuals.gradients, residuals.targets, residuals.memory, {}
    loss_outputs, pull_back, outputs = jax.vjp(
        lambda p: rule._unroll(unroll, p, trajectory), params, has_aux=True
    )
    target_outputs = rule._target_outputs(unroll, target_params, trajectory)
    state = RuleState(target_params=None, memory=memory)
    targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
    (output_gradient, _), metrics = _output_gradients(rule, loss_outputs, targets, trajectory)
    (gradients,) = pull_back(output_gradient)
    return gradients, targets, new_state.memory, metrics


def _gradient_pullback(unroll, inputs, cotangents):
    """Return the vector-Hessian product of a meta-gradient, in mixed mode (arXiv 2505.00793).

    Let o(p) be the outputs, t the targets, l(o, t) the loss and g = J(p)^T dl/do its gradient,
    J = do/dp. The cotangent v of g contracts it to one number, the derivative of the loss
    along v:

        <v, g> = <ȯ, dl/do(o, t)>,  ȯ = J v,

    and this function returns that number's gradient. One dual forward pass yields (o, ȯ). Then:

    - with respect to the targets it is the derivative of dl/dt along ȯ; added to the other
      cotangents of the targets, it is pulled back through the rule, to the meta-parameters and
      to the outputs that the rule reads, where it is called w;
    - with respect to the parameters it is J^T (derivative of dl/do along ȯ) + (D_v J)^T dl/do.
      Because second derivatives commute, that and J^T w are together one backward pass
      through the dual forward pass, with cotangents (derivative + w) for o and dl/do for ȯ.

    The loss reads only the outputs of the actions taken, and so do its derivatives and the dual
    numbers. The rule reads the outputs of all actions, and w has all of them.

    For any network the cost is one forward and one backward pass of it in dual numbers, plus
    those of the target network, and no intermediate result of an earlier pass is stored.
    """
    rule, params, target_params, memory, trajectory = inputs
    direction, targets_cotangent, memory_cotangent = cotangents

    def dual(rule, params, target_params, memory):
        loss_outputs, loss_outputs_dot, outputs = jax.jvp(
            lambda p: rule._unroll(unroll, p, trajectory), (params,), (direction,), has_aux=True
        )
        target_outputs = rule._target_outputs(unroll, target_params, trajectory)
        state = RuleState(target_params=None, memory=memory)
        targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
        return loss_outputs, loss_outputs_dot, targets, new_state.memory

    (loss_outputs, loss_outputs_dot, targets, _), pull_back = jax.vjp(
        dual, rule, params, target_params, memory
    )
    (output_gradient, _), (output_gradient_dot, targets_gradient_dot) = jax.jvp(
        lambda o: _output_gradients(rule, o, targets, trajectory)[0],
        (loss_outputs,),
        (loss_outputs_dot,),
    )
    targets_cotangent = jax.tree.map(jnp.add, targets_cotangent, targets_gradient_dot)
    return pull_back((output_gradient_dot, output_gradient, targets_cotangent, memory_cotangent))


_gradient: Any = jax.custom_vjp(_targets_and_gradient, nondiff_argnums=(0,))
_gradient.defvjp(
    lambda unroll, *args: (_gradient(unroll, *args), args[:-1]),
    # The trajectory, and what else is no input of the pull-back, are constants.
    lambda unroll, inputs, cotangents: (
        *_gradient_pullback(unroll, inputs, cotangents[:3]),
        None,
        None,
    ),
)

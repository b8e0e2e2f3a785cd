"""A rule as a loss of PyTorch agents.

    rule = disco.torch.RuleLoss(disco.load("three_families"))
    target = copy.deepcopy(agent)  # agent: a module that returns `rule.output_shapes(num_actions)`

    with torch.inference_mode():
        target_outputs = target(observation)
    loss = rule(agent(observation), target_outputs, trajectory)
    rule.move_target(target, agent)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

PyTorch computes the outputs; they cross to JAX and back as NumPy's arrays on CPUs, and by DLPack
where both have the same accelerator (so far run on CPUs only). One compiled function returns the
loss, its gradient with respect to the outputs, the rule's new memory and metrics; `backward` passes
the gradient on. Gradients of second order, such as discovery's meta-gradient, are for JAX agents.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.optim.swa_utils import get_ema_multi_avg_fn

from disco import types
from disco.checks import OutputShapes, check_outputs, check_values
from disco.rule import Rule


class Trajectory(NamedTuple):
    """A batch of trajectories, as `disco.Trajectory` without its observations.

    Attributes:
      action: integers `[T, B]`, chosen in state t.
      reward: `[T, B]`, of the transition from state t to state t+1.
      discount: `[T, B]`, 0 where the transition terminated its episode, otherwise 1.
      last: booleans `[T, B]`, the transition ends its episode, terminated or cut by a time limit.
      behaviour_logits: `[T, B, A]`, of the policy that chose `action`.
      mask: booleans `[T, B]`, False where the transition leads to the next episode's first state.
    """

    action: torch.Tensor
    reward: torch.Tensor
    discount: torch.Tensor
    last: torch.Tensor
    behaviour_logits: torch.Tensor
    mask: torch.Tensor


class RuleLoss(torch.nn.Module):
    """A rule as a loss, with its memory over one agent's lifetime.

    The memory (moving moments, lifetime RNN) is in the module's `state_dict`. Each call in training
    mode is an update of the agent, and changes it; in evaluation mode (`eval()`) it stays as it is.

    Attributes:
      rule: the rule. It is no parameter, and not in the `state_dict`.
    """

    def __init__(self, rule: Rule):
        super().__init__()
        self.rule = rule
        self._memory = rule.init_memory()
        self._metrics: dict[str, jax.Array] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last call, by name (`disco.Aux.metrics`)."""
        return {name: float(value) for name, value in self._metrics.items()}

    def get_extra_state(self) -> list[torch.Tensor]:
        """Return the memory, for `state_dict`."""
        return [_to_torch(leaf) for leaf in jax.tree.leaves(self._memory)]

    def set_extra_state(self, state: list[torch.Tensor]) -> None:
        """Take the memory of a `state_dict`; raise ValueError if it is of another kind of rule."""
        leaves, structure = jax.tree.flatten(self._memory)
        found, expected = ([tuple(x.shape) for x in arrays] for arrays in (state, leaves))
        if found != expected:
            raise ValueError(
                f"The state has a memory with arrays of {found}; expected the rule's, {expected}."
            )
        self._memory = structure.unflatten(
            jax.numpy.array(x.numpy(force=True), y.dtype, copy=True)
            for x, y in zip(state, leaves, strict=True)
        )

    def output_shapes(self, num_actions: int) -> OutputShapes:
        """Return the shape of each output that the agent must have (`Rule.output_shapes`)."""
        return self.rule.output_shapes(num_actions)

    def forward(
        self,
        outputs: Mapping[str, torch.Tensor],
        target_outputs: Mapping[str, torch.Tensor] | None,
        trajectory: Trajectory,
    ) -> torch.Tensor:
        """Return the loss, the mean over transitions that are not masked.

        Args:
          outputs: of the agent for all states, by name, each `[T+1, B, ...]`. Those that the rule
            does not read may be there, too.
          target_outputs: of the target network for the same states; None for a rule without one.
          trajectory: to learn from.

        Raises:
          ValueError: if an output is missing, or a shape or dtype does not fit, naming it.
        """
        call = self._call(outputs, target_outputs, trajectory)
        gradients, memory, self._metrics = _update(_Constant(self.rule), call)
        if self.training:
            self._memory = memory
        device = trajectory.reward.device
        known = [_to_torch(gradients[name]).to(device) for name in call.outputs]
        loss = _to_torch(self._metrics["loss"]).to(device)
        return _KnownGradient.apply(loss, known, *(outputs[name] for name in call.outputs))

    def targets(
        self,
        outputs: Mapping[str, torch.Tensor],
        target_outputs: Mapping[str, torch.Tensor] | None,
        trajectory: Trajectory,
    ) -> Any:
        """Return the targets that a call would learn from (`disco.Rule.targets`), of tensors.

        The memory stays as it is. Arguments and errors are those of the call.
        """
        call = self._call(outputs, target_outputs, trajectory)
        return jax.tree.map(_to_torch, _targets(_Constant(self.rule), call))

    def check_values(
        self,
        outputs: Mapping[str, torch.Tensor],
        target_outputs: Mapping[str, torch.Tensor] | None,
        trajectory: Trajectory,
    ) -> None:
        """Check the arguments of a call, an update, as `disco.check_values`, for debugging.

        Raises ValueError, also in evaluation mode, in which a call leaves the memory as it is.
        """
        if not self.training:
            raise ValueError(
                "RuleLoss is in evaluation mode, in which its memory stays as it is; expected"
                " training mode (train()) in updates."
            )
        call = self._call(outputs, target_outputs, trajectory)
        state, batch = _state_and_trajectory(self.rule, call)
        shapes = self.rule.output_shapes(batch.behaviour_logits.shape[-1])
        for found in (call.outputs, state.target_params):
            if found is not None:
                found = jax.tree.map(jax.numpy.asarray, dict(found))
                check_outputs(found, shapes, batch)
                check_values(batch, found)

    def _call(
        self,
        outputs: Mapping[str, torch.Tensor],
        target_outputs: Mapping[str, torch.Tensor] | None,
        trajectory: Trajectory,
    ) -> "_Call":
        names = self.rule.output_shapes(trajectory.behaviour_logits.shape[-1])
        read = {name: outputs[name] for name in names if name in outputs}
        online, target, batch = _to_jax(read, target_outputs, trajectory._asdict())
        return _Call(online, target, batch, self._memory)

    @torch.no_grad()
    def move_target(self, target: torch.nn.Module, agent: torch.nn.Module) -> None:
        """Move a target network towards the agent, whose optimiser has not yet made its step.

        Buffers of the agent, such as running statistics, are copied. Raises ValueError if the rule
        has no target network, or the modules differ.
        """
        old = self.rule.target_params_coefficient
        if old is None:
            raise ValueError(f"{type(self.rule).__name__} has no target network.")
        targets, parameters = (dict(x.named_parameters()) for x in (target, agent))
        kept, buffers = (dict(x.named_buffers()) for x in (target, agent))
        if _shapes(targets) != _shapes(parameters) or _shapes(kept) != _shapes(buffers):
            raise ValueError(
                f"The target network's tensors are {_shapes(targets | kept)}; expected the agent's,"
                f" {_shapes(parameters | buffers)}."
            )
        if parameters:
            moved: list[torch.Tensor] = [targets[name] for name in parameters]
            get_ema_multi_avg_fn(old)(moved, list(parameters.values()), None)
        for name, buffer in buffers.items():
            kept[name].copy_(buffer)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


class _Constant(NamedTuple):
    """A rule whose arrays are constants of the compiled function, known by its identity."""

    rule: Rule

    def __hash__(self) -> int:
        return id(self.rule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and other.rule is self.rule


class _Call(NamedTuple):
    """The arguments of a compiled function: those of a call that the rule reads, and the memory."""

    outputs: Mapping[str, jax.Array]
    target_outputs: Mapping[str, jax.Array] | None
    trajectory: Mapping[str, jax.Array]
    memory: Any


@functools.partial(jax.jit, static_argnums=0)
def _update(constant: _Constant, call: _Call) -> tuple[types.Outputs, Any, types.Metrics]:
    """Return the gradient with respect to the outputs, the new memory and metrics.

    The outputs are the parameters of a network that returns its parameters.
    """
    state, trajectory = _state_and_trajectory(constant.rule, call)
    gradients, aux = constant.rule.gradient(
        dict(call.outputs), state, trajectory, lambda found, _: found
    )
    return gradients, aux.state.memory, aux.metrics


@functools.partial(jax.jit, static_argnums=0)
def _targets(constant: _Constant, call: _Call) -> Any:
    state, trajectory = _state_and_trajectory(constant.rule, call)
    return constant.rule.targets(call.outputs, state.target_params, trajectory, state)[0]


def _state_and_trajectory(rule: Rule, call: _Call) -> tuple[types.RuleState, types.Trajectory]:
    """Return the state, with the target network's outputs as parameters, and the trajectory."""
    if rule.target_params_coefficient is None:
        target_outputs = None
    elif call.target_outputs is None:
        raise ValueError(f"target_outputs is None; {type(rule).__name__} has a target network.")
    else:
        target_outputs = {
            name: x for name, x in call.target_outputs.items() if name in call.outputs
        }
    state = types.RuleState(target_params=target_outputs, memory=call.memory)
    return state, types.Trajectory(observation=None, **call.trajectory)


class _KnownGradient(torch.autograd.Function):
    """A loss whose gradient is known."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor], *outputs):
        del outputs
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: torch.Tensor
    ):
        (cotangent,) = grad_outputs
        return None, None, *(cotangent * gradient for gradient in ctx.saved_tensors)


def _to_torch(array: jax.Array) -> torch.Tensor:
    """Return a copy of an array as a tensor, on its device where PyTorch knows it."""
    if torch.cuda.is_available() and next(iter(array.devices())).platform == "gpu":
        return torch.from_dlpack(array).clone()
    return torch.from_numpy(np.array(array))  # On CPUs in less time than by DLPack.


def _to_jax(*groups: Mapping[str, torch.Tensor] | None) -> list[Any]:
    """Return tensors by name as arguments of a compiled function.

    They are in float32 and int32, or as they are where 64 bits are enabled in JAX.
    """
    dtypes = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    if not jax.config.read("jax_enable_x64"):
        dtypes |= {torch.float64: torch.float32, torch.int64: torch.int32}
    has_gpu = jax.default_backend() == "gpu"

    def convert(tensor: torch.Tensor) -> Any:
        tensor = tensor.detach()
        if tensor.dtype in dtypes:
            tensor = tensor.to(dtypes[tensor.dtype])
        if has_gpu and tensor.is_cuda:
            return jax.dlpack.from_dlpack(tensor.contiguous())
        # Of arrays on CPUs a compiled function takes NumPy's, in a tenth of the time.
        return tensor.numpy(force=True)

    return [
        None if group is None else {name: convert(x) for name, x in group.items()}
        for group in groups
    ]

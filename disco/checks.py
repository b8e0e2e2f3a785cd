"""Checks of trajectories, outputs and states before a rule learns from them.

A rule checks structure, shapes and dtypes in every call, which costs nothing in a compiled
program. `check_values` checks ranges and finiteness, for debugging.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Bool, PyTree

from disco.moments import Moments
from disco.types import Outputs, Params, RuleState, Trajectory, taken
from disco.values import zero_where_all_illegal
from disco_common.ranges import Range

OutputShapes = dict[str, tuple[int, ...]]

_KINDS: dict[str, tuple[type, ...]] = {
    "integers": (jnp.integer,),
    "real numbers": (jnp.floating, jnp.integer),
    "booleans": (jnp.bool_,),
    "floats": (jnp.floating,),
}
_DTYPES = {
    "action": "integers",
    "reward": "real numbers",
    "discount": "real numbers",
    "last": "booleans",
    "mask": "booleans",
    "behaviour_logits": "floats",
}
_EXPECTED_STATE = "expected what rule.init(params) returned, or aux.state of the last update."


def check_trajectory(trajectory: Trajectory) -> int:
    """Check dtypes, lengths and ranks, and return the number of actions.

    Raises:
      ValueError: naming the field, what was found and what was expected.
    """
    for name, expected in _DTYPES.items():
        _require_kind(f"trajectory.{name}", getattr(trajectory, name), expected)
    action_shape = jnp.shape(trajectory.action)
    if len(action_shape) != 2 or 0 in action_shape:
        raise ValueError(
            f"trajectory.action has shape {action_shape}; expected [T, B], with at least one"
            " transition (T) and one trajectory (B)."
        )
    num_transitions, batch_size = action_shape
    for name in ("reward", "discount", "last", "mask"):
        shape = jnp.shape(getattr(trajectory, name))
        if shape != action_shape:
            raise ValueError(
                f"trajectory.{name} has shape {shape}; expected {action_shape} as"
                " trajectory.action."
            )
    shape = jnp.shape(trajectory.behaviour_logits)
    if len(shape) != 3 or shape[:2] != action_shape or shape[2] == 0:
        raise ValueError(
            f"trajectory.behaviour_logits has shape {shape}; expected {action_shape} and then the"
            " number of actions."
        )
    for path, leaf in jax.tree.leaves_with_path(trajectory.observation):
        rows, *rest = jnp.shape(leaf)[:2] or (0,)
        # Further rows are earlier observations, for an unroll that needs them.
        if rows <= num_transitions or rest != [batch_size]:
            name = "trajectory.observation" + jax.tree_util.keystr(path)
            raise ValueError(
                f"{name} has shape {jnp.shape(leaf)}; expected [T+1, B, ...] ="
                f" [{num_transitions + 1}, {batch_size}, ...] or more rows: one more than"
                " trajectory.action, for the state after the last transition."
            )
    return shape[-1]


def check_outputs(outputs: Outputs, shapes: OutputShapes, trajectory: Trajectory) -> Outputs:
    """Check the outputs that a rule needs, and drop the others.

    Returns:
      The outputs, converted from half precision to float32, which the rule's computations need;
      `logits` are 0 in states without a legal action, where all are -inf.

    Raises:
      ValueError: naming the output, what was found and what was expected.
    """
    if not isinstance(outputs, Mapping):
        raise ValueError(
            f"The agent's outputs are a {type(outputs).__name__}; expected a mapping from names to"
            " arrays (see rule.output_shapes), and nothing besides."
        )
    missing = sorted(set(shapes) - set(outputs))
    if missing:
        raise ValueError(
            f"The agent's outputs lack {missing}: found {sorted(outputs)}, expected"
            f" {sorted(shapes)} (see rule.output_shapes)."
        )
    num_transitions, batch_size = jnp.shape(trajectory.action)
    checked = {}
    for name, shape in shapes.items():
        expected = {name: (num_transitions + 1, batch_size, *shape)}
        if taken(name) in outputs:
            expected[taken(name)] = (num_transitions, batch_size, *shape[1:])
        for given, whole in expected.items():
            _require_kind(f"The agent's output {given!r}", outputs[given], "floats")
            if jnp.shape(outputs[given]) != whole:
                raise ValueError(
                    f"The agent's output {given!r} has shape {jnp.shape(outputs[given])}; expected"
                    f" {whole}, of which rule.output_shapes says {shape} for a state."
                )
            half = jnp.finfo(outputs[given].dtype).bits < 32
            checked[given] = outputs[given].astype(jnp.float32) if half else outputs[given]
    if "logits" in checked:
        checked["logits"] = zero_where_all_illegal(checked["logits"])
    return checked


def check_state(
    state: RuleState,
    params: Params,
    init_memory: Callable[[], PyTree[Array]],
    has_target_network: bool,
) -> None:
    """Check that a state belongs to a rule, and to an agent with these parameters.

    Raises:
      ValueError: saying what was found and what was expected.
    """
    if not isinstance(state, RuleState):
        raise ValueError(f"The rule's state is a {type(state).__name__}; {_EXPECTED_STATE}")
    if difference := _difference(state.memory, jax.eval_shape(init_memory)):
        raise ValueError(f"state.memory is of another rule: {difference}; {_EXPECTED_STATE}")
    if has_target_network:
        _check_target_params(state, params)
    elif state.target_params is not None:
        raise ValueError(
            f"state.target_params is there, and the rule has no target network; {_EXPECTED_STATE}"
        )


def _check_target_params(state: RuleState, params: Params) -> None:
    if difference := _difference(state.target_params, params):
        raise ValueError(
            f"state.target_params do not fit the parameters: {difference}; {_EXPECTED_STATE}"
        )


def _require_kind(what: str, x: Any, expected: str) -> None:
    try:
        dtype = jnp.result_type(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is a {type(x).__name__}; expected an array.") from error
    if not any(jnp.issubdtype(dtype, kind) for kind in _KINDS[expected]):
        raise ValueError(f"{what} has dtype {dtype}; expected {expected}.")


def _difference(found: Any, expected: Any) -> str:
    """Return how two trees differ in structure or shapes; empty if they do not."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return "its structure is not the same"
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, leaf), other in pairs:
        if jnp.shape(leaf) != jnp.shape(other):
            name = jax.tree_util.keystr(path)
            return f"{name} has shape {jnp.shape(leaf)} where {jnp.shape(other)} is due"
    return ""


class _Check(NamedTuple):
    """A condition on each value of an array, by the array's name, and the condition in words."""

    name: str
    values: Array
    holds: Bool[Array, "..."]
    expected: str


def check_values(
    trajectory: Trajectory,
    outputs: Outputs | None = None,
    state: RuleState | None = None,
    params: Params | None = None,
) -> None:
    """Check the arguments of an update for values that no rule can learn from, for debugging.

    Numbers of the trajectory and of the outputs must be finite, but for policy logits of illegal
    actions, which are -inf; actions in range; discounts 0 or 1, as gamma is the rule's own. Masked
    transitions are not checked. A state that has seen no update, as `rule.init` returns it, must
    have the target parameters of an agent that has made none: otherwise the caller does not pass
    `aux.state` on. Rules without a target network do not show it.

    In a function that `jax.experimental.checkify.checkify` transforms, the check becomes a part of
    the program, whose error has the same message; elsewhere it must be called outside `jax.jit`:

        error, result = jax.jit(checkify.checkify(update))(params, ...)
        error.throw()

    Args:
      trajectory: to check.
      outputs: of the agent on it, if they are to be checked, too.
      state: of the rule before the update, likewise; together with `params`.
      params: of the agent before the update.

    Raises:
      ValueError: naming the first wrong value, its position and what was expected; or as
        `check_trajectory`.
    """
    num_actions = check_trajectory(trajectory)
    if (state is None) != (params is None):
        missing = "state" if state is None else "params"
        raise ValueError(f"{missing} is None; expected both state and params, or none.")
    checks = _trajectory_checks(trajectory, num_actions)
    checks += _output_checks(trajectory, outputs or {})
    if state is not None and params is not None:
        checks += _state_checks(state, params)
    for name, values, holds, expected in checks:
        try:
            wrong = np.argwhere(~np.asarray(holds))
        except jax.errors.TracerArrayConversionError:
            first = jnp.argmin(holds)  # The first False.
            value = values.reshape(-1)[first]
            checkify.check(jnp.all(holds), f"{name} has {{value}}; {expected}.", value=value)
            continue
        if len(wrong):
            position = tuple(wrong[0].tolist())
            raise ValueError(f"{name} has {values[position]} at {list(position)}; {expected}.")


def _trajectory_checks(trajectory: Trajectory, num_actions: int) -> list[_Check]:
    t = jax.tree.map(jnp.asarray, dataclasses.replace(trajectory, observation=(), core_state=None))
    is_in = (t.action >= 0) & (t.action < num_actions)
    is_end = (t.discount == 0) | (t.discount == 1)
    gamma = "expected 0 where the transition terminates its episode, else 1 (gamma is the rule's)"
    found = [
        _Check("action", t.action, is_in, f"expected 0 to {num_actions - 1}"),
        _Check("reward", t.reward, jnp.isfinite(t.reward), "expected a finite number"),
        _Check("discount", t.discount, is_end, gamma),
        *_policy_checks("behaviour_logits", t.behaviour_logits, t.action),
    ]
    checks = []
    for name, values, holds, expected in found:
        is_masked = ~t.mask.reshape(*t.mask.shape, *(1,) * (values.ndim - 2))
        checks.append(_Check(f"trajectory.{name}", values, holds | is_masked, expected))
    return checks


def _policy_checks(name: str, logits: Array, action: Array) -> list[_Check]:
    """Return the checks of logits, and of those of the actions taken in the first T rows."""
    action = jnp.clip(action, 0, logits.shape[-1] - 1)[..., None]
    taken_logit = jnp.take_along_axis(logits[: len(action)], action, axis=-1)[..., 0]
    allowed = "expected finite numbers, or -inf for illegal actions"
    expected = "expected a finite number"
    return [
        # Neither NaN nor infinite.
        _Check(name, logits, logits < jnp.inf, allowed),
        _Check(f"{name} of the action taken", taken_logit, jnp.isfinite(taken_logit), expected),
    ]


def _output_checks(trajectory: Trajectory, outputs: Outputs) -> list[_Check]:
    checks = []
    for name, values in outputs.items():
        what = f"The agent's output {name!r}"
        if name != "logits":
            checks.append(_Check(what, values, jnp.isfinite(values), "expected finite"))
            continue
        num_transitions, *rest = jnp.shape(trajectory.behaviour_logits)
        found, expected = jnp.shape(values), (num_transitions + 1, *rest)
        if found != expected:
            raise ValueError(f"{what} has shape {found}; expected {expected}.")
        action, mask = jnp.asarray(trajectory.action), jnp.asarray(trajectory.mask)
        policy, of_taken = _policy_checks(what, jnp.asarray(values), action)
        checks += [policy, of_taken._replace(holds=of_taken.holds | ~mask)]
    return checks


def _state_checks(state: RuleState, params: Params) -> list[_Check]:
    """Return the checks that a state without an update is of parameters without one."""

    def is_moments(x: Any) -> bool:
        return isinstance(x, Moments)

    tracked = filter(is_moments, jax.tree.leaves(state.memory, is_leaf=is_moments))
    updated = [x.decay_product < 1.0 for x in tracked]
    if not updated or state.target_params is None:
        return []
    _check_target_params(state, params)
    expected = (
        "expected the parameter itself, as the state has seen no update with finite numbers: pass"
        " aux.state of an update on to the next one, not the state of rule.init"
    )
    targets = jax.tree.leaves_with_path(state.target_params)
    return [
        _Check(
            f"state.target_params{jax.tree_util.keystr(path)}",
            jnp.asarray(target),
            # Rounding moves the average of equal numbers.
            jnp.isclose(target, param, rtol=1e-5, atol=0.0) | jnp.stack(updated).any(),
            expected,
        )
        for (path, target), param in zip(targets, jax.tree.leaves(params), strict=True)
    ]


# Far beyond useful values, and far within the range of float32 and the memory of a machine.
_MAX_BINS = 100_001
_MAX = 1e6

MaxValue = Annotated[
    float, Range(f"a positive number of at most {_MAX:g}", lambda x: 0 < x <= _MAX)
]
Cost = Annotated[float, Range(f"at least 0, at most {_MAX:g}", lambda x: 0 <= x <= _MAX)]


def odd_number(*, at_least: int) -> Range:
    """Return the range of numbers of bins of a categorical value: odd, so that 0 is a bin."""
    return Range(
        f"an odd number of at least {at_least}, at most {_MAX_BINS}",
        lambda x: type(x) is int and x % 2 == 1 and at_least <= x <= _MAX_BINS,
    )

"""Checks of what environments return, against what they declare.

A simulator is not trusted: the first reset and the first step of each are compared with its specs.
`require_declared_outputs` makes both before anything is compiled. What is certainly wrong is
refused: another structure or shape, numbers of another kind, integers and pixels out of range,
numbers that are not finite. These habits are accepted:

- lists instead of arrays, and numbers of another width;
- integers where floating-point numbers are declared;
- whole floating-point numbers where integers are declared, but not in pictures of up to 255, whose
  0.0 and 1.0 are more likely black and white;
- floating-point numbers out of range, but not in pictures;
- a reward, or the end of an episode, as an array of one number.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from dm_env import specs

from disco_common.terminal import printable
from environments.base import Environment, HostEnvironment, JaxEnvironment, promoting
from environments.errors import OutputError

RESET, STEP = "reset", "step"
SMALLEST_PICTURE = 16  # Side in pixels.

_MOST_CHARACTERS = 200  # Of a name in a message.
_TOLERANCE = 1e-3  # Of the range of pictures of floating-point numbers.
_LARGEST = np.finfo(np.float32).max
_checked: set[Any] = set()  # Dynamics and tasks.


def require_declared_outputs(environment: Environment) -> None:
    """Reset and step an environment once, and check what it returns; once per process.

    The simulator of a host environment is an additional one, which is closed again. A JAX
    environment is traced, which gives shapes and dtypes, and compiles nothing. An environment that
    fails by itself is left to the run, which reports it.

    Raises:
      OutputError: naming the environment, what it returned and what it declares.
    """
    dynamics, params = environment.dynamics, environment.params
    address: Any = dynamics, params
    try:
        if isinstance(dynamics, JaxEnvironment):
            params = jax.eval_shape(lambda x: x, params)
            leaves, structure = jax.tree.flatten(params)
            address = dynamics, structure, tuple((x.shape, str(x.dtype)) for x in leaves)
        if address in _checked:
            return
        with naming(environment.name):
            _check_actions(dynamics.action_spec())
            if isinstance(dynamics, HostEnvironment):
                _check_host(dynamics, params)
            else:
                _check_jax(dynamics, params)
    except OutputError:
        raise
    except Exception as error:  # The environment's, of any kind.
        logging.info("%s was not checked: %r", environment.name, error)
    with contextlib.suppress(TypeError):  # Of parameters that have no hash.
        _checked.add(address)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Have the messages of `OutputError`s begin with an environment's name."""
    try:
        yield
    except OutputError as error:
        message = str(error)
        is_named = not message.startswith("its ")
        raise OutputError(message if is_named else f"{shown(name)}: {message}") from None


def check_timestep(
    call: str, spec: Any, timestep: Any, lead: tuple[int, ...] = (), is_traced: bool = False
) -> None:
    """Check the first time step that a reset or a step returned.

    Args:
      call: `RESET` or `STEP`.
      spec: of the observation.
      timestep: to check.
      lead: leading axes of its arrays.
      is_traced: whether it has `jax.ShapeDtypeStruct`s instead of arrays.

    Raises:
      OutputError: saying what was returned and what is declared.
    """
    if not isinstance(timestep, dm_env.TimeStep):
        raise wrong(call, "as a time step", timestep, "a dm_env.TimeStep")
    check_observation(call, spec, timestep.observation, lead)
    for name in ("reward", "discount"):
        found = getattr(timestep, name)
        if found is not None or call == STEP or is_traced:  # `dm_env.restart` has None.
            check_number(call, name, found)
    if is_traced:
        check_number(call, "step type", timestep.step_type)
    elif (call == RESET) != bool(np.all(timestep.step_type == dm_env.StepType.FIRST)):
        expected = "FIRST" if call == RESET else "MID or LAST"
        raise wrong(call, "the step type", timestep.step_type, expected)


def check_observation(
    call: str, declared: Any, found: Any, lead: tuple[int, ...] = (), path: tuple[str, ...] = ()
) -> None:
    """Check an observation, or a member of it.

    Args:
      call: `RESET` or `STEP`.
      declared: a spec, or `str` for a text; or a dictionary or tuple of these, nested.
      found: an array, what can be converted to one, or a `jax.ShapeDtypeStruct`; or a dictionary
        or sequence of these, nested.
      lead: leading axes of arrays.
      path: keys that lead to the member.

    Raises:
      OutputError: saying what was returned and what is declared.
    """
    if isinstance(declared, Mapping):
        fits = isinstance(found, Mapping) and found.keys() == declared.keys()
    elif isinstance(declared, tuple):
        fits = isinstance(found, tuple | list | np.ndarray) and len(found) == len(declared)
    elif declared is str:
        fits = isinstance(found, str)
    else:
        fits = _fits(declared, found, lead)
    if not fits:
        what = f"as the observation '{shown('/'.join(path))}'" if path else "as the observation"
        raise wrong(call, what, found, f"{_described(declared, lead)}, as it declares")
    if isinstance(declared, Mapping | tuple):
        for key in declared if isinstance(declared, Mapping) else range(len(declared)):
            check_observation(call, declared[key], found[key], lead, (*path, str(key)))


def check_number(call: str, name: str, found: Any) -> None:
    """Check a reward, a discount or a flag: one finite number, if traced of shape `()`.

    Raises:
      OutputError: if it is something else.
    """
    array = _as_array(found)
    shape = () if array is None or isinstance(array, jax.ShapeDtypeStruct) else array.shape
    if np.prod(shape, dtype=int) != 1 or not _fits(specs.Array(shape, np.float32), array, ()):
        raise wrong(call, f"as the {name}", found, "one finite number")


def number(found: Any) -> Any:
    """Return the number in an array or list of one; anything else as it is."""
    if isinstance(found, int | float | np.generic) or np.size(found) != 1:
        return found
    return np.asarray(found).item()


def bounds(spec: specs.Array) -> tuple[Any, Any]:
    """Return the smallest and the largest numbers: a spec's own, or those of its dtype."""
    if isinstance(spec, specs.BoundedArray):
        kind = np.float64 if np.issubdtype(spec.dtype, np.floating) else spec.dtype
        return spec.minimum.astype(kind), spec.maximum.astype(kind)
    if np.issubdtype(spec.dtype, np.floating):
        return -np.inf, np.inf
    if spec.dtype == bool:
        return 0, 1
    limits = np.iinfo(spec.dtype)
    return limits.min, limits.max


def shown(name: str) -> str:
    """Return a name for a message: shortened, without control characters."""
    return printable(name if len(name) <= _MOST_CHARACTERS else f"{name[:_MOST_CHARACTERS]}…")


def wrong(call: str, what: str, found: Any, expected: str) -> OutputError:
    """Return an error that says what the first call returned, as what, and what was expected."""
    return OutputError(
        f"its first {call} returned {_described(found)} {what}; expected {expected}."
    )


def _check_host(dynamics: HostEnvironment, task: Any) -> None:
    spec, actions = dynamics.observation_spec(), dynamics.action_spec()
    # Any action is legal for a choice; others may have bounds on both sides of 0 or on one.
    action = np.zeros((1, *actions.shape), actions.dtype)
    if not isinstance(actions, specs.DiscreteArray):
        action = np.clip(action, actions.minimum, actions.maximum).astype(actions.dtype)
    simulators = dynamics.start(task, 1, 0, 1)
    try:
        check_timestep(RESET, spec, simulators.reset(), (1,))
        check_timestep(STEP, spec, simulators.step(action), (1,))
    finally:
        simulators.close()


def _check_jax(dynamics: JaxEnvironment, task: Any) -> None:
    spec, actions = dynamics.observation_spec(), dynamics.action_spec()
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct(actions.shape, actions.dtype)
    first = jax.eval_shape(dynamics.reset, task, key)
    _check_pair(RESET, spec, first)
    then = jax.eval_shape(dynamics.step, task, first[0], action, key)
    _check_pair(STEP, spec, then)
    # A stream of episodes carries the state from each to the next.
    before, after = first[0], then[0]
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise wrong(STEP, "as the state", after, "the structure of its reset's state")
    for (path, one), other in zip(
        jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        with promoting():
            is_equal = one.dtype == other.dtype
            is_kept = is_equal or jnp.promote_types(one.dtype, other.dtype) == one.dtype
        if one.shape != other.shape or not is_kept:
            what = f"as the state's part '{shown(jax.tree_util.keystr(path))}'"
            raise wrong(STEP, what, other, f"{_described(one)}, as its reset returns")


def _check_pair(call: str, spec: Any, returned: Any) -> None:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise wrong(call, "in all", returned, "a state and a time step")
    check_timestep(call, spec, returned[1], is_traced=True)


def _check_actions(spec: specs.Array) -> None:
    """Refuse actions that the random policy cannot draw.

    Raises:
      OutputError: if they are no choice, and no numbers between finite bounds.
    """
    if isinstance(spec, specs.BoundedArray):
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.subtract(spec.maximum, spec.minimum, dtype=np.float32)
        if np.isfinite(size).all():
            return
    raise OutputError(
        f"its actions are declared as {_described(spec)}; expected a choice, or numbers between"
        " finite bounds."
    )


def _fits(spec: specs.Array, found: Any, lead: tuple[int, ...]) -> bool:
    """Return whether a leaf has a spec's shape behind leading axes, its kind and its range."""
    array = _as_array(found)
    if array is None or array.shape != (*lead, *spec.shape):
        return False
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    wants_float = jnp.issubdtype(spec.dtype, jnp.floating)
    if isinstance(array, jax.ShapeDtypeStruct):
        return wants_float or not is_float
    low, high = bounds(spec)
    if wants_float:
        slack = _TOLERANCE * (high - low)
        is_bounded = len(spec.shape) == 3 and _is_picture(spec) and np.isfinite(slack).all()
        low, high = (low - slack, high + slack) if is_bounded else (-_LARGEST, _LARGEST)
    elif _is_picture(spec) and np.max(high) == 255:
        if is_float or (array.dtype == bool and np.max(high) > 1):
            return False
    elif is_float and not np.array_equal(array, np.floor(array)):
        return False
    return bool(np.all((low <= array) & (array <= high)))


def _is_picture(spec: specs.Array) -> bool:
    """Return whether arrays are pictures, with channels first, last or without."""
    return len(spec.shape) in (2, 3) and sorted(spec.shape)[-2] >= SMALLEST_PICTURE


def _as_array(found: Any) -> np.ndarray | jax.ShapeDtypeStruct | None:
    """Return an array of real numbers, or what describes one; None if it is something else."""
    if not isinstance(found, jax.ShapeDtypeStruct):
        try:
            found = np.asarray(found)
        except Exception:  # Of lists of unequal lengths, and of other packages' arrays.
            return None
    is_real = any(jnp.issubdtype(found.dtype, x) for x in (jnp.integer, jnp.floating, jnp.bool_))
    return found if is_real else None


def _described(thing: Any, lead: tuple[int, ...] = ()) -> str:
    """Return words for a spec, an array, or anything else that was returned."""
    if isinstance(thing, Mapping):
        keys = ", ".join(f"'{shown(str(key))}'" for key in list(thing)[:10])
        return f"a dictionary of {keys or 'nothing'}"
    if isinstance(thing, specs.Array):
        text = f"{thing.dtype} {(*lead, *thing.shape)}"
        if isinstance(thing, specs.BoundedArray):
            text += _range(thing.minimum, thing.maximum)
        return text
    if thing is None or thing is str:
        return "None" if thing is None else "a text"
    array = _as_array(thing)
    if array is None:
        size = f" of {len(thing)}" if isinstance(thing, tuple | list) else ""
        return f"a {type(thing).__name__}{size}"
    if isinstance(array, jax.ShapeDtypeStruct) or not array.size:
        return f"{array.dtype} {array.shape}"
    if array.size == 1:
        return f"{array.dtype} {array.shape} of {float(array.item()):g}"
    return f"{array.dtype} {array.shape}{_range(array, array)}"


def _range(low: Any, high: Any) -> str:
    return f" from {float(np.min(low)):g} to {float(np.max(high)):g}"

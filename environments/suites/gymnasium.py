"""Any registered environment of Gymnasium (Towers et al. 2024, arXiv 2407.17032).

`gymnasium/<id>`, for example `gymnasium/CartPole-v1`. `gymnasium/<module>:<id>` imports a module
first, which registers the environment: `gymnasium/minigrid:MiniGrid-Empty-8x8-v0`. Arguments of the
environment stand behind a question mark, as in a URL, with values as Python writes them:
`gymnasium/FrozenLake-v1?is_slippery=False&map_name=8x8` (`environments.names`).

Actions are `Discrete`, or a `Box`, for agents with continuous actions. Observations by their space:

- `Box` of uint8, `[height, width, channels]` with sides of 16 or more: an image. Images without
  channels, or with channels, or stacked frames, in front, are brought into that form;
- another `Box`: an array of its shape, float32, or int32 for integers. MiniGrid's views are such: a
  "picture" of 7 x 7 uint8 has the numbers of objects, colours and states;
- `Discrete`: an integer from 0, which encoders make one-hot;
- `MultiDiscrete`, `MultiBinary`: float32, one-hot and concatenated for the first;
- `Text`: the numbers of its first 32 words (`environments.base`);
- `Dict`, `Tuple`, and any nest of them: a dictionary of these; names are joined by slashes, and
  members of tuples have their numbers as names.

The first reset and step are compared with the spaces (`environments.output_checks`): arrays may be
lists, numbers wider than declared, rewards arrays of one number.

An episode that is truncated has discount 1 at its end, one that has terminated discount 0, also
where both are true. Simulators run in worker processes; each is seeded once, at its first reset.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from disco_common import plugins
from environments import names
from environments.base import Environment, FilmedSimulator, ObservationSpec, Simulators, TextSpec
from environments.errors import (
    EnvironmentNameError,
    MissingPackageError,
    SimulatorError,
    import_package,
    unknown_name,
)
from environments.output_checks import (
    RESET,
    SMALLEST_PICTURE,
    STEP,
    check_number,
    check_observation,
    naming,
    number,
    shown,
    wrong,
)
from environments.processes import ProcessSimulators

gym: Any = import_package("gymnasium", "gymnasium", "gymnasium/…")

_CHANNELS = (1, 3, 4)
_MOST_WORDS = 32
_RETURNED = {
    RESET: ("observation", "info"),
    STEP: ("observation", "reward", "terminated", "truncated", "info"),
}


@dataclasses.dataclass(frozen=True)
class Gymnasium:
    """A registered environment, which is its own only task.

    Attributes:
      name: `gymnasium/…`, with its arguments in the order of their names.
    """

    name: str

    def observation_spec(self) -> ObservationSpec:
        return _spaces(self)[0].spec

    def action_spec(self) -> specs.DiscreteArray | specs.BoundedArray:
        return _spaces(self)[1].spec

    def start(
        self, task: Any, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        del task
        make_one = functools.partial(GymnasiumSimulator, self)
        return ProcessSimulators(make_one, self, batch_size, seed, num_processes=workers)

    def filmed(self, task: Any, seed: int) -> FilmedSimulator | None:
        del task
        environment = _make(self)
        modes = environment.metadata.get("render_modes", ())
        environment.close()
        if "rgb_array" not in modes:
            return None
        return GymnasiumSimulator(self, seed, render_mode="rgb_array")


class GymnasiumSimulator(FilmedSimulator):
    """One simulator of an environment."""

    def __init__(self, dynamics: Gymnasium, seed: int, render_mode: str | None = None):
        """Make the environment; `render_mode` is Gymnasium's."""
        self._dynamics, self._seed = dynamics, seed
        self._environment = _make(dynamics, render_mode)
        self._observations = _observations(dynamics, self._environment.observation_space)
        self._actions = _actions(dynamics, self._environment.action_space)
        self._unchecked = {RESET, STEP}

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._checked(RESET, self._environment.reset(seed=self._seed))
        self._seed = None  # The generator's state goes on.
        return dm_env.restart(self._observations.convert(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        returned = self._checked(STEP, self._environment.step(self._actions.convert(action)))
        observation, reward, terminated, truncated, _ = returned
        observation, reward = self._observations.convert(observation), float(number(reward))
        if number(terminated):
            return dm_env.termination(reward, observation)
        if number(truncated):
            return dm_env.truncation(reward, observation, discount=1.0)
        return dm_env.transition(reward, observation)

    def _checked(self, call: str, returned: Any) -> Any:
        """Return what the environment returned; that of the first reset and step is checked."""
        if call not in self._unchecked:
            return returned
        names = _RETURNED[call]
        with naming(self._dynamics.name):
            if not isinstance(returned, tuple | list) or len(returned) != len(names):
                raise wrong(call, "in all", returned, ", ".join(names))
            check_observation(call, _declared(self._environment.observation_space), returned[0])
            for name, value in zip(names[1:-1], returned[1:-1], strict=True):
                check_number(call, name, value)
        self._unchecked.remove(call)
        return returned

    def render(self) -> np.ndarray:
        try:
            picture = np.asarray(self._environment.render())
        except Exception as error:  # The renderer's.
            raise SimulatorError(f"{self._dynamics.name} cannot be drawn: {error}") from error
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            raise SimulatorError(
                f"{self._dynamics.name} draws {picture.dtype} {picture.shape}; expected uint8"
                " [height, width, 3]."
            )
        return picture

    def close(self) -> None:
        self._environment.close()


def make(name: str) -> Environment:
    """Make `gymnasium/<id>` or `gymnasium/<module>:<id>?<arguments>`.

    Raises:
      EnvironmentNameError: if Gymnasium has no such environment, or it does not take the arguments.
      MissingPackageError: if the module, or what the environment needs, is not installed.
      ValueError: if its observations or actions are of a space that is not supported.
    """
    dynamics = Gymnasium(names.with_arguments(name, {}))
    _spaces(dynamics)
    return Environment(name=dynamics.name, dynamics=dynamics)


def _make(dynamics: Gymnasium, render_mode: str | None = None) -> Any:
    """Make Gymnasium's environment, without its checks of each step."""
    name, arguments = names.split(dynamics.name)
    identifier = name.removeprefix("gymnasium/")
    module, colon, _ = identifier.partition(":")
    if colon:
        plugins.require_imports(name)
        plugins.require_other_module(name, module)
    given = arguments.get("render_mode")
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    try:
        with warnings.catch_warnings():
            # Of old versions, which the user has chosen.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", ".*not in the possible render_modes")  # Refused.
            made = gym.make(identifier, disable_env_checker=True, **arguments)
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise MissingPackageError(f"{dynamics.name!r} cannot be made: {error}") from error
    except gym.error.Error as error:
        hint = (
            "Environments that another package or a module of yours registers are"
            " 'gymnasium/<module>:<id>'; worker processes do not know those that a script registers"
            " for itself."
        )
        known = [f"gymnasium/{registered}" for registered in gym.registry]
        raise unknown_name(name, known, hint) from error
    except (Exception, SystemExit) as error:  # Of its constructor, which may raise any.
        raise EnvironmentNameError(
            f"{dynamics.name!r} cannot be made: {type(error).__name__}:"
            f" {error}{plugins.place_of(error)}"
        ) from error
    modes = made.metadata.get("render_modes") or []
    if given is not None and given not in modes:
        made.close()
        raise EnvironmentNameError(
            f"{dynamics.name!r} has the render_mode {given!r}; expected one of {modes}."
        )
    return made


class _Conversion(NamedTuple):
    """The spec of a space, and a function from observations to it, or from actions of it."""

    spec: Any
    convert: Callable[[Any], Any]


@functools.cache
def _spaces(dynamics: Gymnasium) -> tuple[_Conversion, _Conversion]:
    environment = _make(dynamics)
    try:
        return (
            _observations(dynamics, environment.observation_space),
            _actions(dynamics, environment.action_space),
        )
    finally:
        environment.close()


def _observations(dynamics: Gymnasium, space: Any) -> _Conversion:
    """Return the specs and the conversion of observations of a space."""
    leaves = dict(_leaves(dynamics.name, space, (), ()))
    if () in leaves:
        return leaves[()][1]
    if not leaves:
        raise ValueError(
            f"{dynamics.name} has observations of the space {shown(str(space))}, which is empty."
        )
    parts: dict[str, Any] = {}
    for path, part in leaves.items():
        name = "/".join(path)
        if name in parts:
            raise ValueError(f"{dynamics.name} has two observations named '{shown(name)}'.")
        parts[name] = part

    def convert(observation: Any) -> dict[str, Any]:
        converted = {}
        for name, (keys, part) in parts.items():
            member = observation
            for key in keys:
                member = member[key]
            converted[name] = part.convert(member)
        return converted

    return _Conversion({name: part.spec for name, (_, part) in parts.items()}, convert)


def _leaves(environment: str, space: Any, path: tuple[str, ...], keys: tuple[Any, ...]):
    """Yield, for each space that is no collection, its path with its keys and conversion."""
    if isinstance(space, gym.spaces.Dict):
        members = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        members = enumerate(space.spaces)
    else:
        yield path, (keys, _leaf(environment, "/".join(path), space))
        return
    for key, member in members:
        yield from _leaves(environment, member, (*path, str(key)), (*keys, key))


def _leaf(environment: str, path: str, space: Any) -> _Conversion:
    """Return the spec and the conversion of one array."""
    name = path or "observation"
    spaces = gym.spaces
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        spec = specs.DiscreteArray(int(space.n), name=name)
        return _Conversion(spec, lambda x: (np.asarray(x, np.int64) - first).astype(np.int32))
    if isinstance(space, spaces.Box):
        return _box(name, space)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        size = spaces.flatdim(space)
        spec = specs.BoundedArray((size,), np.float32, 0.0, 1.0, name=name)
        return _Conversion(
            spec,
            lambda x: np.asarray(spaces.flatten(space, np.asarray(x, space.dtype)), np.float32),
        )
    if _is_text(space):
        text = TextSpec(_MOST_WORDS, name)
        return _Conversion(text, text.tokens)
    what = f"the observation '{shown(path)}'" if path else "observations"
    raise ValueError(
        f"{environment} has {what} of the space {shown(str(space))}; expected Box, Discrete,"
        " MultiDiscrete, MultiBinary, Text, or a Dict or Tuple of these."
    )


def _is_text(space: Any) -> bool:
    # MiniGrid's own space of its missions is no `Text`.
    return isinstance(space, gym.spaces.Text) or np.issubdtype(
        getattr(space, "dtype", None), np.str_
    )


def _declared(space: Any) -> Any:
    """Return what `output_checks.check_observation` compares members of a space with."""
    spaces = gym.spaces
    if isinstance(space, spaces.Dict):
        return {key: _declared(member) for key, member in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_declared(member) for member in space.spaces)
    if _is_text(space):
        return str
    low, high = 0, 1  # Of MultiBinary.
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    return specs.BoundedArray(space.shape, space.dtype, low, high)


def _box(name: str, space: Any) -> _Conversion:
    """Return the spec and the conversion of an image, or of an array of numbers."""
    shape = space.shape
    if space.dtype == np.uint8 and len(shape) in (2, 3):
        in_front = (
            len(shape) == 3
            and shape[0] < min(shape[2], SMALLEST_PICTURE)
            and shape[2] not in _CHANNELS
        )
        sides = shape[1:] if in_front else shape[:2]
        if min(sides) >= SMALLEST_PICTURE:
            channels = 1 if len(shape) == 2 else shape[0 if in_front else 2]
            spec = specs.BoundedArray((*sides, channels), np.uint8, 0, 255, name=name)
            if in_front:
                return _Conversion(spec, lambda x: np.moveaxis(np.asarray(x, np.uint8), 0, -1))
            if len(shape) == 2:
                return _Conversion(spec, lambda x: np.asarray(x, np.uint8)[..., None])
            return _Conversion(spec, lambda x: np.asarray(x, np.uint8))
    if np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_:
        limits = np.iinfo(np.int32)
        low = max(limits.min, int(np.min(space.low)) if space.low.size else 0)
        high = min(limits.max, int(np.max(space.high)) if space.high.size else 0)
        spec = specs.BoundedArray(shape, np.int32, low, high, name=name)
        return _Conversion(
            spec,
            lambda x: np.clip(np.asarray(x), limits.min, limits.max).astype(np.int32),
        )
    return _Conversion(
        specs.Array(shape, np.float32, name=name), lambda x: np.asarray(x, np.float32)
    )


def _actions(dynamics: Gymnasium, space: Any) -> _Conversion:
    """Return the spec of actions, and their conversion."""
    if isinstance(space, gym.spaces.Discrete):
        first = int(space.start)
        spec = specs.DiscreteArray(int(space.n), name="action")
        return _Conversion(spec, lambda action: first + int(action))
    is_vector = isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if is_vector and math.prod(space.shape):
        low, high = (x.ravel().astype(np.float32) for x in (space.low, space.high))
        spec = specs.BoundedArray(low.shape, np.float32, low, high, name="action")
        return _Conversion(
            spec,
            lambda action: np.clip(action, low, high).astype(space.dtype).reshape(space.shape),
        )
    raise ValueError(
        f"{dynamics.name} has actions of the space {shown(str(space))}; expected Discrete, or a Box"
        " of floating-point numbers."
    )

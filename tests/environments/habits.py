"""Environments of Gymnasium and of JAX that return what their users' return, by case.

`gymnasium/tests.environments.habits:Habit-v0?case=NAME` and `tests.environments.habits:make/NAME`.
"""

import dataclasses
from typing import Any, cast

import dm_env
import gymnasium
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from gymnasium import spaces

from environments.base import Environment, JaxEnvironment, Simulators, restart, transition
from environments.processes import ProcessSimulators
from tests.agents.common import HostCorridor

PICTURE = spaces.Box(0, 255, (32, 32, 3), np.uint8)
GREY = spaces.Box(0.0, 1.0, (32, 32, 1), np.float32)
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
WIDE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
PAIR = spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,))])
NEST = spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2)), c=VECTOR)
ONE = np.zeros(3, np.float32)
FIVE, ROW = spaces.Discrete(5), np.zeros(2, np.float32)
STRANGE = "\x1b[2J" + "k" * 10_000
PIXELS = np.arange(32 * 32 * 3).reshape(32, 32, 3) % 256


@dataclasses.dataclass(frozen=True)
class Case:
    """A space, and what an environment returns for it.

    Attributes:
      observation: that reset and step return.
      rest: reward, terminated, truncated, info of the step.
      reset: what reset returns instead.
      step: what step returns instead.
      actions: the space of actions.
    """

    space: Any
    observation: Any
    rest: tuple[Any, ...] = (1.0, False, False, {})
    reset: Any = None
    step: Any = None
    actions: Any = dataclasses.field(default_factory=lambda: spaces.Discrete(2))


def rewarded(reward: Any, terminated: Any = False, truncated: Any = False) -> Case:
    return Case(VECTOR, ONE, (reward, terminated, truncated, {}))


def acting(space: Any) -> Case:
    return Case(VECTOR, ONE, actions=space)


ACCEPTED = {
    "image": Case(PICTURE, PIXELS.astype(np.uint8)),
    "image of lists": Case(PICTURE, PIXELS.tolist()),
    "image of wider integers": Case(PICTURE, PIXELS.astype(np.int64)),
    "plane of lists": Case(spaces.Box(0, 255, (20, 30), np.uint8), [[7] * 30] * 20),
    "channels first of lists": Case(
        spaces.Box(0, 255, (3, 20, 30), np.uint8), [[[7] * 30] * 20] * 3
    ),
    "black image of floats": Case(GREY, np.zeros((32, 32, 1), np.float64)),
    "binary image of booleans": Case(spaces.Box(0, 1, (20, 20), np.uint8), np.eye(20, dtype=bool)),
    "doubles": Case(VECTOR, ONE.astype(np.float64)),
    "integers for floats": Case(VECTOR, [0, 1, -1]),
    "list": Case(VECTOR, [0.5, 0.0, -0.5]),
    "tuple": Case(VECTOR, (0.5, 0.0, -0.5)),
    "a little out of range": Case(VECTOR, np.array([1.0001, 0, 0])),
    "far out of range": Case(VECTOR, np.array([4.0, 0, 0])),
    "choice": Case(FIVE, 4),
    "choice of NumPy": Case(FIVE, np.array(4, np.uint8)),
    "choice from 4": Case(spaces.Discrete(3, start=4), np.uint8(6)),
    "whole number": Case(FIVE, 4.0),
    "whole numbers": Case(spaces.Box(0, 9, (2,), np.int32), np.array([1.0, 9.0])),
    "bits": Case(spaces.MultiBinary(3), [True, False, True]),
    "choices": Case(spaces.MultiDiscrete([2, 3]), [1, 2]),
    "empty key": Case(spaces.Dict({"": spaces.Box(0.0, 1.0, (2,))}), {"": ROW}),
    "empty keys": Case(
        spaces.Dict({"": spaces.Dict({"": FIVE}), "a": FIVE}), {"": {"": 1}, "a": 2}
    ),
    "tuple of a list": Case(PAIR, [2, [0.5, 1.0]]),
    "nest": Case(NEST, {"a": {"b": 1}, "c": [0, 0, 1]}),
    "text": Case(spaces.Text(9), "go"),
    "strange key": Case(spaces.Dict({STRANGE: VECTOR}), {STRANGE: ONE}),
    "reward of shape (1,)": rewarded(np.ones(1)),
    "reward of shape ()": rewarded(np.array(1.0)),
    "reward of a list": rewarded([1.0]),
    "reward of True": rewarded(True),
    "reward of an integer": rewarded(np.int64(1)),
    "end as an integer": rewarded(1.0, 1, 0),
    "end as an array": rewarded(1.0, np.array([True]), np.array(False)),
    "end of NumPy": rewarded(1.0, np.bool_(False), np.bool_(True)),
    "lists in all": Case(VECTOR, ONE, reset=[ONE, {}], step=[ONE, 1.0, False, False, {}]),
    "bounded actions": acting(spaces.Box(1.0, 2.0, (2,))),
}
# With words that the message has.
REFUSED = {
    "image of floats": (
        Case(PICTURE, (PIXELS / 255.0).astype(np.float32)),
        r"float32 \(32, 32, 3\) from 0 to 1 .*expected uint8 \(32, 32, 3\) from 0 to 255",
    ),
    "black image": (Case(PICTURE, np.zeros((32, 32, 3))), r"float64 .*expected uint8"),
    "image of booleans": (Case(PICTURE, PIXELS > 9), r"bool .*expected uint8"),
    "image of lists of floats": (Case(PICTURE, (PIXELS / 255.0).tolist()), "float64 .*uint8"),
    "channels first": (
        Case(PICTURE, np.zeros((3, 32, 32), np.uint8)),
        r"uint8 \(3, 32, 32\) .*expected uint8 \(32, 32, 3\)",
    ),
    "channels last": (
        Case(spaces.Box(0, 255, (3, 20, 30), np.uint8), np.zeros((20, 30, 3), np.uint8)),
        r"uint8 \(20, 30, 3\) .*expected uint8 \(3, 20, 30\)",
    ),
    "sides swapped": (
        Case(spaces.Box(0, 255, (20, 30, 3), np.uint8), np.zeros((30, 20, 3), np.uint8)),
        r"\(30, 20, 3\) .*\(20, 30, 3\)",
    ),
    "no channel": (Case(PICTURE, np.zeros((32, 32), np.uint8)), r"\(32, 32\) .*\(32, 32, 3\)"),
    "a batch": (Case(PICTURE, PIXELS[None].astype(np.uint8)), r"\(1, 32, 32, 3\)"),
    "image out of range": (Case(PICTURE, PIXELS + 1), r"from 1 to 256 .*from 0 to 255"),
    "image below its range": (Case(PICTURE, PIXELS - 1), r"from -1 to 254"),
    "bytes for a float image": (Case(GREY, np.full((32, 32, 1), 255, np.uint8)), "uint8 .*float32"),
    "float": (Case(VECTOR, 0.5), r"float64 \(\) of 0.5 .*expected float32 \(3,\) from -1 to 1"),
    "one": (Case(VECTOR, ONE[:1]), r"float32 \(1,\)"),
    "two": (Case(VECTOR, ONE[:2]), r"float32 \(2,\)"),
    "a row": (Case(VECTOR, ONE[None]), r"float32 \(1, 3\)"),
    "ragged": (Case(VECTOR, [[1.0], 2.0, 3.0]), "a list of 3"),
    "None": (Case(VECTOR, None), "returned None"),
    "words": (Case(VECTOR, ["1", "2", "3"]), "a list of 3"),
    "NaN": (Case(WIDE, np.array([np.nan, 0, 0])), "from nan to nan"),
    "infinite": (Case(WIDE, np.array([np.inf, 0, 0])), "from 0 to inf"),
    "complex": (Case(VECTOR, ONE.astype(np.complex64)), "a ndarray"),
    "choice out of range": (Case(FIVE, 7), r"int64 \(\) of 7 .*expected int64 \(\) from 0 to 4"),
    "choice below": (Case(FIVE, -1), "of -1"),
    "choice below its start": (Case(spaces.Discrete(3, start=4), 0), "of 0 .*from 4 to 6"),
    "no whole number": (Case(FIVE, 1.5), "of 1.5"),
    "choice of shape (1,)": (Case(FIVE, np.array([1])), r"int64 \(1,\)"),
    "choice one-hot": (Case(FIVE, np.eye(5)[2]), r"float64 \(5,\)"),
    "choices out of range": (Case(spaces.MultiDiscrete([2, 3]), [1, 3]), "from 1 to 3"),
    "bits out of range": (Case(spaces.MultiBinary(3), [0, 1, 2]), "from 0 to 2"),
    "integers out of range": (Case(spaces.Box(0, 9, (2,), np.int32), [0, 10]), "from 0 to 10"),
    "parts of integers": (Case(spaces.Box(0, 9, (2,), np.int32), [0.5, 1.0]), "float64"),
    "array for a dictionary": (
        Case(NEST, ONE),
        r"float32 \(3,\).*expected a dictionary of 'a', 'c'",
    ),
    "key missing": (Case(NEST, {"c": ONE}), "a dictionary of 'c' .*expected .* 'a', 'c'"),
    "key too many": (Case(NEST, {"a": {"b": 1}, "c": ONE, "d": 1}), "dictionary of 'a', 'c', 'd'"),
    "wrong in a nest": (Case(NEST, {"a": {"b": 2}, "c": ONE}), "of 2 as the observation 'a/b'"),
    "tuple too short": (Case(PAIR, (1,)), "a tuple of 2"),
    "tuple too long": (Case(PAIR, (1, ROW, 0)), "a tuple of 2"),
    "wrong in a tuple": (Case(PAIR, (1, 0.5)), r"as the observation '1'; expected float32 \(2,\)"),
    "no text": (Case(spaces.Text(9), 5), "expected a text"),
    "strange keys": (Case(spaces.Dict({STRANGE: FIVE}), {STRANGE: 9}), r"'\\x1b\[2Jk+…'"),
    "reward None": (rewarded(None), "step returned None as the reward; expected one finite number"),
    "reward NaN": (rewarded(float("nan")), "nan as the reward"),
    "reward infinite": (rewarded(np.float32("inf")), "inf as the reward"),
    "reward too large": (rewarded(1e300), "as the reward"),
    "rewards": (rewarded(np.ones(2)), r"float64 \(2,\) .*as the reward"),
    "reward of words": (rewarded("1.0"), "a str as the reward"),
    "reward in a dictionary": (rewarded({"agent": 1.0}), "a dictionary of 'agent' as the reward"),
    "no end": (rewarded(1.0, None), "None as the terminated"),
    "ends": (rewarded(1.0, np.zeros(2, bool)), "as the terminated"),
    "reset without info": (
        Case(VECTOR, ONE, reset=ONE),
        "reset returned .*expected observation, info",
    ),
    "step of four": (
        Case(VECTOR, ONE, step=(ONE, 1.0, False, {})),
        "a tuple of 4 .*truncated, info",
    ),
    "step differs": (
        Case(VECTOR, ONE, step=(ONE[:2], 1.0, False, False, {})),
        r"first step .*\(2,\)",
    ),
    "unbounded actions": (acting(spaces.Box(-np.inf, np.inf, (2,))), "actions .* from -inf to inf"),
    "actions without an upper bound": (acting(spaces.Box(0.0, np.inf, (2,))), "from 0 to inf"),
}


class Habit(gymnasium.Env):
    """Two steps an episode."""

    def __init__(self, case: str):
        self._case = ACCEPTED[case] if case in ACCEPTED else REFUSED[case][0]
        self.observation_space, self.action_space = self._case.space, self._case.actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        case = self._case
        return (case.observation, {}) if case.reset is None else case.reset

    def step(self, action):
        assert self.action_space.contains(action)
        case = self._case
        return (case.observation, *case.rest) if case.step is None else case.step


gymnasium.register("Habit-v0", f"{__name__}:Habit")


@dataclasses.dataclass(frozen=True)
class JaxHabit:
    """A JAX environment that returns what its case says."""

    case: str

    def observation_spec(self) -> Any:
        if self.case.startswith("dictionary"):
            return {"a": specs.Array((3,), np.float32), "b": specs.DiscreteArray(4)}
        if self.case.startswith("image"):
            return specs.BoundedArray((16, 16, 3), np.uint8, 0, 255)
        return specs.Array((3,), np.float32)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2)

    def reset(self, task, key) -> Any:
        if self.case == "reset without a state":
            return restart(jnp.zeros(3))
        timestep = restart(jnp.zeros(3))._replace(observation=self._observation("reset"))
        if self.case == "no reward at first":
            timestep = timestep._replace(reward=None)
        return jnp.zeros(2), timestep

    def step(self, task, state, action, key) -> Any:
        timestep = transition(jnp.zeros(3), state[0], terminated=False, truncated=action == 1)
        timestep = timestep._replace(observation=self._observation("step"))
        if self.case == "rewards":
            timestep = timestep._replace(reward=jnp.zeros(1))
        if self.case == "no time step":
            return state, (jnp.zeros(3), 1.0, False, {})
        if self.case == "state grows":
            state = jnp.zeros(3)
        if self.case == "state of integers":
            state = state.astype(jnp.int32)
        return (state, state) if self.case == "state changes" else state, timestep

    def _observation(self, call: str) -> Any:
        shape = {"row": (1, 3), "scalar": (), "two": (2,), f"two at {call}": (2,)}
        x = jnp.zeros(shape.get(self.case, 3))
        found = {
            "integers": x.astype(jnp.int32),
            "list": [0.0, 0.0, 0.0],
            "dictionary": {"a": x, "b": jnp.uint8(1)},
            "dictionary without a key": {"a": x},
            "dictionary with floats": {"a": x, "b": 1.0},
            "image": jnp.zeros((16, 16, 3), jnp.uint8),
            "image of floats": jnp.zeros((16, 16, 3)),
            "image, channels first": jnp.zeros((3, 16, 16), jnp.uint8),
        }
        return found.get(self.case, x)


JAX_ACCEPTED = ["vector", "integers", "dictionary", "image", "state of integers"]
JAX_REFUSED = {
    "row": r"first reset returned float32 \(1, 3\) .*expected float32 \(3,\)",
    "scalar": r"float32 \(\) as the observation",
    "two": r"float32 \(2,\)",
    "two at step": r"first step returned float32 \(2,\)",
    "list": "a list of 3",
    "dictionary without a key": "a dictionary of 'a' .*'a', 'b'",
    "dictionary with floats": r"float32 \(\) .* 'b'; expected int32 \(\) from 0 to 3",
    "image of floats": r"float32 \(16, 16, 3\) .*uint8",
    "image, channels first": r"\(3, 16, 16\) .*\(16, 16, 3\)",
    "reset without a state": "expected a state and a time step",
    "no reward at first": "None as the reward",
    "rewards": r"float32 \(1,\) as the reward",
    "no time step": "expected a dm_env.TimeStep",
    "state grows": r"float32 \(3,\) as the state's part ''; expected float32 \(2,\)",
    "state changes": "as the state; expected the structure of its reset's state",
}


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Corridors in worker processes, of another observation than they declare; by task."""

    def observation_spec(self) -> Any:
        return specs.Array((2,), np.float32)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2)

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        if task == "batch":
            return Batched(batch_size)
        make = {"reset": WrongAtReset, "step": WrongAtStep, "right": Right}[task]
        return ProcessSimulators(make, self, batch_size, seed, num_processes=workers)


class Right(HostCorridor):
    def __init__(self, seed: int):
        super().__init__(3, terminates=True, seed=seed)

    def step(self, action):
        timestep = super().step(action)
        return timestep._replace(reward=np.ones(1))


class Batched:
    """Simulators without workers, as those of engines with own threads; one number is missing."""

    def __init__(self, batch_size: int):
        self.batch_size, self.restarts, self.results = batch_size, 0, {}

    def reset(self) -> dm_env.TimeStep:
        first, one = np.full(self.batch_size, dm_env.StepType.FIRST), np.ones(self.batch_size)
        return dm_env.TimeStep(first, 0 * one, one, np.zeros((self.batch_size, 1)))

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        return self.reset()

    def close(self) -> None: ...


class WrongAtReset(Right):
    def _observe(self):
        return super()._observe()[0]


class WrongAtStep(Right):
    def step(self, action):
        return super().step(action)._replace(reward=None)


def make(parameters: str) -> Environment:
    """Make a JAX environment of a case, or `host/TASK`."""
    kind, _, task = parameters.partition("/")
    if kind == "host":
        return Environment(parameters, Hosts(), task)
    return Environment(parameters, cast(Any, JaxHabit(parameters)))


assert isinstance(JaxHabit(""), JaxEnvironment)

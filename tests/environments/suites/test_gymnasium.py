"""Registered environments of Gymnasium."""

import dataclasses
from typing import Any

import gymnasium
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import environments
from agents.encoders import Encoder, NetworkConfig
from environments import EnvironmentNameError, MissingPackageError, SimulatorError, names
from environments.base import TextSpec
from environments.suites import gymnasium as suite
from tests.environments.streams import (
    FIRST,
    LAST,
    assert_same,
    assert_valid,
    dynamics_of,
    random_actions,
    record,
)

NAMES = [
    "gymnasium/CartPole-v1",
    "gymnasium/Acrobot-v1",
    "gymnasium/MountainCar-v0",
    "gymnasium/LunarLander-v3",
    "gymnasium/minigrid:MiniGrid-Empty-8x8-v0",
    "gymnasium/minigrid:MiniGrid-DoorKey-5x5-v0",
    "gymnasium/Blackjack-v1",
    "gymnasium/FrozenLake-v1?is_slippery=False&map_name=8x8",
]


def recorded(name, steps, seed, workers):
    environment = environments.make(name)
    dynamics = dynamics_of(environment)
    simulators = dynamics.start(environment.params, 2, seed, workers=workers)
    return record(simulators, random_actions(dynamics, steps, 2))


@pytest.mark.parametrize("name", NAMES)
def test_observations_and_episodes(name):
    stream = recorded(name, 600, 0, 2)
    assert_valid(stream, dynamics_of(environments.make(name)))
    assert stream.is_(FIRST).sum() > 2
    assert_same(stream, recorded(name, 600, 0, 1))


def test_seeds_and_episodes_differ():
    first, other = (recorded("gymnasium/CartPole-v1", 100, seed, 1) for seed in (0, 2))
    starts = first.timestep.observation[first.is_(FIRST)]
    assert len(np.unique(starts[:, 0])) == len(starts) > 3
    assert not np.isin(other.timestep.observation[other.is_(FIRST)], starts).any()


def test_the_stream_is_the_environments_own():
    stream = recorded("gymnasium/CartPole-v1", 60, 5, 1)
    theirs = gymnasium.make("CartPole-v1")
    actions = random_actions(dynamics_of(environments.make("gymnasium/CartPole-v1")), 60, 2)[:, 0]
    expected = [theirs.reset(seed=5)[0]]
    ended = False
    for action in actions:
        if ended:
            expected.append(theirs.reset()[0])
            ended = False
        else:
            observation, _, terminated, truncated, _ = theirs.step(int(action))
            expected.append(observation)
            ended = terminated or truncated
    np.testing.assert_array_equal(stream.timestep.observation[:, 0], expected)


def test_a_time_limit_truncates_and_a_fall_terminates():
    car = recorded("gymnasium/MountainCar-v0", 400, 0, 1)
    assert car.is_(LAST)[200].all()
    assert (car.timestep.discount[200] == 1.0).all()
    pole = recorded("gymnasium/CartPole-v1", 100, 0, 1)
    assert (pole.timestep.discount[pole.is_(LAST)] == 0.0).all()


def test_continuous_actions_are_clipped_to_their_bounds():
    simulator = suite.GymnasiumSimulator(suite.Gymnasium("gymnasium/Pendulum-v1"), 0)
    other = suite.GymnasiumSimulator(suite.Gymnasium("gymnasium/Pendulum-v1"), 0)
    assert simulator._actions.spec.shape == (1,)
    for one in (simulator, other):
        one.reset()
    largest = simulator.step(np.array([2.0], np.float32))
    np.testing.assert_array_equal(
        largest.observation, other.step(np.array([9.0], np.float32)).observation
    )


def test_minigrids_view_is_no_image_and_its_mission_is_words():
    spec: Any = dynamics_of(environments.make(NAMES[5])).observation_spec()
    assert (spec["image"].shape, spec["image"].dtype) == ((7, 7, 3), np.int32)
    assert isinstance(spec["direction"], specs.DiscreteArray)
    assert isinstance(spec["mission"], TextSpec)
    seen = recorded(NAMES[5], 1, 0, 1).timestep.observation["mission"][0, 0]
    words = "use the key to open the door and then get to the goal".split()
    assert np.count_nonzero(seen) == len(words)
    assert len(set(seen[seen > 0])) == len(set(words))


@dataclasses.dataclass
class Fixed:
    """An environment of one space of observations, and of actions."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space = dataclasses.field(default_factory=lambda: spaces.Discrete(2))


LETTERS = spaces.Text(5)
CASES = {
    "plane": (spaces.Box(0, 255, (20, 30), np.uint8), (20, 30, 1), np.uint8),
    "channels first": (spaces.Box(0, 255, (3, 20, 30), np.uint8), (20, 30, 3), np.uint8),
    "many channels": (spaces.Box(0, 255, (16, 16, 32), np.uint8), (16, 16, 32), np.uint8),
    "frames first": (spaces.Box(0, 255, (12, 84, 84), np.uint8), (84, 84, 12), np.uint8),
    "channels last": (spaces.Box(0, 255, (20, 30, 4), np.uint8), (20, 30, 4), np.uint8),
    "double": (spaces.Box(-1, 1, (3,), np.float64), (3,), np.float32),
    "long": (spaces.Box(-(2**60), 2**60, (2,), np.int64), (2,), np.int32),
    "bits": (spaces.MultiBinary(3), (3,), np.float32),
    "choices": (spaces.MultiDiscrete([2, 3]), (5,), np.float32),
    "from 4": (spaces.Discrete(3, start=4), (), np.int32),
    "text": (LETTERS, (32,), np.int32),
}


@pytest.mark.parametrize("case", CASES)
def test_spaces(case, monkeypatch):
    space, shape, dtype = CASES[case]
    found = suite._observations(suite.Gymnasium("gymnasium/x"), space)
    space.seed(0)
    member = found.convert(space.sample())
    assert (found.spec.shape, found.spec.dtype) == (member.shape, member.dtype) == (shape, dtype)
    found.spec.validate(member)


def test_values_of_spaces():
    def converted(space, member):
        return suite._observations(suite.Gymnasium("gymnasium/x"), space).convert(member)

    assert converted(CASES["from 4"][0], 6) == 2
    assert converted(CASES["choices"][0], np.array([1, 2])).tolist() == [0, 1, 0, 0, 1]
    image = np.arange(3 * 20 * 30, dtype=np.uint8).reshape(3, 20, 30)
    np.testing.assert_array_equal(converted(CASES["channels first"][0], image)[:, :, 1], image[1])
    assert converted(CASES["long"][0], np.array([2**40, -3])).tolist() == [2**31 - 1, -3]
    nest = spaces.Tuple([spaces.Dict(a=spaces.Discrete(3)), spaces.MultiBinary(1)])
    found = converted(nest, ({"a": 2}, np.ones(1, np.int8)))
    assert {name: x.tolist() for name, x in found.items()} == {"0/a": 2, "1": [1.0]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "FrozenLake-v1?is_slippery=false",
            "'is_slippery' is false; expected False, or",
        ),
        ("FrozenLake-v1?map_name=4x4&map_name=8x8", "gives an argument twice"),
        ("FrozenLake-v1?map_name=9x9", "cannot be made: KeyError: '9x9'"),
        ("LunarLander-v3?gravity=5", "cannot be made: AssertionError"),
        ("a:b:c", "cannot be made|There is no environment"),
        (
            "CartPol-v1",
            "There is no environment 'gymnasium/CartPol-v1'. Near it: 'gymnasium/Car",
        ),
        ("CartPole-v99", "There is no environment 'gymnasium/CartPole-v99'"),
        ("CartPole-v1?colour=3", r"CartPole-v1\?colour=3' cannot be made.*'colour'"),
        ("CartPole-v1?colour", "malformed; expected NAME=VALUE"),
        ("", "There is no environment 'gymnasium/'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(EnvironmentNameError, match=message):
        environments.make(f"gymnasium/{name}")


def test_a_missing_module_is_named():
    with pytest.raises(MissingPackageError, match="No module named 'no_such_package'"):
        environments.make("gymnasium/no_such_package:Task-v0")


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2), "observations of the space Seq"),
        (spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), "actions of the space MultiDiscrete"),
        (
            spaces.Dict({"a": spaces.Dict(b=spaces.Discrete(2)), "a/b": spaces.Discrete(2)}),
            spaces.Discrete(2),
            "two observations named 'a/b'",
        ),
    ],
)
def test_spaces_that_are_refused(observation, action, message):
    dynamics = suite.Gymnasium("gymnasium/Fixed-v0")
    with pytest.raises(ValueError, match=f"gymnasium/Fixed-v0 has .*{message}"):
        _ = suite._observations(dynamics, observation), suite._actions(dynamics, action)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_arguments_that_cannot_be_written(value):
    with pytest.raises(EnvironmentNameError, match="expected what Python writes as a literal"):
        names.with_arguments("gymnasium/A-v0", {"x": value})


@pytest.mark.parametrize("value", ["true", "None", "7", "a b&c=d,e", (1, "x"), [2.5], {"k": False}])
def test_arguments_are_read_as_they_were_written(value):
    name = names.with_arguments("gymnasium/A-v0", {"x": value})
    assert names.split(name) == ("gymnasium/A-v0", {"x": value})


class Drawn(gymnasium.Env):
    """One step an episode. Draws what it is told to."""

    observation_space = spaces.Dict({"a": spaces.Dict({"mission text": LETTERS}), "b c": LETTERS})
    action_space = spaces.Discrete(2)

    def __init__(self, picture=None, **kwargs):
        self.picture, self.render_mode = picture, kwargs.get("render_mode")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"a": {"mission text": "up"}, "b c": "up"}, {}

    def step(self, action):
        return self.reset()[0], 1.0, True, False, {}

    def render(self) -> Any:
        if self.picture == "error":
            raise RuntimeError("no screen")
        return np.zeros((4, 5, 3), np.uint8) if self.picture == "good" else None


class Undrawn(Drawn):
    """Whose constructor does not know render modes."""

    def __init__(self):
        super().__init__()


class DrawnInRGB(Drawn):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012


@pytest.fixture
def _registered():
    for kind in (Drawn, Undrawn, DrawnInRGB):
        gymnasium.register(f"{kind.__name__}-v0", kind)
    yield
    for kind in (Drawn, Undrawn, DrawnInRGB):
        del gymnasium.registry[f"{kind.__name__}-v0"]
    suite._spaces.cache_clear()


@pytest.mark.usefixtures("_registered")
def test_pictures():
    def filmed(name):
        return suite.Gymnasium(f"gymnasium/{name}").filmed((), 0)

    assert filmed("Drawn-v0") is None
    assert filmed("Undrawn-v0") is None
    good = filmed("DrawnInRGB-v0?picture=good")
    assert good is not None
    good.reset()
    assert good.render().shape == (4, 5, 3)
    for picture, message in (("none_at_all", "draws object"), ("error", "no screen")):
        bad = filmed(f"DrawnInRGB-v0?picture={picture}")
        assert bad is not None
        bad.reset()
        with pytest.raises(SimulatorError, match=f"DrawnInRGB-v0.*{message}"):
            bad.render()


@pytest.mark.usefixtures("_registered")
def test_networks_read_texts_of_any_name():
    spec = suite.Gymnasium("gymnasium/Drawn-v0").observation_spec()
    assert isinstance(spec, dict)
    seen = {name: jnp.array([[[5, 0, *[0] * 30]]]) for name in spec}
    network = hk.transform(lambda x: Encoder(NetworkConfig(torso=(7,)), spec)(x))
    params = network.init(jax.random.key(0), seen)
    assert len([name for name in params if "language" in name and "lstm" in name]) == 2
    assert network.apply(params, jax.random.key(0), seen).shape == (1, 7)


def test_arguments_in_names():
    name = names.with_arguments(
        "gymnasium/A-v0?size=5", {"word": "up, down", "text": "7", "on": True}
    )
    assert name == "gymnasium/A-v0?on=True&size=5&text=%277%27&word=up%2C+down"
    assert names.split(name) == (
        "gymnasium/A-v0",
        {"on": True, "size": 5, "text": "7", "word": "up, down"},
    )
    made = environments.make("gymnasium/FrozenLake-v1?map_name=8x8&is_slippery=False")
    assert made.name == NAMES[-1]

"""Jumanji compiles for seconds: most tests only trace, or step the environments that are cheap."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from environments import EnvironmentNameError, MissingPackageError, registry
from environments.base import promoting, stream
from environments.suites import jumanji as suite
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import tasks_of
from tests.environments.streams import dynamics_of
from tests.environments.test_protocol import start_whose_types_stay
from tests.evaluation import common

jumanji = pytest.importorskip("jumanji", reason="Jumanji is not installed.")

# Inputs, actions, and steps after which an episode is truncated.
SIZES = {
    "Game2048-v1": (20, 4, None),
    "GraphColoring-v1": (860, 20, None),
    "Knapsack-v1": (200, 50, None),
    "Maze-v0": (145, 4, 100),
    "PacMan-v1": (1586, 5, 1000),
    "SlidingTilePuzzle-v0": (640, 4, 500),
    "Snake-v1": (725, 4, 4000),
    "TSP-v1": (500, 20, None),
    "CVRP-v1": (1007, 21, None),
}


def programs(name):
    """Reset and step of an environment, compiled."""
    dynamics = dynamics_of(environments.make(f"jumanji/{name}"))
    reset, step = jax.jit(dynamics.reset), jax.jit(dynamics.step)

    def start(seed):
        return reset((), jax.random.key(seed))

    def take(state, action):
        return step((), state, jnp.int32(action), jax.random.key(0))

    return start, take


@pytest.fixture(scope="module")
def maze():
    return programs("Maze-v0")


@pytest.fixture(scope="module")
def tsp():
    return programs("TSP-v1")


def test_the_suite_is_what_its_table_says():
    assert registry.members_of("jumanji") == tuple(f"jumanji/{name}" for name in SIZES)


@pytest.mark.slow
def test_the_suite_is_what_has_one_discrete_action():
    others = jumanji.registered_environments() - {*SIZES, "Sokoban-v0"}
    assert others
    for name in others:
        with promoting():
            spec = jumanji.make(name).action_spec
        assert not isinstance(spec, jumanji.specs.DiscreteArray)


@pytest.mark.parametrize("name", SIZES)
def test_reset_and_step_agree_with_each_other_and_with_the_specs(name):
    environment = environments.make(f"jumanji/{name}")
    dynamics = dynamics_of(environment)
    assert dynamics == environments.make(f"jumanji/{name}").dynamics
    assert not environment.is_host
    spec = dynamics.observation_spec()
    assert not isinstance(spec, dict)
    inputs, actions, limit = SIZES[name]
    assert spec.shape == (inputs,)
    assert dynamics.action_spec().num_values == actions
    assert suite._load(name).time_limit == limit
    _, timestep = start_whose_types_stay(dynamics, (), jax.random.key(0))
    observation = timestep.observation
    assert (observation.shape, observation.dtype) == (spec.shape, spec.dtype)
    # Checkpoints write states by NumPy.
    key = jax.random.key(0)
    states = jax.tree.leaves(jax.eval_shape(dynamics.reset, (), key)[0])
    assert all(isinstance(x.dtype, np.dtype) for x in states)


def test_numbers_are_encoded_by_their_specs():
    def encoded(spec, x):
        leaf = suite._Leaf.of(spec)
        made = leaf.encode(x)
        assert made.shape == (leaf.size,)
        assert made.dtype == jnp.float32
        return made.tolist()

    specs = jumanji.specs
    one_hot = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert encoded(specs.BoundedArray((2,), int, -1, 1), jnp.array([-1, 1])) == one_hot
    assert encoded(specs.DiscreteArray(3), 1) == [0.0, 1.0, 0.0]
    assert encoded(specs.BoundedArray((), int, 0, 31), 31)[-1] == 1.0
    assert encoded(specs.BoundedArray((), int, 0, 32), 16) == [0.5]
    assert encoded(specs.BoundedArray((1, 2), int, 0, 1), jnp.array([[0, 1]])) == [0.0, 1.0]
    assert encoded(specs.BoundedArray((2,), bool, False, True), jnp.array([True, False])) == [1, 0]
    assert encoded(specs.BoundedArray((1,), float, -2.0, 2.0), jnp.array([1.0])) == [0.75]
    assert encoded(specs.BoundedArray((1,), float, 0.0, jnp.inf), jnp.array([9.0])) == [9.0]
    assert encoded(specs.Array((1,), float), jnp.array([-3.0])) == [-3.0]
    assert encoded(specs.Array((2,), int), jnp.array([-3, 0])) == [-np.log(np.float32(4.0)), 0.0]


def test_an_episode_is_jumanjis_own():
    start, take = programs("Game2048-v1")
    theirs = jumanji.make("Game2048-v1")
    their_step = jax.jit(theirs.step)
    state, timestep = start(3)
    with promoting():
        their_state, their = jax.jit(theirs.reset)(jax.random.key_data(jax.random.key(3)))
    rewards, i = 0.0, 0
    for i in range(200):
        board, mask = np.split(np.asarray(timestep.observation), [16])
        np.testing.assert_allclose(board, np.log1p(their.observation.board).ravel(), rtol=1e-6)
        np.testing.assert_array_equal(mask, their.observation.action_mask)
        if their.last():
            break
        state, timestep = take(state, i % 4)
        with promoting():
            their_state, their = their_step(their_state, i % 4)
        assert timestep.reward == their.reward
        assert timestep.last() == their.last()
        rewards += float(timestep.reward)
    assert rewards > 0.0
    assert timestep.discount == 1.0 - float(timestep.last())


def test_the_same_key_is_the_same_episode(maze):
    start, take = maze
    (state, first), (_, again), (_, other) = start(0), start(0), start(1)
    np.testing.assert_array_equal(first.observation, again.observation)
    assert np.any(first.observation != other.observation)
    for action in range(4):
        one, two = take(state, action), take(state, action)
        jax.tree.map(np.testing.assert_array_equal, one, two)


def test_time_limits_cut_and_goals_terminate(maze):
    start, take = maze
    state, timestep = start(0)
    assert timestep.first()
    moves = np.asarray(state.action_mask)
    blocked = int(np.flatnonzero(~moves)[0])  # Nothing moves.
    for steps, last in [(98, False), (99, True)]:
        _, timestep = take(state.replace(step_count=jnp.int32(steps)), blocked)
        assert timestep.last() == last
        assert timestep.discount == 1.0
        assert timestep.reward == 0.0
    position, move = state.agent_position, int(np.flatnonzero(moves)[0])
    row, column = [(-1, 0), (0, 1), (1, 0), (0, -1)][move]
    goal = type(position)(row=position.row + row, col=position.col + column)
    for steps in (5, 99):
        near = state.replace(target_position=goal, step_count=jnp.int32(steps))
        _, timestep = take(near, move)
        assert timestep.last()
        assert timestep.discount == 0.0
        assert timestep.reward == 1.0


def test_an_illegal_action_does_what_jumanji_does_with_it(tsp):
    start, take = tsp
    state, _ = start(0)
    state, timestep = take(state, 3)
    assert timestep.mid()
    assert timestep.observation[-20:].sum() == 19.0  # Cities that may be visited.
    _, timestep = take(state, 3)
    assert timestep.last()
    assert timestep.discount == 0.0
    assert timestep.reward == pytest.approx(-20 * np.sqrt(2.0))


def test_a_tour_ends_and_a_new_instance_follows(tsp):
    start, take = tsp
    state, timestep = start(0)
    length = 0.0
    for city in range(20):
        assert not timestep.last()
        state, timestep = take(state, city)
        length -= float(timestep.reward)
    assert timestep.last()
    assert timestep.discount == 0.0
    cities = np.asarray(timestep.observation[:40]).reshape(20, 2)
    steps = np.linalg.norm(cities - np.roll(cities, 1, axis=0), axis=1)
    assert length == pytest.approx(steps.sum(), rel=1e-5)
    dynamics = dynamics_of(environments.make("jumanji/TSP-v1"))
    _, after = stream(dynamics, (), state, timestep, jnp.int32(0), jax.random.key(9))
    assert after.first()
    assert np.any(after.observation[:40] != timestep.observation[:40])


def test_a_vector_of_choices_is_one_action():
    start, take = programs("Minesweeper-v0")
    (state, _), spec = start(0), dynamics_of(environments.make("jumanji/Minesweeper-v0"))
    assert spec.action_spec().num_values == 100
    row, column = np.argwhere(np.asarray(state.board) == -1)[37]
    after, timestep = take(state, 10 * row + column)
    assert np.argwhere(np.asarray(after.board) >= 0).tolist() == [[row, column]]
    assert timestep.observation.shape == (100 * 10 + 100 + 2,)


def test_a_rule_learns_on_it(tmp_path):
    network = NetworkConfig(torso=(8,), model=8, head=(8,))
    agent = RuleAgentConfig(
        network=network, num_environments=3, unroll_length=5, batch_size=4, replay_capacity=8
    )
    config = EvaluationConfig(
        agent=agent, seeds=1, budget=300, baselines=("hand_set",), num_points=2
    )
    (_, contender) = make_contenders([], config)
    scores = common.train(tasks_of(["jumanji/Knapsack-v1"]), contender, config, tmp_path)
    assert 0.0 < float(scores.window.mean_return[0, 0]) < 25.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Game2048-v0", r"'jumanji/Game2048-v0'.*'jumanji/Game2048-v1'"),
        ("FlatPack-v0", r"MultiDiscreteArray \[25, 4, 9, 9\].*at most 1,000 combinations"),
        ("MultiCVRP-v0", r"actions BoundedArray.*one reward"),
        ("LevelBasedForaging-v0", r"rewards of shape \(2,\); expected .* one reward"),
    ],
)
def test_other_names_and_other_actions_are_refused(name, message):
    with pytest.raises(EnvironmentNameError, match=message):
        environments.make(f"jumanji/{name}")


def test_without_jumanji_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    with pytest.raises(MissingPackageError, match="jumanji"):
        environments.make("jumanji/Maze-v0")

"""The varied tasks: what there is of each kind, and that each can be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import exact_returns
from environments.encodings import Encoded
from environments.suites import robustness, varied
from environments.suites.grid_worlds import mazes
from environments.suites.varied import GRID, ROOMS, VARIANTS
from environments.suites.varied.views import Coordinates, Egocentric
from tests.environments.streams import dynamics_of

SUITE = environments.suite("varied")
FIRST = SUITE[: len(VARIANTS)]


def of(family):
    return [task for task in SUITE if task.name.split("_")[1] == family]


def plain(task):
    """Its dynamics and parameters without an encoding."""
    assert isinstance(task.dynamics, Encoded)
    return task.dynamics.dynamics, task.params.task


def returns(dynamics, params, policy, key, steps=1000):
    """Of one episode, and its length."""
    state, timestep = dynamics.reset(params, key)

    def step(carry, number):
        state, observation, total, length, lives = carry
        own = jax.random.fold_in(key, number)
        action = policy(observation, jax.random.fold_in(own, 1))
        state, timestep = dynamics.step(params, state, action, own)
        total += jnp.where(lives, timestep.reward, 0.0)
        length += lives.astype(jnp.int32)
        lives &= ~timestep.last()
        return (state, timestep.observation, total, length, lives), None

    start = (state, timestep.observation, jnp.float32(0.0), jnp.int32(0), jnp.bool_(True))
    (_, _, total, length, _), _ = jax.lax.scan(step, start, jnp.arange(steps))
    return total, length


def mean_return(dynamics, params, policy, episodes=20):
    keys = jax.random.split(jax.random.key(0), episodes)
    total, length = jax.jit(jax.vmap(lambda key: returns(dynamics, params, policy, key)))(keys)
    return float(total.mean()), float(length.mean())


def test_the_tasks_are_drawn_from_their_numbers():
    assert len({task.name for task in SUITE}) == varied.NUM_TASKS
    assert len(environments.group_by_dynamics(SUITE)) == len(VARIANTS)
    scales = np.array([float(task.params.reward_scale) for task in SUITE])
    assert scales.min() < 0.02
    assert scales.max() > 50.0
    seen = [dynamics_of(x).reset(x.params, jax.random.key(0))[1].observation for x in FIRST]
    sizes = [sum(x.size for x in jax.tree.leaves(one)) for one in seen]
    assert (min(sizes), max(sizes)) == (3, 1600)
    assert {environments.num_actions(task.dynamics) for task in FIRST} == {3, 4, 5, 18}


def test_goals_and_keys_can_be_reached():
    styles = set()
    for task in of("rooms"):
        _, params = plain(task)
        grid = (ROOMS.height, ROOMS.width)
        walls, doors = (np.asarray(x).reshape(grid) for x in (params.walls, params.doors))
        start, (goal, key) = int(params.start), np.asarray(params.cell)[:2]
        place = divmod(start, ROOMS.width)
        open_ = mazes.distances(walls, place).ravel()
        assert 0 < open_[goal] <= int(params.horizon), task.name
        if doors.any():
            closed = mazes.distances(walls | doors, place).ravel()
            assert closed[goal] < 0 < closed[key], task.name
        styles.add((bool(doors.any()), bool(params.walk.any())))
    assert styles == {(has_doors, walks) for has_doors in (False, True) for walks in (False, True)}


def test_a_cart_is_balanced_by_pushing_where_the_pole_leans():
    def push(x, key):
        lean = x[2] + 0.3 * x[3] + 0.05 * x[0] + 0.1 * x[1]
        return 1 + jnp.sign(lean).astype(jnp.int32)

    def at_random(x, key):
        return jax.random.randint(key, (), 0, 3)

    for task in of("cart")[:6]:
        dynamics, params = plain(task)
        horizon = int(params.horizon)
        assert mean_return(dynamics, params, push)[0] > 0.9 * horizon, task.name
        assert mean_return(dynamics, params, at_random)[0] < 0.5 * horizon + 60, task.name


def test_a_pendulum_keeps_its_energy_and_can_be_swung_up():
    def swing(x, key):
        """Add energy, and brake where there is enough."""
        cos, sin, speed = x
        high = speed**2 / 2.0 + 1.5 * gravity / length * cos
        pump = jnp.where(high < 1.5 * gravity / length, speed, -speed)
        near = 4.0 * jnp.arctan2(sin, cos) + speed
        want = jnp.where(cos > 0.95, -near, pump)
        return jnp.where(want > 0, 4, 0)

    for task in of("pendulum")[:6]:
        dynamics, params = plain(task)
        params = params.replace(is_sparse=jnp.float32(0.0))
        gravity, length = params.gravity, params.length
        free = params.replace(force=jnp.float32(0.0))
        state, _ = dynamics.reset(free, jax.random.key(3))
        energies = []
        for _ in range(20):
            angle, speed = state.x
            energies.append(float(speed**2 / 2.0 + 1.5 * gravity / length * jnp.cos(angle)))
            state, _ = dynamics.step(free, state, jnp.int32(2), jax.random.key(0))
        assert np.ptp(energies) < 0.25 * float(1.5 * gravity / length) * 2.0, task.name
        idle, steps = mean_return(dynamics, params, lambda x, key: jnp.int32(2))
        swung, _ = mean_return(dynamics, params, swing)
        assert swung > idle, task.name
        assert steps == int(params.horizon)


@pytest.mark.parametrize("task", of("bandit")[:2], ids=lambda task: task.name)
def test_a_bandits_rewards_are_as_probable_as_the_task_says(task):
    dynamics, params = plain(task)
    features = params.features

    def best(observation, key):
        context = jnp.argmin(jnp.sum((features - observation[None]) ** 2, axis=1))
        return jnp.argmax(params.probability[context])

    total, length = mean_return(dynamics, params, best, episodes=400)
    assert length == int(params.horizon)
    expected = float(params.probability.max(axis=1).mean()) * length
    assert total == pytest.approx(expected, abs=0.15 * expected)


def test_a_view_is_around_the_agent():
    """The planes of the whole grid, moved; walls outside."""
    view, task = Egocentric(ROOMS, radius=2), of("rooms")[0].params.task
    for number in range(5):
        state, seen = view.reset(task, jax.random.key(number))
        for step in range(6):
            action = jnp.int32((number + step) % 5)
            state, seen = view.step(task, state, action, jax.random.key(step))
        planes = np.asarray(ROOMS._observe(task, state))
        row, column = divmod(int(state.agent), ROOMS.width)
        for down in range(-2, 3):
            for right in range(-2, 3):
                at = row + down, column + right
                expected = np.zeros(ROOMS.num_planes)
                expected[1] = 1.0
                if 0 <= at[0] < ROOMS.height and 0 <= at[1] < ROOMS.width:
                    expected = planes[at]
                np.testing.assert_array_equal(seen.observation[down + 2, right + 2], expected)


def test_coordinates_say_where_things_are():
    view, task = Coordinates(GRID), plain(of("grid")[0])[1].task
    state, seen = view.reset(task, jax.random.key(0))
    found, count = np.asarray(seen.observation), GRID.max_objects
    row, column = divmod(int(state.agent), 9)
    np.testing.assert_allclose(found[:3], [row / 8.0, column / 8.0, 0.0])
    np.testing.assert_array_equal(found[3 : 3 + count], np.asarray(state.present))
    for number, away in enumerate(found[3 + count :].reshape(count, 2)):
        at = divmod(int(state.cell[number]), 9)
        expected = ((at[0] - row) / 8.0, (at[1] - column) / 8.0)
        there = bool(state.present[number])
        np.testing.assert_allclose(away, expected if there else (0.0, 0.0), atol=1e-6)


@pytest.mark.parametrize("number", [1, 2, 5, 11, 14])
def test_the_random_policy_returns_what_is_computed(number):
    """In any encoding, with the scale of the rewards."""
    task = SUITE[number]
    expected = exact_returns.expected_returns(exact_returns.finite_mdp(task))
    assert expected.optimal > expected.random
    actions = task.dynamics.action_spec().num_values

    def random(observation, key):
        del observation
        return jax.random.randint(key, (), 0, actions)

    found, _ = mean_return(task.dynamics, task.params, random, episodes=500)
    assert found == pytest.approx(expected.random, abs=0.1 * (expected.optimal - expected.random))


def test_encodings_and_scales_change_no_task():
    """The best return is the same in each encoding, and goes with the scale of rewards."""
    best = {}
    for name in robustness.SUITES["robustness"]:
        number, encoding, scale = robustness.parts(name)
        if number == 466 and (encoding == "given" or scale == "x1"):
            mdp = exact_returns.finite_mdp(environments.make(name))
            best[encoding, scale] = exact_returns.expected_returns(mdp).optimal
    assert len(best) == len(robustness.ENCODINGS) + len(robustness.SCALES) - 1
    expected = [best["given", "x1"] * robustness.SCALES[scale] for _, scale in best]
    np.testing.assert_allclose(list(best.values()), expected, rtol=1e-4)

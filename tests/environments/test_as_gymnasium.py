"""Environments of this project with Gymnasium's interface."""

import functools
import multiprocessing
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from environments import as_gymnasium

NAMES = [
    "catch/8x8",
    "deep_sea/5",
    "delayed_chain/distractor",
    "grid57/00_dense_fixed",
    "gymnax/CartPole-v1",
    "minatar/breakout",
    "sokoban/valid",
    "atari/Pong",
    "bsuite/catch/0",
    "crafter/reward",
    "nethack/NetHackScore",
    "gymnasium/minigrid:MiniGrid-DoorKey-5x5-v0",
]


@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_own_checks_pass(name):
    environment = as_gymnasium.Single(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*minimum value is -infinity.*")
        warnings.filterwarnings("ignore", message=".*maximum value is infinity.*")
        warnings.filterwarnings("ignore", message=".*Not able to test alternative render modes.*")
        try:
            check_env(environment, skip_render_check=True)
        finally:
            environment.close()


def catch_by_hand(environment, seed):
    """The return of an episode whose paddle stays; at its end, what the last step told."""
    environment.reset(seed=seed)
    total, steps, told = 0.0, 0, (False, False)
    while not any(told):
        _, reward, *told, _ = environment.step(1)
        total, steps = total + reward, steps + 1
    return total, steps, told


def test_an_episode_terminates_and_has_to_be_reset():
    environment = as_gymnasium.Single("catch/8x8")
    total, steps, told = catch_by_hand(environment, 0)
    assert (abs(total), steps, told) == (1.0, 7, [True, False])
    assert catch_by_hand(environment, 0) == (total, steps, told)
    with pytest.raises(ValueError, match="catch/8x8 was stepped; expected a reset"):
        environment.step(1)
    returns = {catch_by_hand(environment, seed)[0] for seed in range(20)}
    assert returns == {-1.0, 1.0}


def test_a_time_limit_truncates():
    environment = as_gymnasium.Single("gymnasium/MountainCar-v0")
    environment.reset(seed=0)
    ends = [environment.step(1)[2:4] for _ in range(200)]
    environment.close()
    assert set(ends[:-1]) == {(False, False)}
    assert ends[-1] == (False, True)


def batch_of(name, size):
    return gymnasium.vector.SyncVectorEnv([functools.partial(as_gymnasium.Single, name)] * size)


def test_a_batch_starts_new_episodes_in_the_step_after_an_end():
    environment = batch_of("catch/8x8", 3)
    first, _ = environment.reset(seed=1)
    assert environment.observation_space.contains(first)
    rows = [environment.step(np.ones(3, np.int64)) for _ in range(16)]
    terminated = np.stack([row[2] for row in rows])
    np.testing.assert_array_equal(np.flatnonzero(terminated.all(1)), [6, 14])
    assert terminated.sum() == 6
    boards = np.stack([row[0] for row in rows])
    # The ball is in the last row with the paddle at an episode's end, in the first one afterwards.
    assert (boards[6].reshape(3, 8, 8)[:, :-1] == 0).all()
    assert (boards[7].reshape(3, 8, 8)[:, 0].sum(-1) == 1).all()
    reward = np.stack([row[1] for row in rows])
    assert (reward[7] == 0.0).all()  # Of the new episode's first time step.
    again, _ = environment.reset(seed=1)
    np.testing.assert_array_equal(first, again)


def test_a_batch_reports_the_results_of_episodes_that_ended():
    environment = batch_of("nethack/NetHackScore", 2)
    environment.reset(seed=0)
    random = np.random.default_rng(0)
    ended, info = np.zeros(2, bool), {}
    for _ in range(6_000):
        *_, terminated, truncated, info = environment.step(random.integers(23, size=2))
        ended = terminated | truncated
        if ended.any():
            break
    environment.close()
    np.testing.assert_array_equal(info["_turns"], ended)
    assert (info["turns"][ended] > 0).all()


@pytest.mark.parametrize("name", ["catch/8x8", "gymnasium/CartPole-v1"])
@pytest.mark.parametrize("action", [99, -1, 1.0, [1], None])
def test_actions_that_there_are_not(name, action):
    environment = as_gymnasium.Single(name)
    environment.reset(seed=0)
    with pytest.raises(ValueError, match=rf"{name} was stepped with .*; expected integers from 0"):
        environment.step(action)
    environment.step(1)
    environment.close()


def test_continuous_actions_that_there_are_not():
    environment = as_gymnasium.Single("gymnasium/Pendulum-v1")
    environment.reset(seed=0)
    for action in ([[0.0]], [np.nan], 0.0):
        with pytest.raises(ValueError, match=r"expected finite numbers of shape \(1,\)"):
            environment.step(action)
    environment.step([5.0])
    environment.close()


def test_an_environment_may_be_reset_after_it_was_closed():
    environment = as_gymnasium.Single("gymnasium/CartPole-v1")
    before = len(multiprocessing.active_children())
    for _ in range(2):
        environment.reset()
        assert len(multiprocessing.active_children()) == before + 1
        environment.close()
        assert len(multiprocessing.active_children()) == before

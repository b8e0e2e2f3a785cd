"""Atari: the two protocols, game by game."""

import dataclasses
import sys

import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.suites import atari
from tests.environments.streams import (
    FIRST,
    LAST,
    Recording,
    assert_same,
    assert_valid,
    dynamics_of,
    random_actions,
    record,
)

BATCH = 2


def play(environment, actions, seed: int = 0, workers: int = 1) -> Recording:
    dynamics = dynamics_of(environment)
    batch_size = actions.shape[1]
    return record(dynamics.start(environment.params, batch_size, seed, workers), actions)


def with_settings(name: str, **settings) -> environments.Environment:
    environment = environments.make(name)
    dynamics = dataclasses.replace(dynamics_of(environment), **settings)
    return dataclasses.replace(environment, dynamics=dynamics)


@pytest.fixture(scope="module")
def breakout() -> Recording:
    """Random actions until each game has ended."""
    environment = environments.make("atari/Breakout")
    return play(environment, random_actions(dynamics_of(environment), 300, BATCH))


def some_in_ci(suite: str):
    """Of a suite's games, whose tests differ by the name alone, every eighth is not thorough."""
    marks = [pytest.mark.thorough if i % 8 else pytest.mark.slow for i in range(57)]
    games = zip(atari.SUITES[suite], marks, strict=False)
    return pytest.mark.parametrize("name", [pytest.param(name, marks=x) for name, x in games])


@some_in_ci("atari57")
def test_each_of_57_games_takes_all_18_actions(name):
    environment = environments.make(name)
    assert environment.dynamics == atari.Atari()
    stream = play(environment, np.arange(18)[:, None])
    assert_valid(stream, dynamics_of(environment))
    assert stream.timestep.observation.shape == (19, 1, 84, 84, 1)
    assert stream.timestep.observation.max() > 0


@some_in_ci("atari100k")
def test_each_of_26_games_has_the_engines_own_actions(name):
    environment = environments.make(name)
    simulators = dynamics_of(environment).start(environment.params, 1, 0, 1)
    legal = simulators._engine.single_action_space.n
    simulators.close()
    assert environments.num_actions(environment.dynamics) == legal


def test_the_protocols_are_the_published_ones():
    assert (len(atari.GAMES_57), len(atari.GAMES_100K)) == (57, 26)
    assert set(atari.GAMES_100K) < set(atari.GAMES_57)
    pong, pong_100k = environments.make("atari/Pong"), environments.make("atari100k/Pong")
    assert pong.dynamics == atari.Atari(18, True, sticky=0.25, max_noops=0, max_frames=108_000)
    assert pong_100k.dynamics == atari.Atari(6, False, sticky=0.0, max_noops=30, max_frames=108_000)


def test_arguments_of_a_name_choose_another_protocol():
    """That of DiCE (Xiao et al. 2021, table 5): 30 no-ops, no sticky actions."""
    pong = environments.make("atari/Pong?sticky=0&noops=30")
    assert pong.name == "atari/Pong?noops=30&sticky=0"
    assert pong.dynamics == atari.Atari(sticky=0.0, max_noops=30)
    assert environments.make(pong.name).dynamics == pong.dynamics
    pong_100k = environments.make("atari100k/Pong?noops=0")
    assert pong_100k.dynamics == atari.Atari(6, False, sticky=0.0, max_noops=0)
    # Freeway without either is the same in all instances; with no-ops its cars are elsewhere.
    actions = np.zeros((1, 8), np.int32)
    seen = {
        name: play(environments.make(name), actions).timestep.observation[0]
        for name in ("atari/Freeway?sticky=0", "atari/Freeway?sticky=0&noops=30")
    }
    assert [len({x.tobytes() for x in frames}) > 1 for frames in seen.values()] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("noop=3", "no argument 'noop'; expected sticky or noops"),
        ("sticky=2", "'sticky' is 2; expected a number from 0 to 1"),
        ("sticky=True", "'sticky' is True; expected a number"),
        ("noops=1.5", "'noops' is 1.5; expected a whole number from 0 to 100"),
        ("noops=-1", "'noops' is -1; expected a whole number"),
        ("sticky", "malformed; expected NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("family", ["atari", "atari100k"])
def test_arguments_that_make_no_sense_are_refused(family, arguments, message):
    with pytest.raises(EnvironmentNameError, match=message):
        environments.make(f"{family}/Pong?{arguments}")


@pytest.mark.parametrize(("side", "channels"), [(64, 3), (96, 1)])
def test_images_of_other_papers(side, channels):
    pong = environments.with_images(environments.make("atari100k/Pong"), side, channels)
    assert pong.name == "atari100k/Pong"
    stream = play(pong, np.zeros((3, 2), np.int32))
    assert_valid(stream, dynamics_of(pong))
    image = stream.timestep.observation[-1, 0]
    assert image.shape == (side, side, channels)
    # Pong's background is brown, its players green.
    assert (np.ptp(image, axis=-1).max() > 50) == (channels == 3)


def test_actions_that_skiing_lacks_do_nothing():
    skiing = with_settings("atari/Skiing", sticky=0.0)
    lacking = np.tile(np.arange(9, 18), 3)
    actions = np.stack([np.zeros_like(lacking), lacking, np.full_like(lacking, 2)], axis=1)
    seen = play(skiing, actions).timestep.observation
    np.testing.assert_array_equal(seen[:, 1], seen[:, 0])
    assert (seen[-1, 2] != seen[-1, 0]).any()


@pytest.mark.parametrize("name", ["atari/Freeway", "atari100k/Freeway"])
def test_streams_depend_on_the_seed_only(name):
    environment = environments.make(name)
    actions = random_actions(dynamics_of(environment), 30, 1).repeat(BATCH, axis=1)
    stream = play(environment, actions)
    assert_same(play(environment, actions, workers=2), stream)
    other = play(environment, actions, seed=2 * BATCH)
    seen = [s.timestep.observation[:, i].tobytes() for s in (stream, other) for i in range(BATCH)]
    assert len(set(seen)) == 2 * BATCH


def test_sticky_actions_are_the_only_chance_without_no_ops():
    environment = with_settings("atari/Freeway", sticky=0.0)
    actions = random_actions(dynamics_of(environment), 30, 1).repeat(BATCH, axis=1)
    seen = play(environment, actions).timestep.observation
    np.testing.assert_array_equal(seen[:, 0], seen[:, 1])


def test_the_frame_cap_cuts():
    environment = with_settings("atari/Pong", max_frames=400)
    stream = play(environment, random_actions(dynamics_of(environment), 210, 2))
    assert_valid(stream, dynamics_of(environment))
    assert np.flatnonzero(stream.is_(LAST).all(axis=1)).tolist() == [100, 201]
    assert stream.is_(LAST).sum() == 4
    assert (stream.timestep.discount == 1.0).all()


def test_a_games_end_terminates_and_the_loss_of_a_life_does_not(breakout):
    assert_valid(breakout, atari.Atari())
    last, lives = breakout.is_(LAST), breakout.results["lives"]
    assert last.any(axis=0).all()
    assert (breakout.timestep.discount[last] == 0.0).all()
    assert (lives[last] == 0.0).all()
    playing = ~last & ~breakout.is_(FIRST)
    assert set(lives[playing]) == {1.0, 2.0, 3.0, 4.0, 5.0}


def test_rewards_are_the_games_own_points():
    stream = play(environments.make("atari/Skiing"), np.zeros((20, 1), int))
    assert (stream.timestep.reward[1:] < -1.0).all()  # Hundredths of a second that go by.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atari/Pongg", r"no environment 'atari/Pongg'.*'atari/Pong'"),
        ("atari/ms_pacman", r"no environment 'atari/ms_pacman'.*'atari/MsPacman'"),
        ("atari100k/Asteroids", r"no environment 'atari100k/Asteroids'.*'atari100k/Asterix'"),
    ],
)
def test_unknown_games_say_what_is_near(name, message):
    with pytest.raises(EnvironmentNameError, match=message):
        environments.make(name)


@pytest.mark.parametrize("name", ["atari/Pong", "atari100k/Pong"])
def test_without_the_engine_it_says_how_to_install_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingPackageError, match=r"'ale_py'.*'disco-update-rules\[atari\]'"):
        environments.make(name)

"""NetHack: its two tasks."""

import importlib
import sys
from functools import partial
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.processes import SerialSimulators
from environments.suites import nethack
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

# Whose names are made when it is imported.
engine: Any = importlib.import_module("nle.nethack")

CHALLENGE = "NetHackChallenge"
SHORT = nethack.NetHack(121, max_steps=50)
MOVES = 16  # The first actions of both tasks: a step or a run in one of eight directions.
ACTIONS = random_actions(SHORT, 120, 2) % MOVES


def in_this_process(task: str, dynamics: nethack.NetHack, seed: int) -> SerialSimulators:
    return SerialSimulators(
        partial(nethack.NetHackGame, task, dynamics.max_steps),
        dynamics,
        ACTIONS.shape[1],
        seed,
        ("score", "depth", "experience_level", "turns"),
    )


@pytest.fixture(scope="module")
def challenge() -> Recording:
    """Episodes of 50 steps."""
    return record(SHORT.start(CHALLENGE, 2, seed=0, workers=2), ACTIONS)


@pytest.mark.parametrize("task", nethack.NUM_ACTIONS)
def test_the_specs_are_the_engines(task):
    environment = environments.make(f"nethack/{task}")
    game = nethack.NetHackGame(task, None, 0)
    spec = environment.dynamics.action_spec()
    assert isinstance(spec, specs.DiscreteArray)
    assert spec.num_values == game._game.action_space.n
    game.close()
    assert nethack.NUM_GLYPHS == engine.MAX_GLYPH + 1


def test_observations_and_episodes_of_the_challenge(challenge):
    assert_valid(challenge, SHORT)
    seen = challenge.timestep.observation
    heros = engine.glyph_is_normal_monster(seen["glyphs"].reshape(-1, 21 * 79)).sum(axis=-1)
    assert (heros >= 1).all()
    assert (np.diff(seen["blstats"][:50, :, engine.NLE_BL_TIME], axis=0) >= 0).all()
    assert (seen["inventory_letters"][challenge.is_(FIRST)][:, 0] == ord("a")).all()


def test_observations_and_episodes_of_the_score_task():
    environment = environments.make("nethack/NetHackScore")
    simulators = dynamics_of(environment).start(environment.params, 2, seed=0, workers=1)
    stream = record(simulators, ACTIONS)
    assert_valid(stream, dynamics_of(environment))
    assert stream.timestep.reward.min() == np.float32(-0.01)
    assert_same(
        record(in_this_process("NetHackScore", dynamics_of(environment), 0), ACTIONS), stream
    )


def test_games_depend_on_the_seed_only(challenge):
    assert_same(record(in_this_process(CHALLENGE, SHORT, 0), ACTIONS), challenge)
    other = record(in_this_process(CHALLENGE, SHORT, 2), ACTIONS)
    starts = [
        glyphs.tobytes()
        for stream in (challenge, other)
        for glyphs in stream.timestep.observation["glyphs"][stream.is_(FIRST)]
    ]
    assert len(starts) == 2 * 2 * 3
    assert len(set(starts)) == len(starts)


def test_the_step_limit_cuts(challenge):
    last = challenge.is_(LAST)
    assert np.flatnonzero(last.all(axis=1)).tolist() == [50, 101]
    assert last.sum() == 4
    assert (challenge.timestep.discount == 1.0).all()
    # The engine's own last screen is blank.
    assert (challenge.timestep.observation["glyphs"][last] != engine.GLYPH_CMAP_OFF).any()
    assert (challenge.timestep.observation["blstats"][last][:, engine.NLE_BL_HP] > 0).all()


def test_results_are_of_the_episode_that_ended(challenge):
    blstats = challenge.timestep.observation["blstats"]
    for index, end in zip(*np.nonzero(challenge.is_(LAST).T), strict=True):
        of_episode = blstats[end - 50 : end + 1, index]
        results = {name: values[end, index] for name, values in challenge.results.items()}
        assert results == {
            "score": of_episode[-1, engine.NLE_BL_SCORE],
            "depth": of_episode[:, engine.NLE_BL_DEPTH].max(),
            "experience_level": of_episode[-1, engine.NLE_BL_XP],
            "turns": of_episode[-1, engine.NLE_BL_TIME],
        }
        assert results["turns"] > 1
        assert results["depth"] >= 1
        assert results["experience_level"] >= 1


def test_a_death_terminates():
    game = nethack.NetHackGame("NetHackScore", None, seed=1)
    random = np.random.default_rng(0)
    timesteps: list[dm_env.TimeStep] = [game.reset()]
    while not timesteps[-1].last():
        timesteps.append(game.step(random.integers(23)))
    assert timesteps[-1].discount == 0.0
    assert len(timesteps) < 5000  # The task's own limit.
    for name, seen in timesteps[-1].observation.items():
        np.testing.assert_array_equal(seen, timesteps[-2].observation[name])
    assert game.episode_results()["turns"] > 1
    assert game.reset().observation["blstats"][engine.NLE_BL_TIME] == 1
    game.close()


def test_unknown_tasks_say_what_is_near():
    with pytest.raises(EnvironmentNameError, match=r"/NetHackScor'.*'nethack/NetHackScore'"):
        environments.make("nethack/NetHackScor")


def test_without_the_engine_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nle", None)
    with pytest.raises(MissingPackageError, match=r"'nle'.*'disco-update-rules\[nethack\]'"):
        environments.make("nethack/NetHackScore")

"""ProcGen, where its engine and Qt are installed; what is said where they are not."""

import importlib
import sys
import types

import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.suites import procgen
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

IDLE = 4  # The action that does nothing.


@pytest.fixture(scope="module")
def engine() -> None:
    try:
        environments.make("procgen/coinrun")
    except MissingPackageError as error:
        pytest.skip(str(error))


needs_engine = pytest.mark.usefixtures("engine")


def play(name: str, actions, seed: int = 0, workers: int = 1) -> Recording:
    environment = environments.make(name)
    dynamics, batch_size = dynamics_of(environment), actions.shape[1]
    stream = record(dynamics.start(environment.params, batch_size, seed, workers), actions)
    assert_valid(stream, dynamics)
    return stream


def first_frames(dynamics: procgen.ProcGen, game: str, batch_size: int) -> list[bytes]:
    stream = record(dynamics.start(game, batch_size, 0, 1), np.zeros((0, batch_size), int))
    return [frame.tobytes() for frame in stream.timestep.observation[0]]


@needs_engine
@pytest.mark.parametrize("suite", ["procgen16", "procgen16_unseen", "procgen16_all"])
def test_each_of_16_games_starts_and_steps(suite):
    assert len(procgen.SUITES[suite]) == 16
    for name in procgen.SUITES[suite]:
        stream = play(name, np.arange(15)[:, None].repeat(2, axis=1))
        assert stream.timestep.observation.shape == (16, 2, 64, 64, 3)
        assert len(np.unique(stream.timestep.observation)) > 2


@needs_engine
def test_streams_depend_on_the_seed_only():
    actions = random_actions(procgen.ProcGen(), 200, 3)
    stream = play("procgen/starpilot", actions)
    assert stream.is_(LAST).any()
    assert_same(play("procgen/starpilot", actions, workers=2), stream)
    other = play("procgen/starpilot", actions, seed=1)
    assert (other.timestep.observation != stream.timestep.observation).any()


@needs_engine
def test_unseen_levels_are_none_of_the_500_training_levels():
    train, unseen = (environments.make(f"{f}/starpilot") for f in ("procgen", "procgen_unseen"))
    assert train.dynamics == procgen.ProcGen(first_level=0, num_levels=500)
    assert dynamics_of(unseen).first_level == 500
    train, unseen = (set(first_frames(e.dynamics, e.params, 256)) for e in (train, unseen))
    assert 150 < len(train) < 250  # Of 256 draws among 500, a fifth are repetitions.
    assert len(unseen) == 256
    assert not train & unseen


@needs_engine
def test_a_single_level_is_always_the_same():
    (frame,) = set(first_frames(procgen.ProcGen(7, 1), "coinrun", 3))
    assert frame not in first_frames(procgen.ProcGen(8, 1), "coinrun", 1)


@needs_engine
@pytest.mark.parametrize("game", "climber coinrun heist jumper leaper maze miner ninja".split())
def test_the_time_limit_cuts(game):
    limit = procgen.TIME_LIMITS[game]
    assert limit == (500 if game in ("leaper", "maze") else 1000)
    stream = play(f"procgen/{game}", np.full((2 * limit + 1, 1), IDLE))
    assert np.flatnonzero(stream.is_(LAST)).tolist() == [limit, 2 * limit + 1]
    assert (stream.timestep.discount == 1.0).all()
    assert (stream.results["level_completed"][stream.is_(LAST)] == 0.0).all()


@needs_engine
def test_a_death_terminates():
    stream = play("procgen/fruitbot", random_actions(procgen.ProcGen(), 100, 4))
    last = stream.is_(LAST)
    assert last.sum() > 4
    assert (stream.timestep.discount[last] == 0.0).all()
    assert (stream.results["level_completed"][last] == 0.0).all()


@needs_engine
def test_a_level_that_is_completed_pays_and_terminates():
    stream = play("procgen/maze", random_actions(procgen.ProcGen(), 499, 16))
    last = stream.is_(LAST)
    assert last.any()
    assert (stream.timestep.reward[last] == 10.0).all()
    assert (stream.timestep.discount[last] == 0.0).all()
    assert (stream.results["level_completed"][last] == 1.0).all()
    assert (stream.timestep.reward[~last] == 0.0).all()
    assert stream.is_(FIRST)[1:].any()


@pytest.mark.parametrize(
    ("name", "near"),
    [("procgen/coinrum", "procgen/coinrun"), ("procgen_unseen/Maze", "procgen_unseen/maze")],
)
def test_unknown_games_say_what_is_near(name, near):
    with pytest.raises(EnvironmentNameError, match=f"no environment .*'{near}'"):
        environments.make(name)


def test_without_qt_it_says_how_to_install_it(monkeypatch):
    def import_module(name):
        if name == "envpool.procgen":
            raise ImportError("libQt5Gui.so.5: cannot open shared object file")
        return types.ModuleType(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    message = r"libQt5Gui\.so\.5: cannot open.*apt-get install libqt5gui5"
    with pytest.raises(MissingPackageError, match=message):
        procgen.make("procgen/coinrun")


def test_without_the_engine_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingPackageError, match=r"'envpool'.*'disco-update-rules\[procgen\]'"):
        procgen.make("procgen/coinrun")

"""Crafter: the original engine, made to depend on its seed only."""

import importlib
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.processes import SerialSimulators
from environments.suites import crafter
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

# Whose submodules a type checker does not see.
engine: Any = importlib.import_module("crafter")

SEED = 1  # Of a world whose creatures, in the engine's order, soon part ways.
ACTIONS = random_actions(crafter.Crafter(), 300, 1)


def in_this_process(task: str, seed: int, time_limit: int = crafter.TIME_LIMIT) -> SerialSimulators:
    dynamics = crafter.Crafter(time_limit)
    return SerialSimulators(
        partial(crafter.CrafterWorld, task, time_limit),
        dynamics,
        1,
        seed,
        crafter.ACHIEVEMENTS,
    )


@pytest.fixture(scope="module")
def stream() -> Recording:
    """Of a worker process whose hashes, and so addresses in memory, are not this one's."""
    environment = environments.make("crafter/reward")
    simulators = dynamics_of(environment).start(environment.params, 1, SEED, workers=1)
    return record(simulators, ACTIONS)


def test_observations_and_episodes(stream):
    assert_valid(stream, crafter.Crafter())
    assert stream.is_(FIRST).sum() > 1
    assert crafter.Crafter().action_spec().num_values == len(engine.constants.actions)


@pytest.mark.slow
def test_worlds_depend_on_the_seed_only(stream):
    assert_same(record(in_this_process("reward", SEED), ACTIONS), stream)
    other = record(in_this_process("reward", SEED + 1), ACTIONS[:1])
    starts = [s.timestep.observation[s.is_(FIRST)] for s in (stream, other)]
    frames = [frame.tobytes() for frame in np.concatenate(starts)]
    assert len(set(frames)) == len(frames) > 2


def test_a_death_terminates(stream):
    last = stream.is_(LAST)
    assert last.any()
    assert (stream.timestep.discount[last] == 0.0).all()


def test_results_are_the_achievements_that_were_paid(stream):
    assert sorted(crafter.ACHIEVEMENTS) == sorted(engine.constants.achievements)
    assert len(crafter.ACHIEVEMENTS) == 22
    reward, unlocked = stream.timestep.reward, np.stack(list(stream.results.values()))
    assert set(unlocked[:, stream.is_(LAST)].flat) == {0.0, 1.0}
    start = 0
    for end in np.flatnonzero(stream.is_(LAST)):
        # The nine points of health are lost, for -0.1 each.
        expected = unlocked[:, end].sum() - 0.9
        assert reward[start : end + 1].sum() == pytest.approx(expected, abs=1e-4)
        start = end + 1


def test_without_rewards_all_else_is_the_same(stream):
    end = np.flatnonzero(stream.is_(LAST))[0]
    unpaid = record(in_this_process("no_reward", SEED), ACTIONS[:end])
    assert (unpaid.timestep.reward == 0.0).all()
    paid = jax.tree.map(lambda leaf: leaf[: end + 1], stream)
    timestep = paid.timestep._replace(reward=unpaid.timestep.reward)
    assert_same(unpaid, paid._replace(timestep=timestep))


def test_the_time_limit_cuts():
    stream = record(in_this_process("reward", SEED, time_limit=20), ACTIONS[:25])
    assert np.flatnonzero(stream.is_(LAST)).tolist() == [20]
    assert (stream.timestep.discount == 1.0).all()


def test_unknown_tasks_say_what_is_near():
    with pytest.raises(EnvironmentNameError, match=r"noreward'.*'crafter/no_reward'"):
        environments.make("crafter/noreward")


def test_without_the_engine_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "crafter", None)
    with pytest.raises(MissingPackageError, match=r"'crafter'.*'disco-update-rules\[crafter\]'"):
        environments.make("crafter/reward")

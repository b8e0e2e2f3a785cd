"""Crafter: the original engine, made to depend on its seed only."""

import sys
from functools import partial

import crafter as engine
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, MissingPackageError, crafter
from environments.processes import SerialSimulators
from tests.environments.streams import (
    FIRST,
    LAST,
    Recording,
    assert_same,
    assert_valid,
    random_actions,
    record,
)

ACTIONS = random_actions(crafter.Crafter(), 400, 1)


def in_this_process(task: str, seed: int, time_limit: int = crafter.TIME_LIMIT) -> SerialSimulators:
    dynamics = crafter.Crafter(time_limit)
    return SerialSimulators(
        partial(crafter.CrafterWorld, task, time_limit),
        dynamics.observation_spec(),
        dynamics.action_spec(),
        1,
        seed,
        crafter.ACHIEVEMENTS,
    )


@pytest.fixture(scope="module")
def stream() -> Recording:
    """Of a worker process whose hashes, and so addresses in memory, are not this one's."""
    environment = environments.make("crafter/reward")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONHASHSEED", "12345")
        simulators = environment.dynamics.start(environment.task, 1, seed=0, workers=1)
    return record(simulators, ACTIONS)


def test_observations_and_episodes(stream):
    assert_valid(stream, crafter.Crafter())
    assert stream.is_(FIRST).sum() > 1
    assert (crafter.Crafter().action_spec().num_values) == len(engine.constants.actions)


def test_worlds_depend_on_the_seed_only(stream):
    assert_same(record(in_this_process("reward", seed=0), ACTIONS), stream)
    other = record(in_this_process("reward", seed=1), ACTIONS[:1])
    starts = [s.timestep.observation[i].tobytes() for s in (stream, other) for i in range(2)]
    starts.append(stream.timestep.observation[1:][stream.is_(FIRST)[1:]].tobytes())
    assert len(set(starts)) >= 3


def test_a_death_terminates(stream):
    last = stream.is_(LAST)
    assert last.any()
    assert (stream.timestep.discount[last] == 0.0).all()


def test_results_are_the_achievements_that_were_paid(stream):
    assert sorted(crafter.ACHIEVEMENTS) == sorted(engine.constants.achievements)
    assert len(crafter.ACHIEVEMENTS) == 22
    start = 0
    for end in np.flatnonzero(stream.is_(LAST)):
        results = [values[end, 0] for values in stream.results.values()]
        assert set(results) == {0.0, 1.0}
        # The nine points of health are lost, for -0.1 each.
        paid = stream.timestep.reward[start : end + 1].sum()
        assert paid == pytest.approx(sum(results) - 0.9, abs=1e-4)
        start = end + 1


def test_without_rewards_all_else_is_the_same(stream):
    end = np.flatnonzero(stream.is_(LAST))[0]
    unpaid = record(in_this_process("no_reward", seed=0), ACTIONS[:end])
    assert (unpaid.timestep.reward == 0.0).all()
    until = Recording(
        stream.timestep._replace(
            **{name: values[: end + 1] for name, values in stream.timestep._asdict().items()}
        ),
        {name: values[: end + 1] for name, values in stream.results.items()},
    )
    rewards = np.zeros_like(until.timestep.reward)
    assert_same(unpaid, until._replace(timestep=until.timestep._replace(reward=rewards)))


def test_the_time_limit_cuts():
    stream = record(in_this_process("reward", seed=0, time_limit=20), ACTIONS[:25])
    assert np.flatnonzero(stream.is_(LAST)).tolist() == [20]
    assert (stream.timestep.discount == 1.0).all()


def test_unknown_tasks_say_what_is_near():
    with pytest.raises(EnvironmentNameError, match=r"'noreward'.*'crafter/no_reward'"):
        environments.make("crafter/noreward")


def test_without_the_engine_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "crafter", None)
    with pytest.raises(MissingPackageError, match=r"'crafter'.*pip install 'disco\[crafter\]'"):
        environments.make("crafter/reward")

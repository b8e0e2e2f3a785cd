import sys
from typing import Any

import dm_env
import numpy as np
import pytest
from bsuite import bsuite as engine
from bsuite import sweep

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.suites import bsuite
from tests.environments.streams import dynamics_of

FIRST, MID, LAST = dm_env.StepType
TIMED = ("cartpole", "cartpole_swingup", "mountain_car")


def start(bsuite_id, batch_size=1, seed=0):
    environment = environments.make(f"bsuite/{bsuite_id}")
    return dynamics_of(environment).start(environment.params, batch_size, seed)


def first_episode(bsuite_id, policy, seed=0):
    """Its number of steps, and its last time step."""
    simulators = start(bsuite_id, seed=seed)
    timestep, steps = simulators.reset(), 0
    while timestep.step_type[0] != LAST:
        timestep = simulators.step(np.array([policy(timestep.observation[0])]))
        steps += 1
    return steps, timestep


def balance(observation):
    x, speed, sine, _, spin, _ = observation[0]
    return int(1 + np.sign(0.3 * x + 0.6 * speed + 3 * sine + spin))


def push_along(observation):
    return 2 if observation[0, 1] >= 0 else 0


def test_the_names_are_those_of_bsuites_sweep_without_mnist():
    expected = [f"bsuite/{name}" for name in sweep.SWEEP if not name.startswith("mnist")]
    assert list(bsuite.SUITES["bsuite"]) == expected
    assert len(expected) == 408
    assert len(bsuite.SUITES["bsuite_first"]) == 20
    assert set(bsuite.SUITES["bsuite_first"]) <= set(expected)


def test_every_setting_can_be_made_and_those_of_equal_specs_have_equal_dynamics():
    dynamics = {}
    for name in bsuite.SUITES["bsuite"]:
        environment = environments.make(name)
        assert environment.name == name
        assert environment.is_host
        dynamics[name] = dynamics_of(environment)
    assert len(set(dynamics.values())) == 58
    assert dynamics["bsuite/catch/0"] == dynamics["bsuite/catch_noise/7"]
    assert dynamics["bsuite/deep_sea/0"] != dynamics["bsuite/deep_sea/1"]


@pytest.mark.parametrize("name", bsuite.SUITES["bsuite_first"])
def test_streams_keep_to_the_specs_and_every_last_observation(name):
    environment = environments.make(name)
    dynamics, generator = dynamics_of(environment), np.random.default_rng(0)
    simulators = dynamics.start(environment.params, 3, 0)
    spec, number = dynamics.observation_spec(), dynamics.action_spec().num_values
    timestep = simulators.reset()
    assert (timestep.step_type == FIRST).all()
    ends = 0
    for _ in range(250):
        assert timestep.observation.shape == (3, *spec.shape)
        assert timestep.observation.dtype == spec.dtype == np.float32
        is_first, is_last = timestep.step_type == FIRST, timestep.step_type == LAST
        assert (timestep.reward[is_first] == 0).all()
        assert (timestep.discount[~is_last] == 1).all()
        assert np.isfinite(timestep.reward).all()
        if not environment.params.startswith(TIMED):
            assert (timestep.discount[is_last] == 0).all()
        ends += is_last.sum()
        timestep = simulators.step(generator.integers(number, size=3))
        assert ((timestep.step_type == FIRST) == is_last).all()
    assert ends > 0 or environment.params.startswith(TIMED)
    assert all(counts.shape == (3,) for counts in simulators.results.values())
    simulators.close()


@pytest.mark.parametrize(
    ("experiment", "policy", "steps"),
    [
        ("cartpole", balance, 1001),
        ("cartpole_noise", balance, 1001),
        ("cartpole_swingup", lambda _: 1, 1001),
        ("mountain_car", lambda _: 1, 1000),
        ("mountain_car_scale", lambda _: 1, 1000),
    ],
)
def test_time_limits_cut(experiment, policy, steps):
    found, timestep = first_episode(f"{experiment}/0", policy)
    assert found == steps
    assert timestep.discount[0] == 1


@pytest.mark.parametrize(
    ("experiment", "policy"),
    [
        ("cartpole", lambda _: 0),
        ("cartpole_scale", lambda _: 0),
        ("cartpole_swingup", lambda _: 2),
        ("mountain_car", push_along),
        ("mountain_car_noise", push_along),
    ],
)
def test_what_ends_before_its_time_limit_terminates(experiment, policy):
    found, timestep = first_episode(f"{experiment}/0", policy)
    assert found < 1000
    assert timestep.discount[0] == 0


def test_a_pole_that_falls_at_the_time_limit_terminates():
    experiment = bsuite.Experiment("cartpole/0", 0)
    experiment.reset()
    state = experiment._core._state._replace(time_elapsed=9.995, theta=0.64, theta_dot=3.0)
    experiment._core._state = state
    timestep = experiment.step(1)
    assert timestep.last()
    assert timestep.discount == 0


def observations(bsuite_id, seed, batch_size=2):
    simulators = start(bsuite_id, batch_size, seed)
    steps = [simulators.reset().observation.copy()]
    steps += [simulators.step(np.zeros(batch_size, int)).observation.copy() for _ in range(100)]
    return np.stack(steps, axis=1)


@pytest.mark.parametrize("bsuite_id", ["catch/0", "memory_len/0", "umbrella_distract/5"])
def test_seeds_choose_the_episodes(bsuite_id):
    first, again, other = (observations(bsuite_id, seed) for seed in (0, 0, 100))
    assert (first == again).all()
    assert (first != other).any()
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize("setting", [0, 3])
def test_seeds_leave_the_task_as_it_is(setting):
    bandit: Any = engine.load_from_id(f"bandit/{setting}")
    for seed in (0, 1):
        simulators = start(f"bandit/{setting}", batch_size=11, seed=seed)
        simulators.reset()
        np.testing.assert_allclose(
            simulators.step(np.arange(11)).reward, bandit._rewards, rtol=1e-6
        )


def test_noise_of_rewards_differs_between_simulators_and_from_their_episodes():
    simulators = start("bandit_noise/0", batch_size=4)
    simulators.reset()
    assert len(set(simulators.step(np.zeros(4, int)).reward.tolist())) == 4
    experiment = bsuite.Experiment("cartpole_noise/0", 0)
    noise, episodes = experiment._environment._rng, experiment._core._rng
    assert noise.random_sample() != episodes.random_sample()


def test_results_are_what_an_episode_adds_to_bsuites_counts():
    simulators, generator = start("catch/0"), np.random.default_rng(0)
    timestep, regrets, ends = simulators.reset(), set(), 0
    while ends < 20:
        timestep = simulators.step(generator.integers(3, size=1))
        if timestep.step_type[0] == LAST:
            regret = 1 - timestep.reward[0]
            regrets.add(regret)
            ends += 1
            assert simulators.results["total_regret"][0] == regret
    assert regrets == {0.0, 2.0}


def test_the_length_of_runs_is_bsuites():
    assert bsuite.num_episodes("bsuite/catch/0") == 10_000
    assert bsuite.num_episodes("bsuite/cartpole/19") == 1_000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("catch/20", r"no environment 'bsuite/catch/20'.*'bsuite/catch/"),
        ("deep_see/1", r"'bsuite/deep_sea/1'"),
        ("catch", "NUM_SETTINGS"),
        ("mnist_noise/2", "'bsuite/mnist_noise/2' is left out.*download"),
    ],
)
def test_unknown_settings_are_refused(name, message):
    with pytest.raises(EnvironmentNameError, match=message):
        environments.make(f"bsuite/{name}")
    with pytest.raises(EnvironmentNameError, match=message):
        bsuite.num_episodes(f"bsuite/{name}")


def test_without_bsuite_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bsuite.bsuite", None)
    with pytest.raises(MissingPackageError, match=r"'disco-update-rules\[bsuite\]'"):
        environments.make("bsuite/catch/0")

"""Simulators in processes of their own take a second to start: tests share them."""

import sys

import dm_env
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.suites import control
from tests.environments.streams import dynamics_of

FIRST, MID, LAST = dm_env.StepType


@pytest.fixture(scope="module")
def walkers():
    dynamics = dynamics_of(environments.make("control_proprio/walker_walk"))
    simulators = dynamics.start("walker_walk", 2, seed=0)
    yield simulators
    simulators.close()


def test_the_tasks_are_the_papers():
    assert len(control.SUITES["control_proprio"]) == 18
    assert len(control.SUITES["control_vision"]) == 20
    only_visual = set(control.TASKS_VISION) - set(control.TASKS_PROPRIO)
    assert only_visual == {"quadruped_run", "quadruped_walk"}


@pytest.mark.parametrize("task", control.TASKS_VISION)
def test_every_task_is_there_and_lasts_a_thousand_steps_of_the_simulator(task):
    visual = environments.make(f"control_vision/{task}")
    assert visual.name == f"control_vision/{task}"
    assert dynamics_of(visual).observation_spec().shape == (64, 64, 3)
    simulator = control.ControlTask(task, False, 0)
    assert simulator._simulator._step_limit == 1000
    bounds, theirs = visual.dynamics.action_spec(), simulator._simulator.action_spec()
    assert bounds.shape == theirs.shape
    assert bounds.dtype == np.float32
    assert (bounds.minimum, bounds.maximum) == (-1, 1)
    is_same = (theirs.minimum == -1).all() and (theirs.maximum == 1).all()
    assert is_same != task.startswith("quadruped")


def test_tasks_of_equal_specs_have_equal_dynamics():
    dynamics = {
        task: dynamics_of(environments.make(f"control_proprio/{task}"))
        for task in control.TASKS_PROPRIO
    }
    assert dynamics["walker_run"] == dynamics["walker_walk"]
    assert dynamics["walker_run"] != dynamics["hopper_hop"]
    assert (
        len({environments.make(f"control_vision/{task}").dynamics for task in control.TASKS_VISION})
        == 5
    )


def test_observations_are_vectors_by_name(walkers):
    environment = environments.make("control_proprio/walker_walk")
    assert environment.is_host
    spec = dynamics_of(environment).observation_spec()
    assert {name: part.shape for name, part in spec.items()} == {
        "orientations": (14,),
        "height": (1,),
        "velocity": (9,),
    }
    timestep = walkers.reset()
    assert (timestep.step_type == FIRST).all()
    assert (timestep.reward == 0).all()
    assert (timestep.discount == 1).all()
    for index in range(2):
        for name, part in spec.items():
            part.validate(timestep.observation[name][index])
    assert (
        timestep.observation["orientations"][0] != timestep.observation["orientations"][1]
    ).any()


def test_episodes_are_cut_after_500_actions_and_then_new_ones_start(walkers):
    generator = np.random.default_rng(0)
    timestep = walkers.reset()
    for step in range(1, 501):
        timestep = walkers.step(generator.uniform(-1, 1, (2, 6)).astype(np.float32))
        assert (timestep.step_type == (LAST if step == 500 else MID)).all()
        assert (timestep.discount == 1).all()
        assert (timestep.reward >= 0).all()
        assert (timestep.reward <= 2).all()
    ended = timestep.observation["height"].copy()
    timestep = walkers.step(np.zeros((2, 6), np.float32))
    assert (timestep.step_type == FIRST).all()
    assert (timestep.observation["height"] != ended).all()


def test_an_action_is_applied_twice_and_rewards_are_added():
    ours = control.ControlTask("cartpole_swingup", False, 3)
    theirs = control._load("cartpole_swingup", 3, "disable")
    ours.reset()
    theirs.reset()
    for action in ([0.7], [-1.0], [0.1]):
        first, second = theirs.step(action), theirs.step(action)
        timestep = ours.step(np.array(action))
        assert timestep.reward == first.reward + second.reward
        np.testing.assert_array_equal(
            timestep.observation["position"], second.observation["position"].astype(np.float32)
        )


def test_actions_are_scaled_to_the_bounds_of_the_quadruped():
    task = control.ControlTask("quadruped_walk", False, 0)
    task.reset()
    bounds = task._simulator.action_spec()
    for action, expected in [(-1, bounds.minimum), (1, bounds.maximum)]:
        task.step(np.full(12, action, np.float32))
        np.testing.assert_allclose(task._simulator.physics.control(), expected)


def test_seeds_choose_the_episodes():
    def beginning(seed):
        return control.ControlTask("reacher_hard", False, seed).reset().observation["to_target"]

    assert (beginning(0) == beginning(0)).all()
    assert (beginning(0) != beginning(1)).any()


def test_images_are_of_the_scene():
    environment = environments.make("control_vision/cartpole_swingup")
    simulators = dynamics_of(environment).start(environment.params, 1, seed=0)
    timestep = simulators.reset()
    first = timestep.observation.copy()
    assert first.shape == (1, 64, 64, 3)
    assert first.dtype == np.uint8
    assert first.std() > 10
    for _ in range(5):
        timestep = simulators.step(np.ones((1, 1), np.float32))
    moved = (timestep.observation[0] != first[0]).any(axis=-1)
    assert 10 < moved.sum() < 64 * 64 / 2
    simulators.close()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("control_proprio/walker_wolk", "'control_proprio/walker_walk'"),
        ("control_proprio/quadruped_run", "no environment 'control_proprio/quadruped_run'"),
        ("control_vision/ball_in_cup_catch", "'control_vision/cup_catch'"),
    ],
)
def test_unknown_tasks_are_refused(name, near):
    with pytest.raises(EnvironmentNameError, match=near):
        environments.make(name)


def test_without_dm_control_the_error_says_how_to_install_it(monkeypatch):
    control._dynamics_of.cache_clear()
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(MissingPackageError, match=r"'disco-update-rules\[control\]'|older than"):
        environments.make("control_proprio/walker_walk")

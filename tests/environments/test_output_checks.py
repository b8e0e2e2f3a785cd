"""What environments return is compared with what they declare, before anything is compiled."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

import disco
import environments
from agents.random_agent import RandomAgent
from agents.rule_agent import RuleAgent, RuleAgentConfig, make_agent
from environments import SimulatorError, output_checks
from environments.names import with_arguments
from environments.processes import SerialSimulators
from environments.suites.gymnasium import Gymnasium, GymnasiumSimulator
from evaluation import playing
from tests.environments import habits
from tests.environments.streams import LAST, dynamics_of, record
from tests.launch.common import TINY, after_start, outcomes_of
from training import device, host, iteration
from training.records import Run
from training.schedule import TrainingConfig

HABIT = "gymnasium/tests.environments.habits:Habit-v0"
MAKE = "tests.environments.habits:make"
REFUSED_STARTS = {
    with_arguments(HABIT, {"case": "image of floats"}): "uint8",
    with_arguments(HABIT, {"case": "step differs"}): r"first step .*\(2,\)",
    with_arguments(HABIT, {"case": "unbounded actions"}): "from -inf to inf",
    f"{MAKE}/host/reset": r"first reset returned float32 \(\)",
    f"{MAKE}/host/batch": r"float64 \(1, 1\) .*expected float32 \(1, 2\)",
    f"{MAKE}/host/step": "first step returned None as the reward",
    f"{MAKE}/two": r"first reset returned float32 \(2,\)",
    f"{MAKE}/two at step": r"first step returned float32 \(2,\)",
}


def named(case: str) -> str:
    return with_arguments(HABIT, {"case": case})


def in_this_process(case: str) -> SerialSimulators:
    """Two of a case's simulators."""
    dynamics = Gymnasium(named(case))
    return SerialSimulators(lambda seed: GymnasiumSimulator(dynamics, seed), dynamics, 2, 0)


def stepped(case: str):
    """The time steps of a reset and two steps."""
    action_spec = Gymnasium(named(case)).action_spec()
    action = np.ones((2, 2, *action_spec.shape), action_spec.dtype)
    return record(in_this_process(case), action).timestep


@pytest.mark.parametrize("case", habits.ACCEPTED)
def test_habits_that_are_accepted(case):
    timestep, declared = stepped(case), Gymnasium(named(case)).observation_spec()
    leaves = map(jax.tree.leaves, (declared, timestep.observation))
    for spec, seen in zip(*leaves, strict=True):
        assert (seen.shape, seen.dtype) == ((3, 2, *spec.shape), spec.dtype)
    assert timestep.reward[1].tolist() == [1.0, 1.0]
    has_ended = any(np.any(x) for x in habits.ACCEPTED[case].rest[1:3])
    assert (timestep.step_type[1] == LAST).all() == has_ended


def test_values_that_are_accepted_are_kept():
    for case in ("image", "image of lists", "image of wider integers"):
        np.testing.assert_array_equal(stepped(case).observation[0, 0], habits.PIXELS)
    assert stepped("list").observation[0, 0].tolist() == [0.5, 0.0, -0.5]
    assert stepped("choice from 4").observation[0].tolist() == [2, 2]
    assert stepped("bits").observation[0, 0].tolist() == [1.0, 0.0, 1.0]
    assert stepped("choices").observation[0, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    nest = stepped("empty keys").observation
    assert {name: x[0, 0].tolist() for name, x in nest.items()} == {"/": 1, "a": 2}


@pytest.mark.parametrize("case", [x for x in habits.REFUSED if "actions" not in x])
def test_what_is_certainly_wrong_is_refused(case):
    _, words = habits.REFUSED[case]
    with pytest.raises(SimulatorError) as refused:
        stepped(case)
    message = str(refused.value)
    assert re.search(words, message), message
    assert message.startswith(f"{named(case)}: its first ")
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 600


@pytest.mark.parametrize("case", habits.JAX_ACCEPTED)
def test_jax_environments_that_are_accepted(case):
    task = environments.make(f"{MAKE}/{case}")
    output_checks._check_jax(dynamics_of(task), ())
    environments.start(task, 1, 0).close()


@pytest.mark.parametrize("case", ["vector", "integers", "dictionary"])
def test_what_is_accepted_is_replayed_as_it_comes(case):
    task = environments.make(f"{MAKE}/{case}")
    config = RuleAgentConfig(num_environments=2, batch_size=4, unroll_length=3, replay_ratio=0.5)
    agent = make_agent(disco.ActorCritic(), config, task)
    key, dynamics = jax.random.key(0), dynamics_of(task)

    def trained():
        state = iteration.init(agent, dynamics, task.params, key)
        return iteration.advance(agent, dynamics, task.params, state, key, jax.numpy.int32(0))[0]

    assert jax.eval_shape(trained).replay is not None


@pytest.mark.parametrize("case", habits.JAX_REFUSED)
def test_jax_environments_are_refused_by_name(case):
    with pytest.raises(SimulatorError) as refused:
        environments.start(environments.make(f"{MAKE}/{case}"), 1, 0)
    assert re.search(habits.JAX_REFUSED[case], str(refused.value)), refused.value
    assert str(refused.value).startswith(f"{MAKE}/{case}: its first ")


@pytest.mark.parametrize("name", REFUSED_STARTS)
def test_simulators_are_not_started_before_one_is_checked(name):
    with pytest.raises(SimulatorError, match=REFUSED_STARTS[name]) as refused:
        environments.start(environments.make(name), 2, 0, workers=1)
    assert str(refused.value).startswith(f"{name}: its ")
    assert "\n" not in str(refused.value)


@dataclasses.dataclass(frozen=True)
class Uncompiled(RandomAgent):
    """An agent that nothing may be compiled of."""

    def init(self, key):
        raise AssertionError("The agent was compiled.")

    act = init  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize("name", [f"{MAKE}/host/step", f"{MAKE}/two at step"])
def test_the_trainer_refuses_before_it_compiles(name, tmp_path):
    task = environments.make(name)
    agent, settings = Uncompiled(task.dynamics, 1, 4), TrainingConfig(num_steps=8)
    run = Run(task, 0, tmp_path)
    on_device = functools.partial(device.train, runs=[run], settings=settings, folder=tmp_path)
    train = functools.partial(host.train, run=run, settings=settings) if task.is_host else on_device
    with pytest.raises(SimulatorError, match=REFUSED_STARTS[name]):
        train(agent)
    assert list(tmp_path.iterdir()) == []


def test_a_simulator_that_fails_by_itself_is_left_to_the_run():
    environment = environments.Environment("failing", Failing())
    environments.require_declared_outputs(environment)
    with pytest.raises(SimulatorError, match="There is no corridor"):
        environments.start(environment, 2, 0)


class Failing(habits.Hosts):
    def start(self, task, batch_size, seed, workers=None):
        raise SimulatorError("There is no corridor.")


def test_the_check_changes_no_episode():
    def seen(task):
        simulators = task.dynamics.start(task.params, 2, 7, 2)
        return record(simulators, np.zeros((9, 2), np.int64)).timestep

    task = environments.make(f"{MAKE}/host/right")
    before = seen(task)
    environments.require_declared_outputs(task)
    jax.tree.map(np.testing.assert_array_equal, before, seen(task))
    assert before.reward[1].tolist() == [1.0, 1.0]  # Arrays of one number.


def test_an_agent_plays_where_an_observation_has_no_name():
    task = environments.make(named("empty keys"))
    agent = RuleAgent.create(RuleAgentConfig(), task.dynamics, disco.ActorCritic())
    played = playing.play(agent, agent.init(jax.random.key(0)), task, 4, 2, seed=0)
    assert played.reward.sum() == 8.0


def test_commands_say_it_in_a_sentence(tmp_path):
    picture, *_, step, _, jax_step = REFUSED_STARTS
    few = ("--config.seeds=1", "--config.budget=512", "--baselines=")
    cases = {
        name: ("launch.evaluate", f"--suite={name}", *few, f"--workdir={tmp_path / str(i)}")
        for i, name in enumerate((picture, step))
    } | {
        jax_step: ("launch.discover", TINY, f"--config.suite={jax_step}", f"--workdir={tmp_path}/3")
    }
    for name, (status, output) in outcomes_of(cases).items():
        assert status == 2, output
        output = after_start(output)
        assert re.search(REFUSED_STARTS[name], output), output
        assert output.startswith(f"{cases[name][0]}: {name}: its first"), output
        assert output.count("\n") == 1, output

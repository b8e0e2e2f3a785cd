"""Agents of every kind in environments of Gymnasium: they learn, and go on where they were stopped.

Each agent is in one environment or more, each environment has two agents or more.
"""

import dataclasses
import os
import pathlib
import signal

import numpy as np
import pytest

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco_common import stopping
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders, rule_contenders
from evaluation.results import RunResult
from evaluation.runs import ContenderRun, train_runs
from tests.agents import tiny
from tests.agents.common import without_speed
from tests.agents.tiny import dreamer, iris
from tests.evaluation import common
from tests.evaluation.common import BASELINES
from training.records import Records

RULE = "three_families"
CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=8, head=(8,)),
        num_environments=2,
        unroll_length=8,
        batch_size=4,
        replay_ratio=0.5,
    ),
    seeds=1,
    budget=192,
    baselines=tuple(f"{kind}_tuned" for kind in BASELINES),  # Their networks are small.
    num_points=2,
    updates_per_call=3,
)
PAIRS = [
    ("CartPole-v1", RULE),
    ("CartPole-v1", "ppo"),
    ("Acrobot-v1", "hand_set"),
    ("Acrobot-v1", "dpo"),
    ("MountainCar-v0", "impala"),
    ("MountainCar-v0", "dice"),
    ("LunarLander-v3", "policy_gradient"),
    ("LunarLander-v3", "muesli"),
    ("minigrid:MiniGrid-Empty-8x8-v0", "actor_critic"),
    ("minigrid:MiniGrid-Empty-8x8-v0", "muzero"),
    ("minigrid:MiniGrid-DoorKey-5x5-v0", "ppo"),
    ("minigrid:MiniGrid-DoorKey-5x5-v0", "dreamer"),
]
REPEATED = (  # What another pair has, but for terms of the loss.
    ("Acrobot-v1", "dpo"),
    ("MountainCar-v0", "impala"),
    ("minigrid:MiniGrid-Empty-8x8-v0", "actor_critic"),
    ("LunarLander-v3", "policy_gradient"),
    ("minigrid:MiniGrid-DoorKey-5x5-v0", "ppo"),
)
RESUMED = {  # One of each kind, and those whose checkpoints keep the replay.
    ("CartPole-v1", RULE): pytest.mark.slow,
    ("CartPole-v1", "ppo"): pytest.mark.thorough,
    ("LunarLander-v3", "muesli"): pytest.mark.thorough,
    ("minigrid:MiniGrid-Empty-8x8-v0", "muzero"): pytest.mark.slow,
    ("minigrid:MiniGrid-DoorKey-5x5-v0", "dreamer"): pytest.mark.thorough,
}


WORLD_MODELS = {
    "dreamer": dreamer(tiny.DREAMER),
    # The side of its images is 96, which 32 divides.
    "iris": iris(dataclasses.replace(tiny.IRIS, actor_channels=(2,))),
}


def contender_named(name: str) -> Contender:
    if other := WORLD_MODELS.get(name):
        return Contender.of(name, name, other)
    tuned = common.tuned(CONFIG, {kind: {} for kind in BASELINES})
    made = make_contenders(rule_contenders([RULE], CONFIG), CONFIG, tuned=tuned)
    (found,) = [x for x in made if name in (x.name, x.kind)]
    return found


def train(
    task: str, name: str, folder: pathlib.Path, stop: int | None = None
) -> tuple[RunResult, list[dict[str, float]]]:
    """A run's result and metrics; at the step `stop` this process gets a signal."""

    def report(steps, *_):
        if steps == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    made = environments.make(f"gymnasium/{task}")
    run = ContenderRun(made, CONFIG.seed, folder / "run", contender_named(name), 0)
    with stopping.noting():
        (result,) = train_runs([run], CONFIG, folder / "group", report)
    return result, Records(folder / "run").metrics()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing stops, each made once."""
    made = {}

    def get(task, name):
        if (task, name) not in made:
            made[task, name] = train(task, name, tmp_path_factory.mktemp("whole"))
        return made[task, name]

    return get


def require_learned(result: RunResult, metrics: list[dict[str, float]]) -> None:
    assert result.is_finite
    assert metrics[-1]["environment_steps"] == CONFIG.num_steps
    learned = [line for line in metrics if any(x.split("/")[-1].endswith("loss") for x in line)]
    assert len(learned) >= 2
    # Means over episodes are unknown where none ended.
    values = [x for line in learned for key, x in line.items() if "episode" not in key]
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(*pair, marks=pytest.mark.thorough if pair in REPEATED else pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_every_agent_learns_in_gymnasiums_environments(task, name, whole):
    require_learned(*whole(task, name))


@pytest.mark.learning  # It takes as long as all others together.
def test_iris_learns_from_images(tmp_path):
    require_learned(*train("CarRacing-v3?continuous=False", "iris", tmp_path))


@pytest.mark.parametrize(
    ("task", "name"), [pytest.param(*pair, marks=mark) for pair, mark in RESUMED.items()]
)
def test_a_run_that_was_stopped_goes_on(task, name, whole, tmp_path):
    """It ends as one that was not; in between its simulators start new episodes."""
    result, metrics = whole(task, name)
    half = CONFIG.num_steps // 2
    with pytest.raises(SystemExit):
        train(task, name, tmp_path, stop=half)
    again, resumed = train(task, name, tmp_path)
    assert again.is_finite == result.is_finite

    def columns(lines):
        return [(x["environment_steps"], x.get("updates")) for x in lines]

    assert columns(resumed) == columns(metrics)
    before = [[x for x in y if x["environment_steps"] < half] for y in (metrics, resumed)]
    assert without_speed(before[0]) == without_speed(before[1])


def test_every_environment_and_every_agent_is_there():
    agents = {name for _, name in PAIRS}
    assert agents == {RULE, *BASELINES, "dreamer"}
    tasks = [task for task, _ in PAIRS]
    assert len(set(tasks)) == 6
    assert min(tasks.count(task) for task in tasks) >= 2
    assert RESUMED.keys() | set(REPEATED) <= set(PAIRS)


@pytest.mark.parametrize("name", [RULE, *BASELINES, "iris"])
def test_agents_that_choose_among_actions_refuse_vectors(name):
    task = environments.make("gymnasium/Pendulum-v1")
    with pytest.raises(ValueError, match=r"gymnasium/Pendulum-v1.*expected a choice"):
        contender_named(name).configured.make(task)


@pytest.mark.parametrize("task", sorted({task for task, _ in PAIRS}))
def test_iris_refuses_what_is_no_image(task):
    made = environments.make(f"gymnasium/{task}")
    with pytest.raises(ValueError, match=r"IRIS cannot learn gymnasium/.*expected one image"):
        contender_named("iris").configured.make(made)


def test_dreamer_acts_with_vectors():
    task = environments.make("gymnasium/Pendulum-v1")
    agent = contender_named("dreamer").configured.make(task)
    assert dataclasses.is_dataclass(agent)

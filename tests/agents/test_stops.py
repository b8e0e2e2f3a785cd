"""DiCE, Muesli and MuZero: runs that stop and go on exactly, and runs in host environments."""

import dataclasses
import multiprocessing
import os
import pathlib
import signal
from typing import Any

import jax
import numpy as np
import pytest
from dm_env import specs

import environments
from agents.dice.algorithm import DICE
from agents.dice.config import DiceConfig
from agents.muesli.algorithm import MUESLI
from agents.muesli.config import MuesliConfig
from agents.muzero.algorithm import MUZERO
from agents.muzero.config import MuZeroConfig
from agents.networks import NetworkConfig
from agents.registry import ConfiguredAlgorithm
from disco_common import stopping
from tests.agents.common import HostCorridors, without_speed
from training import device, host
from training.records import Records, Run
from training.schedule import TrainingConfig

NETWORK = NetworkConfig(torso=(8,), model=8, head=(8,))
RECURRENT = dataclasses.replace(NETWORK, memory=4)
TASK = environments.make("catch/5x4")
STEPS = 192

DICE_CONFIG = DiceConfig(
    network=RECURRENT,
    num_environments=4,
    batch_size=2,
    unroll_length=8,
    burn_in=3,
    frame_stack=2,
)
MUESLI_CONFIG = MuesliConfig(
    network=RECURRENT,
    num_environments=4,
    unroll_length=8,
    batch_size=16,
    replay_capacity=12,
    burn_in=3,
    frame_stack=2,
)
MUZERO_CONFIG = MuZeroConfig(
    network=NETWORK,
    num_simulations=4,
    num_environments=4,
    batch_size=8,
    min_steps=64,
    replay_capacity=160,
    model_steps=2,
    td_steps=2,
    priority_exponent=1.0,
    frame_stack=3,
)
AGENTS = {
    "dice": ConfiguredAlgorithm(DICE, DICE_CONFIG),
    "muesli": ConfiguredAlgorithm(MUESLI, MUESLI_CONFIG),
    "muzero": ConfiguredAlgorithm(MUZERO, MUZERO_CONFIG),
}


@dataclasses.dataclass(frozen=True)
class Gliders(HostCorridors):
    """An action is a vector."""

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0)


def train(name: str, folder: pathlib.Path, stop: int | None = None, number: int = signal.SIGKILL):
    """A run, and its metrics; at the step `stop` this process gets the signal `number`."""
    settings = TrainingConfig(num_steps=STEPS, interval=32, checkpoint_seconds=0.0)
    run = Run(TASK, 0, folder / "run")

    def report(steps, *_):
        if steps == stop:
            os.kill(os.getpid(), number)

    with stopping.noting():
        (trained,) = device.train(
            AGENTS[name].make(TASK), [run], settings, folder / "together", report
        )
    return trained, Records(folder / "run").metrics()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow if x == "muesli" else pytest.mark.thorough)
        for x in AGENTS
    ],
)
def test_a_run_that_was_killed_continues_exactly(name, tmp_path):
    whole, metrics = train(name, tmp_path / "whole")
    assert whole.is_finite
    assert all(np.isfinite(x) for line in metrics for x in line.values())
    process = multiprocessing.get_context("spawn").Process(
        target=train, args=(name, tmp_path / "killed", STEPS // 2)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    again, resumed = train(name, tmp_path / "killed")
    assert again.episodes == whole.episodes
    assert without_speed(resumed) == without_speed(metrics)
    jax.tree.map(np.testing.assert_array_equal, again.learner, whole.learner)


# The others learn in such environments in tests/evaluation/test_gymnasium.py, too.
@pytest.mark.parametrize(
    "name", [x if x == "muzero" else pytest.param(x, marks=pytest.mark.thorough) for x in AGENTS]
)
def test_it_learns_in_host_environments(name, tmp_path):
    task = environments.Environment("corridors", HostCorridors(), True)
    agent = AGENTS[name].make(task)
    settings = TrainingConfig(num_steps=STEPS, interval=32)
    trained = host.train(agent, Run(task, 0, tmp_path / "run"), settings)
    assert trained.is_finite
    metrics = Records(tmp_path / "run").metrics()
    losses = [x for line in metrics for k, x in line.items() if k.split("/")[-1] == "loss"]
    assert losses
    assert all(np.isfinite(losses))


@pytest.mark.parametrize("algorithm", AGENTS.values(), ids=AGENTS)
def test_continuous_actions_are_refused_by_name(algorithm):
    task = environments.Environment("gliders", Gliders(), True)
    with pytest.raises(ValueError, match=r"Gliders.* has continuous actions of shape .2,."):
        algorithm.make(task)

"""Lifetimes of many agents at once: the same returns as runs of their own."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig, RuleAgent
from training import device, device_program
from training.records import Run
from training.schedule import TrainingConfig

CONFIG = AgentConfig(
    network=NetworkConfig(torso=(8,), model=0, head=()),
    learning_rate=0.0,
    num_environments=4,
    unroll_length=8,
    batch_size=8,
    replay_ratio=0.5,
)
SETTINGS = TrainingConfig(num_steps=2_560, boundaries=(2_048,), scored_from=2_048)
TASKS = [environments.make(name) for name in ("grid57/00_dense_fixed", "grid57/01_dense_random")]


def agent(learning_rate: float, **changes) -> RuleAgent:
    made = RuleAgent.create(CONFIG, TASKS[0].dynamics, disco.HandSetRule(num_bins=11, **changes))
    return dataclasses.replace(made, learning_rate=jnp.float32(learning_rate))


@pytest.mark.slow
def test_the_returns_are_those_of_runs_of_their_own(tmp_path):
    """With two learning rates, on two tasks."""
    agents, reported = [agent(1e-2), agent(5e-2)], []
    found = device_program.mean_returns(agents, TASKS, 3, SETTINGS, reported.append)
    for i, one in enumerate(agents):
        for j, task in enumerate(TASKS):
            run = Run(task, 3, tmp_path / f"{i}_{j}")
            (own,) = device.train(one, [run], SETTINGS, tmp_path / f"group_{i}_{j}")
            scored = [x for x in own.episodes if x.environment_steps > SETTINGS.scored_from]
            mean = sum(x.return_sum for x in scored) / sum(x.episodes for x in scored)
            assert found[i, j] == pytest.approx(mean, rel=1e-5)
    assert not np.allclose(found[0], found[1])
    assert reported == sorted(reported)
    assert reported[-1] == len(agents) * len(TASKS) * SETTINGS.num_steps


def test_an_agents_returns_do_not_depend_on_the_others():
    alone = device_program.mean_returns([agent(5e-2)], TASKS[:1], 0, SETTINGS)
    together = device_program.mean_returns([agent(1e-2), agent(5e-2)], TASKS[:1], 0, SETTINGS)
    np.testing.assert_allclose(together[1:], alone, rtol=1e-6)


def test_refused():
    with pytest.raises(ValueError, match="differ in more than arrays"):
        device_program.mean_returns([agent(1e-2), agent(1e-2, lambda_=0.5)], TASKS[:1], 0, SETTINGS)

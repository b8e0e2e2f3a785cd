"""Lifetimes of many agents at once: the same returns as runs of their own."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig
from training import device
from training.device_program import Lifetimes
from training.records import Run
from training.schedule import TrainingConfig

CONFIG = RuleAgentConfig(
    network=NetworkConfig(torso=(8,), model=0, head=()),
    learning_rate=0.0,
    num_environments=4,
    unroll_length=8,
    batch_size=8,
    replay_ratio=0.5,
)
SETTINGS = TrainingConfig(num_steps=2_560, boundaries=(2_048,), scored_from=2_048)
UNROLLS = 2_560 // (4 * 8)
TASK = environments.make("grid57/00_dense_fixed")


def agent(learning_rate: float, **changes) -> RuleAgent:
    made = RuleAgent.create(CONFIG, TASK.dynamics, disco.HandSetRule(num_bins=11, **changes))
    return dataclasses.replace(made, learning_rate=jnp.float32(learning_rate))


def returns(agents, seed=0, parts=(64, UNROLLS), report=lambda steps: None):
    """Mean returns of the episodes that end in the last of some parts of the lifetimes."""
    lifetimes, episodes = Lifetimes(agents, TASK, seed, SETTINGS), None
    states = lifetimes.init()
    for begin, end in itertools.pairwise((0, *parts)):
        states, episodes = lifetimes.advance(states, begin, end, report)
    assert episodes is not None
    return episodes.return_sum / episodes.count


@pytest.mark.slow
def test_the_returns_are_those_of_runs_of_their_own(tmp_path):
    """With two learning rates."""
    agents, reported = [agent(1e-2), agent(5e-2)], []
    found = returns(agents, 3, report=reported.append)
    for i, one in enumerate(agents):
        run = Run(TASK, 3, tmp_path / f"{i}")
        (own,) = device.train(one, [run], SETTINGS, tmp_path / f"group_{i}")
        scored = [x for x in own.episodes if x.environment_steps > SETTINGS.scored_from]
        mean = sum(x.return_sum for x in scored) / sum(x.episodes for x in scored)
        assert found[i] == pytest.approx(mean, rel=1e-5)
    assert found[0] != found[1]
    steps_per_unroll = len(agents) * 4 * 8
    assert reported == [x * steps_per_unroll for x in (50, 64, UNROLLS - 64)]


def test_an_agents_returns_do_not_depend_on_the_others():
    together = returns([agent(1e-2), agent(5e-2)])
    np.testing.assert_allclose(together[1:], returns([agent(5e-2)]), rtol=1e-6)


def test_a_lifetime_in_parts_is_the_same_lifetime():
    np.testing.assert_array_equal(returns([agent(5e-2)]), returns([agent(5e-2)], parts=(9, 64, 80)))


def test_refused():
    with pytest.raises(ValueError, match="differ in more than arrays"):
        returns([agent(1e-2), agent(1e-2, lambda_=0.5)])

"""The agent that learns by a rule: its batches, its config, and that it learns."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.muesli.algorithm import MuesliAgent
from agents.muesli.config import MuesliConfig
from agents.networks import NetworkConfig
from agents.protocol import Batch
from agents.rule_agent import RuleAgent, RuleAgentConfig, make_agent
from tests.agents.common import Corridor
from training import iteration, replay_sampling
from training.passes import split_agent

CATCH = environments.make("catch/4x3")
SMALL = RuleAgentConfig(
    network=NetworkConfig(torso=(4,)),
    num_environments=2,
    unroll_length=5,
    batch_size=6,
    replay_ratio=2 / 3,
    replay_capacity=4,
)


def batches(config: RuleAgentConfig, count: int):
    """What the environments paid out to each update, and what it learned from."""
    rule = disco.ActorCritic()
    agent, dynamics = RuleAgent.create(config, Corridor(), rule), Corridor()
    task, (spec,) = jnp.asarray(True), agent.requirements.updates

    @jax.jit
    def collect(key):
        state = iteration.init(agent, dynamics, task, key)

        def step(state, key):
            unroll_key, draw_key = jax.random.split(key)
            state, fresh, _ = iteration.collect(agent, dynamics, task, state, unroll_key)
            drawn = replay_sampling.draw(agent.requirements, state.replay, spec, fresh, draw_key)
            return state, (fresh, drawn[1])

        return jax.lax.scan(step, state, jax.random.split(key, count))

    return jax.device_get(collect(jax.random.key(0)))


def columns(batch: Batch, update: int) -> list[bytes]:
    """Each sequence of a batch, by its random observations."""
    observation = batch.observation[update]
    return [observation[:, i].tobytes() for i in range(observation.shape[1])]


def test_batches_mix_fresh_and_replayed_trajectories():
    state, (fresh, batch) = batches(SMALL, 4)
    assert batch.action.shape == (4, 5, 6)
    remembered: list[bytes] = []
    new: list[bytes] = []
    for update in range(4):
        new, learned = columns(fresh, update), columns(batch, update)
        remembered = (remembered + new)[-4:]
        assert learned[:2] == new
        assert set(learned[2:]) <= set(remembered)
    assert len(set(columns(batch, 3)[2:]) - set(new)) > 0
    assert int(state.replay.num_unrolls) == 4


def test_batches_drawn_from_the_replay_only():
    config = dataclasses.replace(SMALL, replay_ratio=1.0, batch_size=40)
    _, (fresh, batch) = batches(config, 3)
    drawn = set(columns(batch, 2))
    assert drawn == {*columns(fresh, 1), *columns(fresh, 2)}


def test_batches_without_replay():
    config = dataclasses.replace(SMALL, replay_ratio=0.0, batch_size=2)
    state, (fresh, batch) = batches(config, 2)
    assert state.replay is None
    jax.tree.map(np.testing.assert_array_equal, batch, fresh)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"unroll_length": 0}, "agent.unroll_length is 0; expected at least 1"),
        ({"num_environments": 0}, "agent.num_environments is 0; expected at least 1"),
        ({"replay_ratio": -0.1}, r"agent.replay_ratio is -0.1; expected 0 to 1"),
        ({"replay_ratio": 0.5}, "leaves 3 of agent.batch_size 6 for fresh trajectories; expected"),
        ({"reward_scale": 0.0}, "agent.reward_scale is 0.0; expected a positive number"),
        ({"replay_capacity": 1}, "agent.replay_capacity is 1; expected at least"),
    ],
)
def test_config_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **wrong)


@pytest.mark.parametrize("kind", [RuleAgentConfig, MuesliConfig])
def test_rewards_are_scaled(kind):
    """The agent learns from the scaled rewards; a half of them is exact."""
    shared = {x.name: getattr(SMALL, x.name) for x in dataclasses.fields(SMALL)}
    shared |= {"replay_ratio": 0.0, "batch_size": 2}
    config = dataclasses.replace(kind(), **shared)
    _, (_, batch) = batches(config, 1)
    rewards = jnp.arange(10.0).reshape(5, 2)
    batch = dataclasses.replace(jax.tree.map(lambda x: x[0], batch), reward=rewards)

    def learn(reward_scale, batch):
        config_of = dataclasses.replace(config, reward_scale=reward_scale)
        agent: Any
        if isinstance(config_of, MuesliConfig):
            agent = MuesliAgent.create(config_of, Corridor())
        else:
            agent = RuleAgent.create(config_of, Corridor(), disco.ActorCritic())
        state = agent.init(jax.random.key(1))
        return agent.update(state, batch, jax.random.key(2), "").state.params

    halved = learn(0.5, batch)
    of_half = learn(1.0, dataclasses.replace(batch, reward=0.5 * rewards))
    np.testing.assert_array_equal(halved, of_half)
    assert not np.array_equal(halved, learn(1.0, batch))


def test_agents_of_other_rates_and_lifetimes_share_a_program():
    config = dataclasses.replace(SMALL, end_learning_rate=0.1)
    agents = [
        make_agent(disco.ActorCritic(), dataclasses.replace(config, **changes), CATCH)
        for changes in ({"lifetime": 100}, {"lifetime": 200}, {"lifetime": 100, "learning_rate": 1})
    ]
    static, arrays = zip(*map(split_agent, agents), strict=True)
    assert len({*static}) == 1
    assert len({tuple(map(float, own)) for own in arrays}) == 3


def test_learns_catch():
    """From returns around -0.6 to the best possible, 1."""
    config = RuleAgentConfig(
        network=NetworkConfig(torso=(32,)),
        learning_rate=5e-3,
        num_environments=16,
        unroll_length=10,
        batch_size=16,
        replay_ratio=0.0,
    )
    environment = environments.make("catch/5x5")
    rule = disco.ActorCritic(num_bins=1)
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    agent = RuleAgent.create(config, dynamics, rule)

    @jax.jit
    def learn(key):
        def update(state, key):
            state, statistics, _ = iteration.advance(
                agent, dynamics, task, state, key, state.updates
            )
            return state, (statistics.return_sum, statistics.count)

        state = iteration.init(agent, dynamics, task, key)
        return jax.lax.scan(update, state, jax.random.split(key, 400))

    _, (returns, counts) = learn(jax.random.key(0))
    assert returns[:20].sum() / counts[:20].sum() < 0.0
    assert returns[-50:].sum() / counts[-50:].sum() > 0.9

"""Collecting unrolls: what lies between two episodes, and what is counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks import NetworkConfig
from tests.agents.common import Corridor, assert_corridor, assert_in_all, network_of
from tests.training.common import network_agent
from training import collection

BATCH = 2


@pytest.fixture(scope="module")
def act():
    environment = Corridor(length=3)
    network = network_of(
        NetworkConfig(torso=(4,)), environment.observation_spec(), 2, {"logits": (2,)}
    )
    params = network.init(jax.random.key(0))
    agent = network_agent(network)

    @jax.jit
    def start(task):
        return collection.start(agent, environment, task, jax.random.key(1), BATCH)

    @jax.jit
    def rollout(task, actor, key):
        return collection.collect(agent, environment, task, params, actor, key, 7)

    return start, rollout, lambda observation: network.policy(params, observation, None)[0]


@pytest.mark.parametrize("terminates", [True, False])
def test_unroll(act, terminates):
    start, rollout, policy = act
    task = jnp.asarray(terminates)
    actor, trajectory, statistics = rollout(task, start(task), jax.random.key(2))
    assert_corridor(trajectory, terminates)
    np.testing.assert_allclose(
        trajectory.extras["behaviour_logits"],
        policy(trajectory.observation[:-1]),
        rtol=1e-5,
        atol=1e-6,
    )
    assert float(statistics.count) == 2 * BATCH
    assert float(statistics.return_sum) == 2 * 6 * BATCH
    assert float(statistics.length_sum) == 2 * 3 * BATCH
    assert float(statistics.reward_sum) == 2 * 6 * BATCH
    assert float(statistics.steps) == 6 * BATCH

    # The next trajectory begins where this one ended: with the transition to a new episode.
    last_observation = trajectory.observation[-1]
    actor, trajectory, statistics = rollout(task, actor, jax.random.key(3))
    np.testing.assert_array_equal(trajectory.observation[0], last_observation)
    assert_in_all(trajectory.observation[..., 0], [3, 0, 1, 2, 3, 0, 1, 2])
    assert_in_all(trajectory.mask, [False, True, True, True, False, True, True])
    assert float(statistics.count) == BATCH
    assert float(statistics.return_sum) == 6 * BATCH
    assert float(statistics.reward_sum) == (6 + 1 + 2) * BATCH
    np.testing.assert_array_equal(actor.episode_return, [3.0] * BATCH)

    # A return counts what the episode paid before this trajectory.
    _, trajectory, statistics = rollout(task, actor, jax.random.key(4))
    assert_in_all(trajectory.last, [True, False, False, False, True, False, False])
    assert float(statistics.return_sum) == 2 * 6 * BATCH

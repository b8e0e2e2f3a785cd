"""Agents that adapt to scales: the same for every encoding and every scale of rewards."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from jax.flatten_util import ravel_pytree

import disco
import environments
from agents import scales
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig
from environments.encodings import Encoded
from tests.disco.common import random_trajectory
from tests.disco.test_progress import progressing

CONFIG = RuleAgentConfig(
    network=NetworkConfig(torso=(6,), model=0, head=(5,)),
    learning_rate=1e-2,
    num_environments=3,
    unroll_length=7,
    batch_size=3,
    replay_ratio=0.0,
)
CATCH: Any = environments.make("catch/4x3").dynamics  # Of three actions.
HAND_SET = disco.HandSetRule(num_bins=21, max_value=10.0)


def agent(inputs=4, rule: disco.Rule = HAND_SET, **changes) -> RuleAgent:
    return RuleAgent.create(
        dataclasses.replace(CONFIG, **changes), Encoded(CATCH, "projected", inputs), rule
    )


def learned(made: RuleAgent, batches, params=None):
    """The state after some updates."""
    state = jax.jit(made.init)(jax.random.key(0))
    if params is not None:
        state = dataclasses.replace(state, params=params, rule_state=made.rule.init(params))
    learn = jax.jit(lambda state, batch: made.learn(state, batch)[0])
    for batch in batches:
        state = learn(state, batch)
    return state


def batches(number=4, scale=1.0):
    made = [random_trajectory(seed) for seed in range(number)]
    return [dataclasses.replace(x, reward=scale * x.reward) for x in made]


def policies(made, params, batch):
    return np.asarray(jax.nn.softmax(made.network.unroll(params, batch)["logits"]))


def test_copies_of_inputs_change_nothing():
    """A network whose inputs are five copies, with a fifth of the weights, learns the same."""

    def copied(batch):
        return dataclasses.replace(batch, observation=jnp.tile(batch.observation, (1, 1, 5)))

    one, five = (agent(number, adapts_steps=True) for number in (4, 20))
    start = one.network.unravel(one.network.init(jax.random.key(0)))
    first = start["torso/mlp/~/linear_0"]
    wide = {**start, "torso/mlp/~/linear_0": {**first, "w": jnp.tile(first["w"], (5, 1)) / 5.0}}
    flat = ravel_pytree(wide)[0]
    own = learned(one, batches())
    of_copies = learned(five, [copied(x) for x in batches()], flat)
    test = batches(5)[-1]
    expected = policies(one, own.params, test)
    np.testing.assert_allclose(policies(five, of_copies.params, copied(test)), expected, rtol=1e-3)
    plain = dataclasses.replace(five, config=dataclasses.replace(five.config, adapts_steps=False))
    other = learned(plain, [copied(x) for x in batches()], flat)
    assert np.abs(policies(five, other.params, copied(test)) - expected).max() > 0.01


@pytest.mark.parametrize("scale", [1e-2, 1e2])
def test_the_scale_of_rewards_changes_nothing(scale):
    made = agent(adapts_rewards=True)
    test = batches(5)[-1]
    expected = policies(made, learned(made, batches()).params, test)
    found = policies(made, learned(made, batches(scale=scale)).params, test)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_steps_fall_with_the_width():
    made = agent(adapts_steps=True, network=NetworkConfig(torso=(128, 64), model=0, head=(32,)))
    params = made.network.init(jax.random.key(0))
    factors = made.network.unravel(made.network.step_factors(params, jnp.float32(80.0)))
    found = {module: np.unique(arrays["w"]).tolist() for module, arrays in factors.items()}
    assert found == {
        "torso/mlp/~/linear_0": [pytest.approx(0.1)],
        "torso/mlp/~/linear_1": [0.25],
        "logits_head": [0.5],
        "q_hidden/~/linear_0": [0.5],
        "q_head": [1.0],
    }
    assert {float(x) for arrays in factors.values() for x in np.unique(arrays["b"])} == {1.0}


def test_discounted_sums_end_with_the_episode():
    batch = random_trajectory(num_transitions=4, batch_size=1)
    batch = dataclasses.replace(
        batch,
        reward=jnp.array([[1.0], [0.0], [2.0], [0.0]]),
        last=jnp.array([[False], [True], [False], [False]]),
        mask=jnp.ones((4, 1), bool),
    )
    found = scales.discounted_sums(batch, 0.5)[:, 0]
    np.testing.assert_allclose(found, [1.0, 0.5, 2.0, 1.0])


def test_rewards_are_measured_where_they_arrive():
    """Not by how often: a rare reward of 2 is as large as one in each episode's last step."""
    batch = random_trajectory(num_transitions=4, batch_size=1)
    last = jnp.ones((4, 1), bool)
    none = dataclasses.replace(batch, reward=jnp.zeros((4, 1)), last=last, mask=last)
    rare = dataclasses.replace(none, reward=jnp.zeros((4, 1)).at[1].set(2.0))
    found, zero = scales.Scales.zeros(), jnp.zeros(())
    for _ in range(10):
        found = found.after(none, zero, 0.9)
    assert float(found.of_rewards) == 1.0
    found = found.after(rare, zero, 0.9).after(none, zero, 0.9)
    assert float(found.of_rewards) == pytest.approx(2.0)


@pytest.mark.parametrize("step", [0.0, -2.0])
def test_a_rule_scales_the_steps(step):
    made = agent(rule=progressing(step))
    start = jax.jit(made.init)(jax.random.key(0))
    same = agent(rule=progressing(0.0))
    moved = learned(made, batches(1)).params - start.params
    of_one = learned(same, batches(1)).params - start.params
    np.testing.assert_allclose(moved, np.exp(step) * of_one, rtol=1e-4, atol=1e-8)


def test_what_an_mlp_reads_is_measured():
    """One of a hot vector, bytes as parts of 255, whole numbers by their logarithm; two frames."""
    spec = {
        "choice": specs.DiscreteArray(7),
        "image": specs.Array((2, 2, 1), np.uint8),
        "count": specs.Array((2,), np.int32),
        "real": specs.Array((3,), np.float32),
    }
    seen = {
        "choice": jnp.array([[3, 1]]),
        "image": jnp.full((1, 2, 2, 2, 1), 51, jnp.uint8),
        "count": jnp.array([[[0, -1], [0, 0]]]),
        "real": jnp.array([[[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]]),
    }
    found = float(scales.mean_input(spec, seen))
    assert found * (14 + 8 + 4 + 6) == pytest.approx(2.0 + 8 * 0.2 + np.log(2.0) + 3.5, rel=1e-5)


@pytest.mark.parametrize("patch", [1, 4])
def test_convolutions_step_by_their_windows(patch):
    network = NetworkConfig(torso=(6,), channels=(16,), blocks=1, patch=patch, model=0, head=())
    dynamics: Any = environments.make("pixels/catch/8x8").dynamics
    config = dataclasses.replace(CONFIG, network=network, adapts_steps=True)
    made = RuleAgent.create(config, dynamics, HAND_SET)
    params = made.network.init(jax.random.key(0))
    arrays = made.network.unravel(params)
    factors = made.network.unravel(made.network.step_factors(params, jnp.float32(0.5)))
    for module, found in factors.items():
        window = np.prod(arrays[module]["w"].shape[:-1])
        is_first = module.endswith("patch" if patch > 1 else "section_0_in")
        expected = 32.0 / (0.5 * window) if is_first else min(1.0, 32.0 / window)
        np.testing.assert_allclose(found["w"], expected, rtol=1e-6)


def test_agents_that_do_not_adapt_keep_no_scales():
    assert agent().init(jax.random.key(0)).scales is None

"""The network: outputs as a rule asks for them, and the action-conditional model."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

import disco
from agents.networks import ActionConditionalModel, NetworkConfig, make_network
from tests.disco.common import random_trajectory, small_rule

NUM_ACTIONS = 3
RULES = {"discovered": small_rule(), "actor-critic": disco.ActorCritic(num_bins=21)}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_outputs_have_the_rules_shapes(rule):
    config = NetworkConfig(torso=(5,), model=4, head=(6,))
    shapes = rule.output_shapes(NUM_ACTIONS)
    spec = specs.Array((2, 2), np.uint8)
    network = make_network(config, spec, NUM_ACTIONS, shapes)
    params = jax.jit(network.init)(jax.random.key(0))
    trajectory = random_trajectory(num_transitions=4, batch_size=2)
    rows = (5, 2)
    observation = jnp.arange(40, dtype=jnp.uint8).reshape(*rows, 2, 2)
    outputs = jax.jit(network.unroll)(params, trajectory.replace(observation=observation))

    assert {name: x.shape for name, x in outputs.items()} == {
        name: (*rows, *shape) for name, shape in shapes.items()
    }
    # The policy to act by is the policy that learns, and a newborn's is nearly uniform.
    logits, _ = jax.jit(network.policy)(params, observation, None)
    np.testing.assert_allclose(logits, outputs["logits"], rtol=1e-5, atol=1e-6)
    policy = jax.nn.softmax(network.policy(params, jnp.ones((1, 2, 2)), None)[0])
    np.testing.assert_allclose(policy, 1 / NUM_ACTIONS, atol=0.05)


def test_action_conditional_model_is_an_lstm_step_with_each_action():
    size, width = 5, 4
    model = hk.without_apply_rng(
        hk.transform(lambda x: ActionConditionalModel(size)(x, NUM_ACTIONS))
    )
    embedding = jax.random.normal(jax.random.key(0), (6, width))
    params = model.init(jax.random.key(1), embedding)
    name = "action_conditional_model"
    # Nothing but the forget gate's constant 1 may be missing.
    gates = {**params[f"{name}/gates"], "b": jax.random.normal(jax.random.key(2), (4 * size,))}
    actual = model.apply({**params, f"{name}/gates": gates}, embedding)
    assert actual.shape == (6, NUM_ACTIONS, size)

    def step(cell, action):
        state = hk.LSTMState(hidden=jnp.tanh(cell), cell=cell)
        return hk.LSTM(size)(action, state)[0]

    lstm = hk.without_apply_rng(hk.transform(step))
    weight = jnp.concatenate([params[name]["action_gates"], gates["w"]])
    linear = params[f"{name}/cell"]
    cell = embedding @ linear["w"] + linear["b"]
    for action in range(NUM_ACTIONS):
        one_hot = jnp.broadcast_to(jnp.eye(NUM_ACTIONS)[action], (6, NUM_ACTIONS))
        expected = lstm.apply({"lstm/linear": {"w": weight, "b": gates["b"]}}, cell, one_hot)
        np.testing.assert_allclose(actual[:, action], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"torso": (8, 0)}, r"network.torso is \(8, 0\); expected positive"),
        ({"model": 0}, "network.model is 0; expected positive"),
        ({"head": (-1,)}, r"network.head is \(-1,\); expected positive"),
    ],
)
def test_config_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**wrong)

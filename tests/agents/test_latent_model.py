"""Models in a latent space: what they should predict where episodes end, shapes, gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents import latent_model
from agents.latent_model import LatentModel
from agents.networks import NetworkConfig

TASK = environments.make("catch/5x4")
NETWORK = NetworkConfig(torso=(16,), model=8, head=(8,))


def trajectory_of(last, discount, mask, reward) -> disco.Trajectory:
    """One environment, whose actions are 0, 1, 2, ...."""
    length = len(last)

    def column(x, dtype) -> Any:
        return np.asarray(x, dtype)[:, None]

    return disco.Trajectory(
        observation=np.zeros((length + 1, 1)),
        action=column(range(length), np.int32),
        reward=column(reward, np.float32),
        discount=column(discount, np.float32),
        last=column(last, bool),
        mask=column(mask, bool),
        behaviour_logits=jnp.zeros((length, 1, 5)),
    )


def test_targets_after_a_terminated_and_a_truncated_episode():
    """Rows 0 to 2 are an episode that terminates, 4 and 5 one that is truncated, then two more."""
    trajectory = trajectory_of(
        last=[0, 0, 1, 0, 0, 1, 0, 0],
        discount=[1, 1, 0, 1, 1, 1, 1, 1],
        mask=[1, 1, 1, 0, 1, 1, 0, 1],
        reward=[1, 2, 3, 40, 5, 6, 70, 8],
    )
    value = jnp.arange(10.0, 19.0)[:, None]
    found = latent_model.unroll_targets(trajectory, value, 4)

    def of(x, t):
        return np.asarray(x)[:, t, 0].tolist()

    # From row 0: rewards 1, 2, 3, then 0; the value after termination is 0, and stays so.
    assert of(found.reward, 0) == [1, 2, 3, 0]
    assert of(found.value, 0) == [11, 12, 0, 0]
    assert of(found.is_known, 0) == [True, True, True, True]
    assert of(found.has_policy, 0) == [True, True, False, False]
    assert np.asarray(found.action)[0, 0].tolist() == [0, 1, 2, 3]
    assert of(found.is_known, 2) == [True] * 4
    assert of(found.value, 2) == [0] * 4
    # Row 3 only leads to the next episode.
    assert not any(of(found.is_known, 3))
    assert not any(of(found.has_policy, 3))
    # From row 4: truncated after two steps, where the state has a value; nothing is known beyond.
    assert of(found.reward, 4)[:2] == [5, 6]
    assert of(found.value, 4)[:2] == [15, 16]
    assert of(found.is_known, 4) == [True, True, False, False]
    assert of(found.has_policy, 4) == [True, False, False, False]
    # From row 7: the sequence ends.
    assert of(found.is_known, 7) == [True, False, False, False]
    assert of(found.value, 7)[0] == 18
    assert np.asarray(found.index)[:, 4].tolist() == [5, 6, 7, 8]


@pytest.fixture(name="model", scope="module")
def model_of_catch() -> LatentModel:
    return LatentModel(NETWORK, TASK.dynamics, num_bins=11)


def test_an_unroll_is_repeated_steps(model):
    params = model.init(jax.random.key(0))
    embedding = jax.random.normal(jax.random.key(1), (3, 2, 16))
    action = jax.random.randint(jax.random.key(2), (3, 2, 4), 0, 3)
    found = latent_model.unroll_model(model, params, embedding, action)
    assert found.logits.shape == (4, 3, 2, 3)
    assert found.value.shape == (4, 3, 2, 11)
    state = model.start(params, embedding)
    for k in range(4):
        state = model.step(params, state, action[..., k])
        for x, y in zip(found, model.predict(params, state), strict=True):
            np.testing.assert_allclose(x[k], y, rtol=1e-5, atol=1e-7)


def test_gradients_through_states_are_scaled(model):
    """The gradient of the prediction after k + 1 actions has passed k earlier states."""
    params, action = model.init(jax.random.key(0)), jnp.zeros((1, 3), jnp.int32)

    def gradient(k, scale):
        def value(embedding):
            found = latent_model.unroll_model(model, params, embedding, action, scale)
            return jnp.sum(found.value[k, 0, 0])

        return jax.grad(value)(jnp.ones((1, 16)))

    for k in range(3):
        np.testing.assert_allclose(
            gradient(k, 0.5), 0.5**k * gradient(k, 1.0), rtol=1e-4, atol=1e-9
        )


def test_initial_predictions_are_nearly_zero(model):
    params = model.init(jax.random.key(0))
    state = model.step(params, model.start(params, jnp.ones((1, 16))), jnp.zeros(1, jnp.int32))
    for x in model.predict(params, state):
        assert float(jnp.max(jnp.abs(x))) < 0.1


def test_equal_arguments_give_the_same_model():
    one, other = (
        LatentModel(NETWORK, environments.make("catch/5x4").dynamics, num_bins=11) for _ in range(2)
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, frame_stack=2)


def test_a_model_without_units_is_refused():
    with pytest.raises(ValueError, match=r"network.model is 0; expected the units of a model"):
        LatentModel(NetworkConfig(model=0), TASK.dynamics, num_bins=11)

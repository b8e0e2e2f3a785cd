"""MuZero's returns, its loss and its search against numbers that are computed otherwise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from agents.latent_model import LatentModel
from agents.muzero import losses
from agents.muzero.config import MuZeroConfig
from agents.networks import NetworkConfig
from agents.protocol import Batch
from disco import values

TASK = environments.make("catch/5x4")
NETWORK = NetworkConfig(torso=(16,), model=8, head=(8,))
MODEL = LatentModel(NETWORK, TASK.dynamics, num_bins=21)
CONFIG = MuZeroConfig(discount=0.9, model_steps=2, td_steps=2, max_value=3.0, value_cost=0.25)
B, T = 4, CONFIG.model_steps + CONFIG.td_steps + 1


@pytest.fixture(name="batch")
def random_batch() -> tuple[Batch, np.ndarray, np.ndarray]:
    """Column 1 terminates after row 1, column 2 is truncated there, column 3 begins at an end."""
    random: Any = np.random.default_rng(0)
    last: Any = np.zeros((T, B), bool)
    mask: Any = np.ones((T, B), bool)
    discount: Any = np.ones((T, B), np.float32)
    last[1, 1], mask[2, 1], discount[1, 1] = True, False, 0.0
    last[1, 2], mask[2, 2] = True, False
    mask[0, 3] = False
    batch = Batch(
        observation=np.zeros((T + 1, B)),
        action=random.integers(3, size=(T, B)),
        reward=random.normal(size=(T, B)).astype(np.float32),
        discount=discount,
        last=last,
        mask=mask,
        extras={},
    )
    policy = random.dirichlet(np.ones(3), size=(T, B)).astype(np.float32)
    return batch, policy, random.normal(size=(T, B)).astype(np.float32)


def returns_by_hand(batch, value):
    found = np.zeros((T - 1, B))
    for t, b in np.ndindex(T - 1, B):
        total, factor = 0.0, 1.0
        for k in range(CONFIG.td_steps):
            total += factor * batch.reward[t + k, b]
            factor *= 0.9 * batch.discount[t + k, b]
            is_end = batch.last[t + k, b] or t + k == T - 2
            if is_end or k == CONFIG.td_steps - 1:
                total += factor * value[t + k + 1, b]
                break
        found[t, b] = total
    return found


def test_returns(batch):
    data, _, value = batch
    found = losses.value_targets(data, jnp.asarray(value), 0.9, CONFIG.td_steps)
    expected = np.where(data.mask[:-1], returns_by_hand(data, value), value[:-1])
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-5)
    np.testing.assert_array_equal(found[-1], value[-1])


def test_loss(batch):
    data, policy, value = batch
    params = MODEL.init(jax.random.key(0)) * 3.0
    embedding = jax.random.normal(jax.random.key(1), (B, 16))
    extras = jnp.asarray(policy), jnp.asarray(value)
    found, (metrics, error) = losses.loss(MODEL, params, embedding, data, *extras, CONFIG)
    z = returns_by_hand(data, value)

    def of_bins(logits, target):
        target = np.sign(target) * (np.sqrt(abs(target) + 1) - 1) + 0.001 * target
        code = values.two_hot(jnp.float32(target), 21, 3.0)
        return -float(jnp.sum(code * jax.nn.log_softmax(logits)))

    def of_policy(logits, wanted):
        return -float(jnp.sum(jnp.asarray(wanted) * jax.nn.log_softmax(logits)))

    expected = {"policy_loss": 0.0, "value_loss": 0.0, "reward_loss": 0.0}
    for b in range(B - 1):  # Nothing begins in the last column's first row.
        state = MODEL.start(params, embedding[b : b + 1])
        first = MODEL.predict(params, state)
        expected["policy_loss"] += of_policy(first.logits[0], policy[0, b])
        expected["value_loss"] += of_bins(first.value[0], z[0, b])
        for k in (1, 2):
            state = MODEL.step(params, state, jnp.asarray(data.action[k - 1, b : b + 1]))
            predicted = MODEL.predict(params, state)
            target = z[k, b]
            if b in (1, 2) and k == 2:  # The second action is an episode's last.
                target = 0.0 if b == 1 else value[2, 2]  # By the search where it was truncated.
            else:
                expected["policy_loss"] += of_policy(predicted.logits[0], policy[k, b]) / 2
            expected["reward_loss"] += of_bins(predicted.reward[0], data.reward[k - 1, b]) / 2
            expected["value_loss"] += of_bins(predicted.value[0], target) / 2
    for name, number in expected.items():
        np.testing.assert_allclose(metrics[name], number / 3, rtol=1e-4, err_msg=name)
    first = MODEL.predict(params, MODEL.start(params, embedding))
    errors = np.abs(np.asarray(values.decode_value(first.value, 3.0))[:3] - z[0, :3])
    np.testing.assert_allclose(error[:3], errors, rtol=1e-4)
    total = expected["policy_loss"] + 0.25 * expected["value_loss"] + expected["reward_loss"]
    np.testing.assert_allclose(found, total / 3, rtol=1e-4)


def test_importance_weights():
    """A position that is not learned from, however improbable, changes nothing."""
    acts = np.array([True, True, True, False])
    found = losses.importance_weights(jnp.array([1.0, 2.0, 4.0, 1e-3]), jnp.asarray(acts))
    np.testing.assert_allclose(found[:3], np.array([1.0, 0.5, 0.25]) / (1.75 / 3), rtol=1e-6)
    scaled = losses.importance_weights(jnp.array([3.0, 6.0, 12.0, 1.0]), jnp.asarray(acts))
    np.testing.assert_allclose(scaled[:3], found[:3], rtol=1e-6)


def test_illegal_actions_have_no_part(batch):
    """The model's logits of one are -inf, and the searches' probabilities 0."""
    data, policy, value = batch
    policy = np.where(np.arange(3) == 1, 0.0, policy).astype(np.float32)

    class Restricted(LatentModel):
        def predict(self, params, state):
            found = super().predict(params, state)
            is_illegal = jnp.arange(3)[None] == 1
            return found._replace(logits=jnp.where(is_illegal, -jnp.inf, found.logits))

    model = Restricted(NETWORK, TASK.dynamics, num_bins=21)
    embedding = jax.random.normal(jax.random.key(1), (B, 16))
    extras = jnp.asarray(policy), jnp.asarray(value)

    def of_params(params):
        found, (metrics, _) = losses.loss(model, params, embedding, data, *extras, CONFIG)
        return found, metrics

    slopes, metrics = jax.grad(of_params, has_aux=True)(MODEL.init(jax.random.key(0)))
    assert all(np.isfinite(x) for x in metrics.values())
    assert np.all(np.isfinite(slopes))
    assert np.any(slopes)

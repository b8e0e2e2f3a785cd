"""DiCE's losses against sums in plain NumPy, for sequences whose episodes end in both ways."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from agents.dice import losses
from agents.dice.config import DiceConfig

T, B, A = 6, 3, 4
CONFIG = DiceConfig(
    discount=0.9,
    lambda_=1.0,
    max_ratio=1.05,
    value_cost=1.0,
    action_value_cost=10.0,
    policy_cost=10.0,
    entropy_cost=0.3,
)


def softmax(x):
    exponential = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


@pytest.fixture(name="case")
def random_case() -> Any:
    random: Any = np.random.default_rng(0)
    last: Any = np.zeros((T, B), bool)
    last[2, 0], last[3, 1] = True, True
    mask: Any = np.ones((T, B), bool)
    discount: Any = np.ones((T, B))
    mask[3, 0], mask[4, 1] = False, False  # After an episode's end.
    discount[2, 0] = 0.0  # Terminated; the other one is truncated.
    trajectory = disco.Trajectory(
        observation=np.zeros((T + 1, B)),
        action=random.integers(A, size=(T, B)),
        reward=random.normal(size=(T, B)),
        discount=discount,
        last=last,
        mask=mask,
        behaviour_logits=random.normal(size=(T, B, A)),
    )
    logits = random.normal(size=(T + 1, B, A))
    value = random.normal(size=(T + 1, B))
    inverse = np.broadcast_to(np.array([0.0, 2.0, 7.5]), (T, B)).copy()
    return logits, value, inverse, trajectory


def expected_parts(logits, value, inverse, trajectory):
    """The losses of Xiao et al., equations 2 to 8, by loops."""
    inverse = np.concatenate([inverse, inverse[-1:]])
    policy = softmax(logits * inverse[..., None])
    behaviour = softmax(trajectory.behaviour_logits)
    advantage = logits - (policy * logits).sum(-1, keepdims=True)
    rows, columns = np.indices((T, B))
    a = trajectory.action
    ratio = policy[rows, columns, a] / behaviour[rows, columns, a]
    clipped, taken = np.minimum(ratio, 1.05), advantage[rows, columns, a]
    discounts = 0.9 * trajectory.discount
    goes_on = 1.0 - trajectory.last
    of_v, of_q, of_policy = (np.zeros((T, B)) for _ in range(3))
    target, q_target = value.copy(), np.zeros((T, B))
    for t in reversed(range(T)):
        r, d, v, after = trajectory.reward[t], discounts[t], value[t], value[t + 1]
        # What the traces add to the next state's value, in this episode.
        beyond = goes_on[t] * (target[t + 1] - after) if t < T - 1 else np.zeros(B)
        delta = clipped[t] * (r + d * after - v)
        target[t] = v + delta + d * clipped[t] * beyond
        of_policy[t] = clipped[t] * (r + d * (after + beyond) - v)
        corrected = np.zeros(B)
        if t < T - 1:
            q_next = value[t + 1] + taken[t + 1]
            corrected = goes_on[t] * clipped[t + 1] * (q_target[t + 1] - q_next)
        q_target[t] = r + d * (after + corrected)
        of_v[t], of_q[t] = target[t] - v, q_target[t] - v - taken[t]
    entropy = -(policy * np.log(policy)).sum(-1)[:-1]
    mask = trajectory.mask
    return {
        "policy_loss": -(of_policy * taken)[mask].mean(),
        "value_loss": 0.5 * np.square(of_v)[mask].mean(),
        "action_value_loss": 0.5 * np.square(of_q)[mask].mean(),
        "entropy": entropy[mask].mean(),
    }


def test_losses(case):
    with jax.enable_x64(True):
        logits, value, inverse, trajectory = jax.tree.map(jnp.asarray, case)
        total, metrics = losses.loss(logits, value, inverse, trajectory, CONFIG)
        expected = expected_parts(*case)
        for name, number in expected.items():
            np.testing.assert_allclose(metrics[name], number, rtol=1e-9, err_msg=name)
        whole = (
            10.0 * expected["policy_loss"]
            + expected["value_loss"]
            + 10.0 * expected["action_value_loss"]
            - 0.3 * expected["entropy"]
        )
        np.testing.assert_allclose(total, whole, rtol=1e-9)


def test_gradient_of_the_policys_loss_is_that_of_its_logarithm_times_the_temperature(case):
    logits, _value, inverse, trajectory = jax.tree.map(jnp.asarray, case)
    inverse = jnp.maximum(inverse, 0.5)  # Of the uniform policy the logarithm times τ is 0 times ∞.
    row = jnp.concatenate([inverse, inverse[-1:]])[..., None]

    def of_advantage(logits):
        taken = losses.advantages(logits, row[..., 0])
        return jnp.sum(jnp.take_along_axis(taken[:-1], trajectory.action[..., None], axis=-1))

    def of_logarithm(logits):
        log_policy = jax.nn.log_softmax(logits * row) / row
        return jnp.sum(jnp.take_along_axis(log_policy[:-1], trajectory.action[..., None], axis=-1))

    found, expected = jax.grad(of_advantage)(logits), jax.grad(of_logarithm)(logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_shaped_reward():
    found = losses.shaped_reward(jnp.asarray([0.0, 1.0, -1.0, 99.0]))
    np.testing.assert_allclose(found, [0.0, 2 * np.log(2), -np.log(2), 2 * np.log(100)], rtol=1e-6)


def test_illegal_actions_have_no_part(case):
    """Their logits are -inf, also for the uniform policy of an infinite temperature."""
    logits, value, inverse, trajectory = jax.tree.map(jnp.asarray, case)
    illegal = (trajectory.action[..., None] + 1) % A
    is_illegal = np.zeros((T + 1, B, A), bool)
    np.put_along_axis(is_illegal[:-1], np.asarray(illegal), True, axis=-1)
    found, slopes = jax.value_and_grad(
        lambda x: losses.loss(x, value, inverse, trajectory, CONFIG)[0]
    )(jnp.where(is_illegal, -jnp.inf, logits))
    assert np.isfinite(found)
    assert np.all(np.isfinite(slopes))
    assert not np.any(slopes[is_illegal])
    assert np.any(slopes)

"""Muesli's targets and losses against sums in plain NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from agents.muesli import losses
from agents.muesli.config import MuesliConfig
from disco import moments

T, B, A = 5, 2, 3
CONFIG = MuesliConfig(
    discount=0.9,
    lambda_=0.8,
    max_value=15.0,
    model_steps=2,
    advantage_clip=1.0,
    regularizer_cost=2.0,
    reward_cost=1.0,
    value_cost=0.25,
    model_policy_cost=1.0,
)


@pytest.fixture(name="case")
def random_case() -> Any:
    random: Any = np.random.default_rng(1)
    last: Any = np.zeros((T, B), bool)
    mask: Any = np.ones((T, B), bool)
    discount: Any = np.ones((T, B))
    last[1, 0], mask[2, 0], discount[1, 0] = True, False, 0.0
    last[2, 1], mask[3, 1] = True, False  # Truncated.
    trajectory = disco.Trajectory(
        observation=np.zeros((T + 1, B)),
        action=random.integers(A, size=(T, B)),
        reward=random.normal(size=(T, B)),
        discount=discount,
        last=last,
        mask=mask,
        behaviour_logits=random.normal(size=(T, B, A)),
    )
    prior_logits = random.normal(size=(T + 1, B, A))
    q = 2.0 * random.normal(size=(T + 1, B, A))
    return prior_logits, q, trajectory, random.normal(size=(T + 1, B, A))


def softmax(x):
    exponential = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def expected_targets(prior_logits, q, trajectory):
    """G by a loop, σ of one batch, and CMPO's policy."""
    prior, behaviour = softmax(prior_logits), softmax(trajectory.behaviour_logits)
    rows, columns = np.indices((T, B))
    a = trajectory.action
    ratio = np.minimum(1.0, prior[rows, columns, a] / behaviour[rows, columns, a])
    v, taken = (prior * q).sum(-1), q[rows, columns, a]
    g = np.zeros((T, B))
    for t in reversed(range(T)):
        trace = np.zeros(B)
        if t < T - 1:
            trace = (1.0 - trajectory.last[t]) * 0.8 * ratio[t + 1] * (g[t + 1] - taken[t + 1])
        g[t] = trajectory.reward[t] + 0.9 * trajectory.discount[t] * (v[t + 1] + trace)
    advantage = g - v[:-1]
    scale = np.sqrt(np.square(advantage)[trajectory.mask].mean())
    weights = prior * np.exp(np.clip((q - v[..., None]) / scale, -1.0, 1.0))
    value = v.copy()
    value[:-1] += np.where(trajectory.mask, ratio * (g - taken), 0.0)
    return {
        "policy": np.log(weights / weights.sum(-1, keepdims=True)),
        "advantage": advantage / scale,
        "value": value,
    }


def test_targets(case):
    prior_logits, q, trajectory, _ = case
    with jax.enable_x64(True):
        before = moments.init(jnp.dtype(float))
        prior, values, data = jax.tree.map(jnp.asarray, (prior_logits, q, trajectory))
        found = losses.targets(prior, values, data, before, CONFIG)
        for name, number in expected_targets(prior_logits, q, trajectory).items():
            np.testing.assert_allclose(getattr(found, name), number, rtol=1e-7, err_msg=name)


def test_policy_loss(case):
    prior_logits, q, trajectory, logits = case
    expected = expected_targets(prior_logits, q, trajectory)
    policy, behaviour = softmax(logits), softmax(trajectory.behaviour_logits)
    rows, columns = np.indices((T, B))
    chosen = policy[rows, columns, trajectory.action]
    ratio = np.minimum(1.0, chosen / behaviour[rows, columns, trajectory.action])
    wanted = np.exp(expected["policy"][:-1])
    kl = (wanted * (expected["policy"] - np.log(policy))[:-1]).sum(-1)
    whole = -ratio * expected["advantage"] * np.log(chosen) + 2.0 * kl
    with jax.enable_x64(True):
        prior, values, data = jax.tree.map(jnp.asarray, (prior_logits, q, trajectory))
        target = losses.targets(prior, values, data, moments.init(jnp.dtype(float)), CONFIG)
        found, regularizer = losses.policy_loss(jnp.asarray(logits), data, target, 2.0)
        np.testing.assert_allclose(found, whole, rtol=1e-7)
        np.testing.assert_allclose(regularizer, kl, rtol=1e-7)
        # The ratio is a weight: with no regulariser the gradient is that of the logarithm.
        gradient = jax.grad(lambda x: jnp.sum(losses.policy_loss(x, data, target, 0.0)[0]))(
            jnp.asarray(logits)
        )
        one_hot = np.eye(A)[trajectory.action]
        by_hand = -(ratio * expected["advantage"])[..., None] * (one_hot - policy[:-1])
        np.testing.assert_allclose(gradient[:-1], by_hand, rtol=1e-7)


def test_advantages_of_masked_rows_do_not_enter_the_scale(case):
    prior_logits, q, trajectory, _ = case
    before = moments.init(jnp.dtype("float32"))
    prior, values, data = jax.tree.map(jnp.asarray, (prior_logits, q, trajectory))
    found = losses.targets(prior, values, data, before, CONFIG)
    mask = np.asarray(trajectory.mask)
    changed = trajectory.replace(reward=np.where(mask, trajectory.reward, 1e6))
    other = losses.targets(prior, values, jax.tree.map(jnp.asarray, changed), before, CONFIG)
    np.testing.assert_allclose(found.moments.second, other.moments.second, rtol=1e-6)


def test_illegal_actions_have_no_part(case):
    """Their logits are -inf in the prior and in the policy."""
    prior_logits, q, trajectory, logits = case
    is_illegal = np.zeros((T + 1, B, A), bool)
    np.put_along_axis(is_illegal[:-1], (trajectory.action[..., None] + 1) % A, True, axis=-1)
    with jax.enable_x64(True):
        prior, policy = (jnp.where(is_illegal, -jnp.inf, x) for x in (prior_logits, logits))
        q, data = jax.tree.map(jnp.asarray, (q, trajectory))
        target = losses.targets(prior, q, data, moments.init(jnp.dtype(float)), CONFIG)

        def of_policy(logits):
            return jnp.sum(losses.policy_loss(logits, data, target, 2.0)[0])

        value, slopes = jax.value_and_grad(of_policy)(policy)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slopes))
    assert not np.any(slopes[is_illegal])
    assert np.any(slopes)

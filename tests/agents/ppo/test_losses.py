"""PPO's and DPO's losses against numbers computed by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ppo.config import PPOConfig
from agents.ppo.losses import (
    Samples,
    clip_drift,
    dpo_drift,
    generalized_advantages,
    loss,
)

CONFIG = PPOConfig(
    drift="clip",
    clip=0.2,
    value_clip=0.0,
    value_cost=0.5,
    entropy_cost=0.01,
    normalize_advantage=False,
)


def test_advantages_bootstrap_from_truncated_episodes_and_not_from_terminated_ones():
    """Two environments: one terminates at its second transition, one is truncated there."""
    value = jnp.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    reward = jnp.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    discount = jnp.array([[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]])
    last = jnp.array([[False, False], [True, True], [False, False]])
    advantage, target = generalized_advantages(value, reward, discount, last, 0.5)
    # The second transition: 1 - 2 if it terminates, else 1 + 0.5 * 4 - 2; nothing of the third.
    np.testing.assert_allclose(advantage[1], [-1.0, 1.0])
    # The first: 1 + 0.5 * 2 - 1 + 0.25 times the second.
    np.testing.assert_allclose(advantage[0], [0.75, 1.25])
    np.testing.assert_allclose(advantage[2], [0.0, 0.0])
    np.testing.assert_allclose(target, advantage + value[:-1])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, 0.3), (0.5, 1.0, 0.0), (1.5, -1.0, 0.0), (0.5, -1.0, 0.3), (1.1, 1.0, 0.0)],
)
def test_clipping_is_a_drift(ratio, advantage, expected):
    drift = clip_drift(jnp.log(ratio), jnp.float32(advantage), 0.2)
    assert drift == pytest.approx(expected, abs=1e-6)
    clipped = np.clip(ratio, 0.8, 1.2)
    assert ratio * advantage - drift == pytest.approx(
        min(ratio * advantage, clipped * advantage), abs=1e-6
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (3.0, 1.0, 2.0 - 2.0 * np.tanh(1.0)),
        (0.5, 1.0, 0.0),
        (2.0, -1.0, 0.0),
        (0.5, -2.0, 2.0 * np.log(2.0) - 0.6 * np.tanh(2.0 * np.log(2.0) / 0.6)),
    ],
)
def test_the_discovered_drift(ratio, advantage, expected):
    """With alpha = 2 and beta = 0.6 (Lu et al. 2022)."""
    drift = dpo_drift(jnp.log(ratio), jnp.float32(advantage), 0.2)
    assert drift == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("drift", [clip_drift, dpo_drift])
@pytest.mark.parametrize("advantage", [-3.0, 0.0, 2.0])
def test_drifts_are_not_negative_and_flat_where_the_policies_are_equal(drift, advantage):
    log_ratios = jnp.arange(-200.0, 201.0) * 0.4
    advantages = jnp.full(log_ratios.shape, advantage)
    drifts, slopes = jax.vmap(jax.value_and_grad(lambda x, a: drift(x, a, 0.2)))(
        log_ratios, advantages
    )
    assert np.all(np.asarray(drifts) >= 0.0)
    assert not np.any(np.isnan(slopes))
    assert drifts[200] == slopes[200] == log_ratios[200] == 0.0


def test_a_ratio_that_overflows_does_not_reach_the_gradient_of_the_other_branch():
    slope = jax.grad(lambda x: dpo_drift(x, jnp.float32(-1.0), 0.2))(jnp.float32(-100.0))
    assert np.isfinite(slope)
    assert jax.grad(lambda x: dpo_drift(x, jnp.float32(-1.0), 0.2))(jnp.float32(100.0)) == 0.0


def samples() -> Samples:
    """Three transitions; the last is masked, and its numbers are of no use."""
    return Samples(
        action=jnp.array([0, 1, 0]),
        log_prob=jnp.log(jnp.array([0.5, 0.25, 0.5])),
        value=jnp.array([0.0, 1.0, 5.0]),
        advantage=jnp.array([1.0, -2.0, 1e30]),
        value_target=jnp.array([1.0, 3.0, 1e30]),
        mask=jnp.array([True, True, False]),
    )


LOGITS = jnp.log(jnp.array([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]))
VALUE = jnp.array([0.5, 2.0, 7.0])


def test_the_loss_of_unmasked_transitions():
    total, metrics = loss(LOGITS, VALUE, samples(), CONFIG)
    # Ratios 1 and 2: min(1, 1) and min(-4, -2.4).
    assert metrics["policy_loss"] == pytest.approx(-(1.0 - 4.0) / 2)
    assert metrics["value_loss"] == pytest.approx(0.5 * (0.25 + 1.0) / 2)
    assert metrics["entropy"] == pytest.approx(np.log(2.0))
    assert metrics["clipped_fraction"] == 0.5
    assert metrics["kl_from_behaviour"] == pytest.approx((2.0 - 1.0 - np.log(2.0)) / 2)
    assert total == pytest.approx(1.5 + 0.5 * 0.3125 - 0.01 * np.log(2.0))


def test_masked_transitions_have_no_gradient_whatever_they_hold():
    slopes = jax.grad(lambda x: loss(x, VALUE, samples(), CONFIG)[0])(LOGITS)
    assert np.all(np.isfinite(slopes))
    assert not np.any(slopes[2])
    assert np.all(slopes[:2])


def test_advantages_are_normalised_over_unmasked_transitions():
    _, metrics = loss(
        LOGITS, VALUE, samples(), dataclasses.replace(CONFIG, normalize_advantage=True)
    )
    # 1 and -2 become 1 and -1: ratios 1 and 2 give 1 and -2.
    assert metrics["policy_loss"] == pytest.approx(0.5, rel=1e-5)


def test_changes_of_the_value_are_bounded():
    _, metrics = loss(LOGITS, VALUE, samples(), dataclasses.replace(CONFIG, value_clip=0.25))
    # 0 + 0.25 and 1 + 0.25 have the larger errors: 0.75 and 1.75.
    assert metrics["value_loss"] == pytest.approx(0.5 * (0.75**2 + 1.75**2) / 2)


@pytest.mark.parametrize("drift", ["clip", "dpo"])
def test_illegal_actions_have_no_part(drift):
    """Their logits are -inf."""
    logits = jnp.pad(LOGITS, ((0, 0), (0, 1)), constant_values=-jnp.inf)
    config = dataclasses.replace(CONFIG, drift=drift)
    found, slopes = jax.value_and_grad(lambda x: loss(x, VALUE, samples(), config)[0])(logits)
    expected, others = jax.value_and_grad(lambda x: loss(x, VALUE, samples(), config)[0])(LOGITS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(slopes[:, :2], others, rtol=1e-5)
    assert not np.any(slopes[:, 2])

"""Values and returns against RLax, which states the same equations on their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import disco
from disco import values
from tests.disco.common import random_trajectory

DISCOUNT, LAMBDA = 0.97, 0.9
TRAJECTORY = random_trajectory(3, num_transitions=9, batch_size=4)
KEYS = jax.random.split(jax.random.key(0), 4)
LOGITS, Q, TARGET_Q = (jax.random.normal(key, (10, 4, 3)) for key in KEYS[:3])
VALUE = jax.random.normal(KEYS[3], (10, 4))
REWARD = TRAJECTORY.reward.astype(jnp.float32)
DISCOUNTS = DISCOUNT * TRAJECTORY.discount.astype(jnp.float32)
RATIO = values.importance_ratio(LOGITS, TRAJECTORY)
GOES_ON = 1.0 - TRAJECTORY.last.astype(jnp.float32)

of_streams = functools.partial(jax.vmap, in_axes=1, out_axes=1)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def test_trajectories_have_what_returns_depend_on():
    assert bool(TRAJECTORY.last[:-1].any())
    assert bool((TRAJECTORY.discount == 0).any())
    assert bool((RATIO > 1.0).any())
    assert bool((RATIO < 1.0).any())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_transforms(scale):
    x = scale * jax.random.normal(jax.random.key(1), (99,))
    close(values.signed_hyperbolic(x), rlax.signed_hyperbolic(x))
    close(values.signed_log(x), rlax.signed_logp1(x))
    close(values.signed_parabolic(values.signed_hyperbolic(x)), x, rtol=1e-4)


def test_retrace():
    found = values.retrace(LOGITS, Q, TARGET_Q, TRAJECTORY, discount=DISCOUNT, lambda_=LAMBDA)
    trace = LAMBDA * jnp.minimum(1.0, RATIO)
    trace = trace.at[1:].multiply(GOES_ON[:-1])
    expected = of_streams(rlax.general_off_policy_returns_from_q_and_v)(
        values.select_action(TARGET_Q, TRAJECTORY.action)[1:],
        jnp.sum(jax.nn.softmax(LOGITS) * TARGET_Q, axis=-1)[1:],
        REWARD,
        DISCOUNTS,
        trace[1:],
    )
    close(found.q_target, expected)


@pytest.mark.parametrize("max_ratio", [1.0, 2.0])
def test_vtrace(max_ratio):
    found = values.vtrace(
        LOGITS, VALUE, VALUE, TRAJECTORY, discount=DISCOUNT, lambda_=LAMBDA, max_ratio=max_ratio
    )
    wider = jnp.clip(RATIO, 1.0, max_ratio)  # RLax bounds the ratios of traces by 1.
    with jax.numpy_dtype_promotion("standard"):
        expected = of_streams(functools.partial(rlax.vtrace, clip_rho_threshold=max_ratio))(
            VALUE[:-1], VALUE[1:], REWARD, DISCOUNTS, RATIO, LAMBDA * GOES_ON * wider
        )
    close(found.td, expected)


def test_returns_of_reinforce():
    rule = disco.PolicyGradient(discount=DISCOUNT)
    found = rule._estimates(LOGITS, VALUE, TRAJECTORY)
    expected = of_streams(rlax.discounted_returns)(
        REWARD, DISCOUNTS * GOES_ON, jnp.zeros_like(VALUE[1:])
    )
    close(found.value_target, expected)

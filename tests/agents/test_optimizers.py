"""The agents' Adam: what it computes, and what a meta-gradient sees of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.optimizers import agent_optimizer

PARAMS = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}


def gradients(step: int):
    rng = np.random.default_rng(step)
    scale = 10.0 ** rng.integers(-6, 3)
    return jax.tree.map(lambda x: scale * jnp.asarray(rng.normal(size=x.shape), x.dtype), PARAMS)


def test_equals_adam():
    """And then a clip, which the first update meets: that of Adam alone is one."""
    ours = agent_optimizer(0.1, max_abs_update=0.5)
    theirs = optax.chain(optax.scale_by_adam(), optax.clip(0.5), optax.scale(-0.1))
    our_state, their_state = ours.init(PARAMS), theirs.init(PARAMS)
    largest = []
    for step in range(30):
        our_update, our_state = ours.update(gradients(step), our_state, PARAMS)
        their_update, their_state = theirs.update(gradients(step), their_state, PARAMS)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), our_update, their_update
        )
        largest.append(float(jnp.max(jnp.abs(our_update["w"]))))
    assert max(largest) == largest[0] == np.float32(0.05)
    assert min(largest) < 0.04


def test_second_moment_carries_no_gradient():
    """So the first update's derivative is that of g / constant, where Adam's would be 0."""
    optimizer = agent_optimizer(0.1)
    state = optimizer.init(jnp.zeros(()))

    def first_update(gradient):
        return optimizer.update(gradient, state)[0]

    gradient = jnp.float32(-0.25)
    np.testing.assert_allclose(jax.grad(first_update)(gradient), -0.1 / 0.25, rtol=1e-4)

    def second_update(gradient):
        _, after = optimizer.update(gradient, state)
        return optimizer.update(jnp.float32(0.5), after)[0]

    # First moment: 0.9 * 0.1 g, debiased by 1 - 0.9^2. Second moment: constant.
    scale = np.sqrt((0.999 * 0.001 * 0.25**2 + 0.001 * 0.5**2) / (1 - 0.999**2))
    expected = -0.1 * 0.09 / 0.19 / scale
    np.testing.assert_allclose(jax.grad(second_update)(gradient), expected, rtol=1e-4)


def test_clip_stops_the_gradient_where_it_binds():
    optimizer = agent_optimizer(0.1, max_abs_update=0.3)
    state = optimizer.init(jnp.zeros(()))
    for _ in range(20):
        _, state = optimizer.update(jnp.float32(1e-3), state)

    def update(gradient):
        return optimizer.update(gradient, state)[0]

    np.testing.assert_allclose(update(jnp.float32(1.0)), -0.03, rtol=1e-6)
    assert float(jax.grad(update)(jnp.float32(1.0))) == 0.0
    assert abs(float(update(jnp.float32(-5e-3)))) < 0.03
    assert float(jax.grad(update)(jnp.float32(-5e-3))) < 0.0

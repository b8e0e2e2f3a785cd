"""The agents' Adam: what it computes, its schedule, and what a meta-gradient sees of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.optimizers import agent_optimizer, cosine_schedule
from agents.rule_agent import RuleAgentConfig

PARAMS = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}


def gradients(step: int):
    rng = np.random.default_rng(step)
    scale = 10.0 ** rng.integers(-6, 3)
    return jax.tree.map(lambda x: scale * jnp.asarray(rng.normal(size=x.shape), x.dtype), PARAMS)


def test_equals_adam():
    """And then a clip, which the first update meets: that of Adam alone is one."""
    ours: Any = agent_optimizer(0.1, max_abs_update=0.5)
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


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            agent_optimizer(0.1, max_abs_update=1e9, kind="rmsprop"),
            optax.scale_by_rms(0.99, eps_in_sqrt=False, bias_correction=True),
        ),
        (
            agent_optimizer(0.1, max_abs_update=1e9, max_gradient_norm=0.02),
            optax.chain(optax.clip_by_global_norm(0.02), optax.scale_by_adam()),
        ),
    ],
    ids=["rmsprop", "clipped"],
)
def test_equals_optax(ours, theirs):
    our_state, their_state = ours.init(PARAMS), theirs.init(PARAMS)
    for step in range(10):
        our_update, our_state = ours.update(gradients(step), our_state, PARAMS)
        their_update, their_state = theirs.update(gradients(step), their_state, PARAMS)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, -0.1 * b, rtol=1e-5),
            our_update,
            their_update,
        )


def test_a_bounded_gradient_of_zero_has_a_derivative():
    optimizer = agent_optimizer(0.1, max_gradient_norm=0.5)
    state = optimizer.init(jnp.zeros(2))
    slope = jax.jacobian(lambda g: optimizer.update(g, state, jnp.zeros(2))[0])(jnp.zeros(2))
    assert bool(jnp.all(jnp.isfinite(slope)))


def test_an_agent_says_which_optimizer_it_has():
    rmsprop = RuleAgentConfig(optimizer_kind="rmsprop", max_gradient_norm=0.5).optimizer()
    clipped = RuleAgentConfig(max_gradient_norm=0.5).optimizer()
    update = {}
    for name, optimizer in {"rmsprop": rmsprop, "adam": clipped}.items():
        state = optimizer.init(PARAMS)
        for step in range(2):
            update[name], state = optimizer.update(gradients(step), state, PARAMS)
    assert float(jnp.max(jnp.abs(update["rmsprop"]["w"] - update["adam"]["w"]))) > 1e-5
    with pytest.raises(ValueError, match="optimizer_kind is 'sgd'; expected one of 'adam', 'rms"):
        RuleAgentConfig(optimizer_kind="sgd")
    with pytest.raises(ValueError, match="max_gradient_norm is -1"):
        RuleAgentConfig(max_gradient_norm=-1.0)


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
    optimizer: Any = agent_optimizer(0.1, max_abs_update=0.3)
    state = optimizer.init(jnp.zeros(()))
    for _ in range(20):
        _, state = optimizer.update(jnp.float32(1e-3), state)

    def update(gradient):
        return optimizer.update(gradient, state)[0]

    np.testing.assert_allclose(update(jnp.float32(1.0)), -0.03, rtol=1e-6)
    assert float(jax.grad(update)(jnp.float32(1.0))) == 0.0
    assert abs(float(update(jnp.float32(-5e-3)))) < 0.03
    assert float(jax.grad(update)(jnp.float32(-5e-3))) < 0.0


def test_weight_decay_shrinks_parameters():
    """By a fraction per update that the clip does not bound, and of which Adam knows nothing."""
    optimizer: Any = agent_optimizer(0.1, max_abs_update=0.5, weight_decay=0.02)
    params: Any = jnp.asarray([1000.0, -3.0, 0.0])
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = optimizer.update(jnp.zeros(3), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params, (1 - 0.1 * 0.02) ** 3 * np.asarray([1000.0, -3.0, 0.0]))

    # Adam's first update is 1, here clipped.
    updates, _ = optimizer.update(jnp.ones(3), optimizer.init(params), params)
    np.testing.assert_allclose(updates, -0.1 * (0.5 + 0.02 * params), rtol=1e-5)


def test_cosine_schedule():
    fraction: Any = jax.vmap(cosine_schedule(num_updates=12, end=0.2, num_warmup=4))(jnp.arange(14))
    warmup = [0.0, 0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(fraction[:5], warmup, rtol=1e-6)
    np.testing.assert_allclose(fraction[jnp.asarray([8, 12, 13])], [0.6, 0.2, 0.2], rtol=1e-6)
    assert np.all(np.diff(fraction[4:13]) < 0)


CONFIG = RuleAgentConfig(learning_rate=0.01, num_environments=2, unroll_length=5)


def cosine(at, end):
    return end + (1 - end) * (1 + np.cos(np.pi * np.clip(at, 0, 1))) / 2


UPDATE = np.arange(30)
RISING = np.minimum(UPDATE / 4, 1)
SCHEDULES = {
    "constant": ({}, np.ones(30)),
    "constant over a lifetime": ({"lifetime": 200}, np.ones(30)),
    "warm-up": ({"warmup": 40}, RISING),
    "cosine": ({"lifetime": 200, "end_learning_rate": 0.1}, cosine(UPDATE / 20, 0.1)),
    # Parts of an update count as one.
    "to nothing": ({"lifetime": 191, "end_learning_rate": 0.0}, cosine(UPDATE / 20, 0.0)),
    "both": (
        {"lifetime": 200, "warmup": 40, "end_learning_rate": 0.5},
        RISING * cosine((UPDATE - 4) / 16, 0.5),
    ),
    "life is over before the warm-up": (
        {"lifetime": 20, "warmup": 40, "end_learning_rate": 0.5},
        RISING * np.where(UPDATE > 4, 0.5, 1),
    ),
}


@pytest.mark.parametrize(("settings", "expected"), SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("learning_rate", [None, 0.3])
def test_learning_rate_over_a_life(settings, expected, learning_rate):
    """10 steps per update; a constant gradient's update is the learning rate.

    Rate and number of updates are those of the configuration, or arguments.
    """
    number = None
    if learning_rate and "lifetime" in settings:
        number = jnp.float32(CONFIG.updates_in(settings["lifetime"]))
        settings = settings | {"lifetime": 0}
    config: Any = RuleAgentConfig(**{**vars(CONFIG), **settings})
    optimizer = config.optimizer(learning_rate, number)

    def update(state, _):
        updates, state = optimizer.update(jnp.float32(3.0), state, jnp.float32(0.0))
        return state, -updates

    _, sizes = jax.lax.scan(update, optimizer.init(jnp.float32(0.0)), length=30)
    np.testing.assert_allclose(sizes, (learning_rate or 0.01) * expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"end_learning_rate": -0.1}, "agent.end_learning_rate is -0.1; expected 0 to 1"),
        ({"end_learning_rate": 3e4}, "agent.end_learning_rate is 30000.0; expected 0 to 1"),
        ({"warmup": -1}, "agent.warmup is -1; expected at least 0"),
        ({"lifetime": -1}, "agent.lifetime is -1; expected at least 0"),
        ({"weight_decay": -0.1}, "agent.weight_decay is -0.1; expected at least 0"),
    ],
)
def test_schedule_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        RuleAgentConfig(**wrong)


def test_learning_rate_falls_over_a_known_lifetime():
    config = RuleAgentConfig(end_learning_rate=0.1)
    with pytest.raises(ValueError, match=r"end_learning_rate is 0.1 and agent.lifetime 0; expec"):
        config.optimizer()

"""Tasks in other encodings: the same tasks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments.encodings import NUM_NOISE, Encoded

TASK = environments.make("catch/4x3")
DYNAMICS: Any = TASK.dynamics
NUM_VALUES = 12


def episodes(dynamics, params, actions, steps=40):
    """Observations, rewards and step types of a stream of episodes."""
    state, timestep = dynamics.reset(params, jax.random.key(0))

    def step(carry, number):
        state, timestep = carry
        key = jax.random.fold_in(jax.random.key(1), number)
        new = environments.stream(dynamics, params, state, timestep, actions[number % 3], key)
        return new, new[1]

    _, seen = jax.lax.scan(step, (state, timestep), jnp.arange(steps))
    return jax.device_get(seen)


def encoded(kind, size, seed=0, noise=0.0):
    dynamics = Encoded(DYNAMICS, kind, size)
    rng = np.random.default_rng(seed)
    return dynamics, dynamics.draw(rng, TASK.params, 10.0, noise)


def test_given_is_the_task_itself():
    """But for the scale of rewards and the order of actions. Random numbers are others: no step
    of this task draws any but the first."""
    dynamics, params = encoded("given", 0)
    actions = np.asarray(params.actions)
    assert sorted(actions) == [0, 1, 2]
    found = episodes(dynamics, params, jnp.argsort(params.actions))
    assert found.observation.shape == (40, *DYNAMICS.observation_spec().shape)
    plain = episodes(DYNAMICS, TASK.params, jnp.arange(3))
    np.testing.assert_array_equal(found.step_type, plain.step_type)
    assert {*np.unique(found.reward)} <= {-10.0, 0.0, 10.0}


@pytest.mark.parametrize(("size", "noise"), [(12, 0.0), (64, 0.0), (64, 0.5)])
def test_selected_has_every_value(size, noise):
    dynamics, params = encoded("selected", size, noise=noise)
    found = episodes(dynamics, params, jnp.arange(3)).observation
    assert found.shape == (40, size)
    index = np.asarray(params.encoding)
    assert {*range(NUM_VALUES)} <= {*index}
    is_noise = index >= 2 * NUM_VALUES
    assert is_noise.mean() == noise
    values, complements = index < NUM_VALUES, (index >= NUM_VALUES) & ~is_noise
    assert {*np.unique(found[:, values | complements])} <= {0.0, 1.0}
    if size > 12:
        # A value and its complement are never equal.
        first = {index[i]: found[:, i] for i in np.flatnonzero(values)}
        for i in np.flatnonzero(complements):
            np.testing.assert_array_equal(found[:, i], 1.0 - first[index[i] - NUM_VALUES])
    if noise:
        own = found[:, is_noise]
        assert abs(own.mean()) < 0.2
        assert 0.8 < own.std() < 1.2
        assert index.max() < 2 * NUM_VALUES + NUM_NOISE


def test_projected_is_linear():
    dynamics, params = encoded("projected", 20)
    given = Encoded(DYNAMICS)
    found = episodes(dynamics, params, jnp.arange(3)).observation
    plain = dataclasses.replace(params, encoding=jnp.zeros(0))
    values = episodes(given, plain, jnp.arange(3)).observation.reshape(40, -1)
    np.testing.assert_allclose(found, values @ np.asarray(params.encoding), rtol=1e-5, atol=1e-6)


def test_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        Encoded(DYNAMICS, "rotated")
    with pytest.raises(ValueError, match="size must be above 0, or 0 with 'given', found 3"):
        Encoded(DYNAMICS, "given", 3)
    with pytest.raises(ValueError, match="size must be at least 12, found 5"):
        encoded("selected", 5)

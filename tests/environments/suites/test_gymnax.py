import sys

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import MissingPackageError
from environments.base import promoting
from tests.environments.streams import dynamics_of


def test_cart_pole_is_gymnaxs_own():
    environment = environments.make("gymnax/CartPole-v1")
    dynamics, task = dynamics_of(environment), environment.params
    theirs, params = gymnax.make("CartPole-v1")
    key = jax.random.key(3)
    state, timestep = dynamics.reset(task, key)
    observation, their_state = theirs.reset_env(key, params)
    step, their_step = jax.jit(dynamics.step), jax.jit(theirs.step_env)
    i = 0
    for i in range(200):
        np.testing.assert_allclose(timestep.observation, observation, rtol=1e-6)
        if timestep.last():
            break
        action, key = jnp.int32(i % 3 == 0), jax.random.fold_in(key, i)
        state, timestep = step(task, state, action, key)
        with promoting():
            observation, their_state, reward, terminated, _ = their_step(
                key, their_state, action, params
            )
        assert timestep.reward == reward
        assert timestep.discount == 1.0 - float(terminated)
    assert timestep.last()
    assert 5 < i < 199


def test_gymnaxs_time_limit_cuts():
    environment = environments.make("gymnax/MountainCar-v0")
    dynamics, task = dynamics_of(environment), environment.params

    def step(state, key):
        return dynamics.step(task, state, jnp.int32(1), key)

    state, _ = dynamics.reset(task, jax.random.key(0))
    _, timesteps = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 200))
    assert timesteps.last().tolist() == [False] * 199 + [True]
    assert (timesteps.discount == 1.0).all()


@pytest.mark.parametrize(
    ("name", "shape", "actions"),
    [
        ("Breakout-MinAtar", (10, 10, 4), 3),
        ("Catch-bsuite", (10, 5), 3),
        ("FrozenLake-misc", (16,), 4),
    ],
)
def test_specs(name, shape, actions):
    environment = environments.make(f"gymnax/{name}")
    assert dynamics_of(environment).observation_spec().shape == shape
    assert dynamics_of(environment).action_spec().num_values == actions


def test_parameters_are_data():
    environment = environments.make("gymnax/CartPole-v1")
    state, _ = dynamics_of(environment).reset(environment.params, jax.random.key(0))
    task = environment.params.replace(max_steps_in_episode=jnp.int32(1))
    _, timestep = dynamics_of(environment).step(task, state, jnp.int32(0), jax.random.key(0))
    assert timestep.last()
    assert timestep.discount == 1.0


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match=r"Pendulum-v1' has a Box action space.*discrete"):
        environments.make("gymnax/Pendulum-v1")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"'gymnax/CartPole-v0'.*gymnax/CartPole-v1"):
        environments.make("gymnax/CartPole-v0")


def test_without_gymnax_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(MissingPackageError, match=r"'disco-update-rules\[gymnax\]'"):
        environments.make("gymnax/CartPole-v1")

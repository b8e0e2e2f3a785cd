import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import environments
from environments import exact_returns
from environments.noise import NoisyRewards, NoisyTask
from tests.environments.streams import dynamics_of


def test_only_rewards_of_steps_have_noise():
    catch = environments.make("catch/5x5")
    dynamics = NoisyRewards(dynamics_of(catch))

    def steps(noise):
        task = NoisyTask(task=catch.params, noise=jnp.float32(noise))
        state, first = dynamics.reset(task, jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), 2_000)
        step = jax.vmap(lambda key: dynamics.step(task, state, jnp.int32(0), key)[1])
        return first, step(keys)

    (first, found), (quiet_first, silent) = steps(0.5), steps(0.0)
    jax.tree.map(np.testing.assert_array_equal, first, quiet_first)
    for name in ("observation", "discount", "step_type"):
        np.testing.assert_array_equal(getattr(found, name), getattr(silent, name))
    noise = np.asarray(found.reward - silent.reward)
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 0.5) < 0.05


def test_expected_returns_do_not_change():
    task = environments.make("grid_generated/010_dense_fixed")
    assert task.params.noise > 0.0
    quiet = dataclasses.replace(task, params=task.params.replace(noise=jnp.float32(0.0)))
    noisy, silent = (
        exact_returns.expected_returns(exact_returns.finite_mdp(x)) for x in (task, quiet)
    )
    assert noisy == silent
    assert noisy.optimal > noisy.random

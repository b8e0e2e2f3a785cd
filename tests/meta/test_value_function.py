"""The meta-value function."""

import jax
import jax.numpy as jnp
import numpy as np

import disco
import environments
from meta.value_function import ValueFunction, ValueFunctionConfig


def test_value_function_learns_the_return():
    """Of a reward of 1 per step in episodes that end after the second: values 2 and 1."""
    config = ValueFunctionConfig(hidden=(), learning_rate=3e-2, discount=1.0)
    environment = environments.make("catch/2x2").dynamics
    value_function = ValueFunction.create(config, environment.observation_spec())
    rows = jnp.asarray([0, 1, 2, 0, 1])  # Row 2 is the last of an episode.
    length = len(rows) - 1
    trajectory = disco.Trajectory(
        observation=jnp.repeat(jnp.eye(4)[rows].reshape(-1, 1, 2, 2), 2, axis=1),
        action=jnp.zeros((length, 2), jnp.int32),
        reward=jnp.tile(jnp.asarray([1.0, 1.0, 0.0, 1.0])[:, None], (1, 2)),
        discount=jnp.tile(jnp.asarray([1.0, 0.0, 1.0, 1.0])[:, None], (1, 2)),
        last=jnp.tile(jnp.asarray([False, True, False, False])[:, None], (1, 2)),
        behaviour_logits=jnp.zeros((length, 2, 3)),
        mask=jnp.tile(jnp.asarray([True, True, False, True])[:, None], (1, 2)),
    )
    logits = jnp.zeros((length + 1, 2, 3))

    @jax.jit
    def learn(state):
        state = jax.lax.fori_loop(
            0, 400, lambda _, state: value_function.update(state, logits, trajectory), state
        )
        return value_function.evaluate(state, logits, trajectory)[0]

    estimates = learn(value_function.init(jax.random.key(0)))
    np.testing.assert_allclose(estimates.value_target[:2, 0], [2.0, 1.0], atol=0.1)
    assert float(jnp.max(jnp.abs(estimates.advantage[:2]))) < 0.1

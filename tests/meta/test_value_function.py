"""The meta-value function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.rule_agent import RuleAgent, to_trajectory
from meta import inner_loop
from meta.config import ValueFunctionConfig
from meta.objective import ValueFunction
from tests.environments.streams import dynamics_of
from tests.meta.common import AGENT, small_rule
from training import iteration


@pytest.mark.parametrize("learns", [True, False])
def test_value_function_learns_from_the_agents_batches_or_not(learns):
    environment = environments.make("catch/4x3")
    dynamics, task = dynamics_of(environment), environment.params
    agent = RuleAgent.create(AGENT, dynamics, small_rule())
    config = ValueFunctionConfig(hidden=(4,), learns_from_batches=learns)
    value_function = ValueFunction.create(config, dynamics.observation_spec())

    def update(value_state):
        state = iteration.init(agent, dynamics, task, jax.random.key(0))
        _, batch, _ = iteration.collect_and_draw(agent, dynamics, task, state, jax.random.key(1))
        batch = to_trajectory(batch)
        return inner_loop.update(agent, value_function, state, value_state, batch)[1]

    program = jax.make_jaxpr(update)(jax.eval_shape(value_function.init, jax.random.key(0))).jaxpr
    assert (program.outvars == program.invars) != learns


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

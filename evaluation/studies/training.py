"""Training of the agent that a study analyses, in a JAX environment."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

import disco
import environments
from agents.agent import Agent, LearnerState


def learn(
    rule: disco.Rule,
    agent: Agent,
    task: environments.Environment,
    num_updates: int,
    seed: int,
    report: Callable[[int], None] = lambda updates: None,
    interval: int = 50,
) -> LearnerState:
    """Train an agent; return the state of its learner.

    Args:
      rule: to learn by.
      agent: to train.
      task: in JAX.
      num_updates: number of updates.
      seed: of all randomness.
      report: called with the number of updates made, every `interval` updates.
      interval: see `report`.
    """

    @partial(jax.jit, donate_argnums=1)
    def some(rule, state, first, number):
        def update(i, state):
            update_key = jax.random.fold_in(key, first + i)
            return agent.update(rule, state, task.task, update_key)[0]

        return jax.lax.fori_loop(0, number, update, state)

    init_key, key = jax.random.split(jax.random.key(seed))
    state = jax.jit(agent.init)(rule, task.task, init_key)
    for first in range(0, num_updates, interval):
        number = min(interval, num_updates - first)
        state = jax.block_until_ready(some(rule, state, jnp.int32(first), jnp.int32(number)))
        report(first + number)
    return state.learner

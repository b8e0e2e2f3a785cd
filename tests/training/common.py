"""An agent of a bare network, for tests of what is collected."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agents.networks import Network
from agents.protocol import Batch, Experience
from agents.rule_agent import to_trajectory


@dataclasses.dataclass(frozen=True)
class NetworkAgent:
    """Acts by a network's policy, and does not learn. Its state is the parameters."""

    network: Network
    num_environments: int = 3
    unroll_length: int = 7

    @property
    def experience(self) -> Experience:
        return Experience(self.num_environments, self.unroll_length, history=self.network.history)

    def init(self, key):
        return self.network.init(key)

    def acting_state(self, state):
        return state

    def initial_memory(self, batch_size):
        return self.network.initial_memory(batch_size)

    def act(self, acting_state, memory, timestep, key, mode):
        logits, memory = self.network.policy(acting_state, timestep.observation, memory)
        return memory, jax.random.categorical(key, logits), {"behaviour_logits": logits}

    def update(self, state, batch, key, name):
        raise NotImplementedError


def logits_of(network: Network, params: Any, batch: Batch) -> jax.Array:
    """The policy's logits along a batch, `[T+1, B, A]`."""
    return jax.jit(lambda params, batch: network.unroll(params, to_trajectory(batch)))(
        params, batch
    )["logits"]


def random_batch(num_transitions: int, batch_size: int, num_actions: int = 3) -> Batch:
    """A batch of random numbers."""
    keys = iter(jax.random.split(jax.random.key(0), 8))
    shape = (num_transitions, batch_size)
    last = jax.random.bernoulli(next(keys), 0.2, shape)
    logits = jax.random.normal(next(keys), (*shape, num_actions))
    return Batch(
        observation=jax.random.normal(next(keys), (num_transitions + 1, batch_size, 4)),
        action=jax.random.randint(next(keys), shape, 0, num_actions),
        reward=jax.random.normal(next(keys), shape),
        discount=jnp.where(last, 0.0, 1.0),
        last=last,
        mask=jnp.concatenate([jnp.ones((1, batch_size), bool), ~last[:-1]]),
        extras={"behaviour_logits": logits},
    )

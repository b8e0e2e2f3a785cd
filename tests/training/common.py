"""An agent of a bare network, and batches, for tests of what is collected."""

from typing import Any

import jax
import jax.numpy as jnp

from agents.networks import Network
from agents.policy_agent import PolicyAgent
from agents.protocol import Batch
from agents.rule_agent import to_trajectory


def network_agent(network: Network) -> PolicyAgent:
    """Acts by a network's policy; its acting state is the parameters."""
    return PolicyAgent(network.policy, network.initial_memory, network.history)


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

"""Contextual bandits: in each step another context, and an action that is best there."""

import dataclasses

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import restart, transition

NUM_CONTEXTS, NUM_FEATURES = 8, 12


@chex.dataclass(frozen=True)
class ContextsTask:
    """A contextual bandit.

    Attributes:
      probability: that an action is rewarded in a context.
      features: what is observed of a context.
      horizon: steps after which the episode terminates.
    """

    probability: Float[Array, "*tasks contexts actions"]
    features: Float[Array, "*tasks contexts features"]
    horizon: Int[Array, "*tasks"]


@chex.dataclass(frozen=True)
class ContextsState:
    """The context, and the number of steps so far."""

    context: Int[Array, "*batch"]
    time: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Contexts:
    """Contextual bandits; the reward is 0 or 1, and the next context is drawn at random.

    The observation is float32 `[features]`.
    """

    num_actions: int = 18

    def observation_spec(self) -> specs.Array:
        return specs.Array((NUM_FEATURES,), np.float32, name="features")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self.num_actions, name="arm")

    def reset(self, task: ContextsTask, key: PRNGKeyArray) -> tuple[ContextsState, dm_env.TimeStep]:
        context = jax.random.randint(key, (), 0, NUM_CONTEXTS)
        state = ContextsState(context=context, time=jnp.int32(0))
        return state, restart(task.features[context])

    def step(
        self, task: ContextsTask, state: ContextsState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[ContextsState, dm_env.TimeStep]:
        reward_key, context_key = jax.random.split(key)
        rewarded = jax.random.uniform(reward_key) < task.probability[state.context, action]
        context = jax.random.randint(context_key, (), 0, NUM_CONTEXTS)
        new = ContextsState(context=context, time=state.time + 1)
        return new, transition(
            task.features[context],
            rewarded.astype(jnp.float32),
            terminated=new.time >= task.horizon,
        )

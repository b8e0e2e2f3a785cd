"""The random policy: uniform over discrete actions, or within the bounds of continuous actions."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
from dm_env import specs
from jaxtyping import Array, Float, PRNGKeyArray

import environments
from agents.protocol import Batch, Mode, Requirements, Update
from agents.registry import Algorithm
from disco_common.ranges import Count, require_ranges


@dataclasses.dataclass(frozen=True)
class RandomAgent:
    """An agent that acts at random and does not learn; only the specs of `dynamics` are used."""

    dynamics: Any
    num_environments: int = 8
    unroll_length: int = 16

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            num_environments=self.num_environments, unroll_length=self.unroll_length
        )

    def init(self, key: PRNGKeyArray) -> tuple[()]:
        del key
        return ()

    def acting_state(self, state: tuple[()]) -> tuple[()]:
        return state

    def initial_memory(self, batch_size: int) -> None:
        del batch_size

    def act(
        self,
        acting_state: tuple[()],
        memory: None,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[None, Array, dict[str, Any]]:
        del acting_state, mode
        batch_size, spec = timestep.reward.shape[0], self.dynamics.action_spec()
        if isinstance(spec, specs.DiscreteArray):
            logits: Float[Array, "B A"] = jnp.zeros((batch_size, spec.num_values), jnp.float32)
            return memory, jax.random.categorical(key, logits), {}
        shape = (batch_size, *spec.shape)
        low, high = (jnp.asarray(x, jnp.float32) for x in (spec.minimum, spec.maximum))
        action = jax.random.uniform(key, shape, jnp.float32, low, high)
        return memory, action.astype(spec.dtype), {}

    def update(self, state: tuple[()], batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        raise NotImplementedError("The random policy does not learn.")


@dataclasses.dataclass(frozen=True)
class RandomConfig:
    """The number of parallel environments, and the steps of each in an unroll."""

    num_environments: Count = 8
    unroll_length: Count = 16

    def __post_init__(self):
        require_ranges(self)


def _make(config: RandomConfig, task: environments.Environment) -> RandomAgent:
    return RandomAgent(task.dynamics, **vars(config))


RANDOM = Algorithm(
    name="random",
    paper="The uniformly random policy",
    presets={"default": RandomConfig()},
    make=_make,
)

"""Five tasks whose values are known, to find errors in an agent within seconds.

Each isolates one part of an algorithm: an agent that fails one and passes the tasks before it has
its error there. The idea is that of "probing environments" (Jones 2021, "Debugging RL, without the
agonizing pain").

| task | what it shows | value of the states |
| --- | --- | --- |
| `constant_reward` | the value's loss and optimiser | 1 |
| `value_of_observation` | the gradient through the network | the observation, -1 or 1 |
| `discounting` | bootstrapping and the discount | gamma in the first state, 1 in the second |
| `best_action` | the advantage and the policy's gradient | 1, by action 0 |
| `action_of_observation` | policy and value by the observation | 1, by the observation's sign |

Episodes have one step, those of `discounting` two. The observation is float32 `[1]`. There are two
actions, which matter in the last two tasks only.
"""

import dataclasses

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition

KINDS = (
    "constant_reward",
    "value_of_observation",
    "discounting",
    "best_action",
    "action_of_observation",
)


@chex.dataclass(frozen=True)
class DiagnosticState:
    """The observation, and the number of steps so far."""

    observation: Float[Array, "*batch 1"]
    step: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """The dynamics of all five tasks; see the module's docstring. A task is its number, int32."""

    def observation_spec(self) -> specs.Array:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="action")

    def reset(
        self, task: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[DiagnosticState, dm_env.TimeStep]:
        sign = jax.random.rademacher(key, (1,), jnp.float32)
        has_sign = _one_of(task, "value_of_observation", "action_of_observation")
        observation = jnp.where(has_sign, sign, jnp.float32(0.0))
        state = DiagnosticState(observation=observation, step=jnp.int32(0))
        return state, restart(observation)

    def step(
        self,
        task: Int[Array, ""],
        state: DiagnosticState,
        action: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[DiagnosticState, dm_env.TimeStep]:
        del key
        sign = jnp.where(action == 0, jnp.float32(1.0), jnp.float32(-1.0))
        rewards = {
            "constant_reward": jnp.float32(1.0),
            "value_of_observation": state.observation[0],
            "discounting": (state.step == 1).astype(jnp.float32),
            "best_action": sign,
            "action_of_observation": -sign * state.observation[0],
        }
        has_two = _one_of(task, "discounting")
        observation = jnp.where(has_two, jnp.ones_like(state.observation), state.observation)
        state = DiagnosticState(observation=observation, step=state.step + 1)
        return state, transition(
            observation,
            jnp.stack([rewards[kind] for kind in KINDS])[task],
            terminated=state.step == jnp.where(has_two, 2, 1),
        )


def _one_of(task: Int[Array, ""], *kinds: str) -> Bool[Array, ""]:
    return jnp.isin(task, jnp.array([KINDS.index(kind) for kind in kinds], jnp.int32))


SUITES = {"diagnostic": tuple(f"diagnostic/{kind}" for kind in KINDS)}


def make(name: str) -> Environment:
    """Make an environment of the suite, `diagnostic/<kind>` with a kind of `KINDS`."""
    number = np.int32(SUITES["diagnostic"].index(name))
    return Environment(name=name, dynamics=Diagnostic(), params=number)

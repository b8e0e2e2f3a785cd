"""DeepSea: one reward, found only by going right at every step.

Osband et al. (2020), "Behaviour suite for reinforcement learning" (appendix A,
deterministic version). Which of the two actions means *right* differs from cell to cell;
this mapping and the size are data, so that seas of several sizes share their dynamics.
"""

import dataclasses

import chex
import dm_env
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.errors import EnvironmentNameError

_LARGEST = 1_000  # Size.

MOVE_COST = 0.01  # Of an episode of moves to the right only.


@chex.dataclass(frozen=True)
class DeepSeaTask:
    """The size of a sea, and what actions mean in it.

    Attributes:
      size: its rows and columns, at most the dynamics' `max_size`.
      right: the action (0 or 1) that means right in each cell.
    """

    size: Int[Array, "*tasks"]
    right: Int[Array, "*tasks max_size max_size"]


@chex.dataclass(frozen=True)
class DeepSeaState:
    """The diver's cell; below the last row once the episode has ended."""

    row: Int[Array, "*batch"]
    column: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class DeepSea:
    """The diver sinks one row per step and moves left or right, from the upper left corner.

    Going right costs `0.01 / size`, and gives +1 in the lower right corner. The episode
    terminates after `size` steps. The observation is float32 `[max_size, max_size]`, 1 at
    the diver, and all zeros at the end. The best return is 0.99.
    """

    max_size: int

    def observation_spec(self) -> specs.Array:
        shape = (self.max_size, self.max_size)
        return specs.BoundedArray(shape, np.float32, 0.0, 1.0, name="sea")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="left_or_right")

    def reset(self, task: DeepSeaTask, key: PRNGKeyArray) -> tuple[DeepSeaState, dm_env.TimeStep]:
        del key
        state = DeepSeaState(row=jnp.int32(0), column=jnp.int32(0))
        return state, restart(self._observe(task, state))

    def step(
        self, task: DeepSeaTask, state: DeepSeaState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[DeepSeaState, dm_env.TimeStep]:
        del key
        right = action == task.right[state.row, state.column]
        found = right & (state.column == task.size - 1)  # Possible in the last row only.
        cost = MOVE_COST / task.size.astype(jnp.float32)
        reward = jnp.where(right, jnp.where(found, 1.0, 0.0) - cost, 0.0)
        column = jnp.clip(state.column + jnp.where(right, 1, -1), 0, task.size - 1)
        state = DeepSeaState(row=state.row + 1, column=column)
        return state, transition(
            self._observe(task, state),
            reward,
            terminated=state.row >= task.size,
            truncated=jnp.bool_(False),
        )

    def _observe(self, task: DeepSeaTask, state: DeepSeaState) -> Float[Array, "max_size max_size"]:
        cells = jnp.arange(self.max_size, dtype=jnp.int32)
        diver = (cells[:, None] == state.row) & (cells == state.column) & (state.row < task.size)
        return diver.astype(jnp.float32)


def make_task(dynamics: DeepSea, size: int) -> DeepSeaTask:
    """Build a task's arrays; the meaning of actions is drawn from its size."""
    shape = (dynamics.max_size, dynamics.max_size)
    right = np.random.default_rng([0, size]).integers(0, 2, shape)
    return DeepSeaTask(size=jnp.int32(size), right=jnp.asarray(right, jnp.int32))


def make(name: str) -> Environment:
    """Make `deep_sea/10`, or a sea of another size; `deep_sea` has size 10.

    Raises:
      EnvironmentNameError: if the size is not a positive integer, or too large.
    """
    size = name.removeprefix("deep_sea").removeprefix("/")
    digits = size or "10"
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= _LARGEST):
        raise EnvironmentNameError(
            f"The size of 'deep_sea/{size}' is {size!r}; expected a positive integer, at"
            f" most {_LARGEST}, for example 'deep_sea/10'."
        )
    dynamics = DeepSea(max_size=int(digits))
    name = f"deep_sea/{size}" if size else "deep_sea"
    return Environment(name=name, dynamics=dynamics, params=make_task(dynamics, int(digits)))

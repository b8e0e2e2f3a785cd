"""Catch: a ball falls, and the paddle in the last row must be under it.

Mnih et al. (2014), "Recurrent models of visual attention"; sizes and rules as in bsuite
(Osband et al. 2020, "Behaviour suite for reinforcement learning", appendix A).
"""

import dataclasses
import re

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.errors import EnvironmentNameError

_LARGEST = 1_000  # Rows and columns.


@chex.dataclass(frozen=True)
class CatchState:
    """The positions of the ball and the paddle. The paddle's row is always the last one."""

    ball_row: Int[Array, "*batch"]
    ball_column: Int[Array, "*batch"]
    paddle_column: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Catch:
    """The ball starts at a random column of the top row and falls by one row per step.

    Actions: 0 left, 1 stay, 2 right. When the ball reaches the paddle's row, after
    `rows - 1` steps, the reward is +1 if the paddle is there and -1 otherwise, and the
    episode terminates. The observation is the board, float32 `[rows, columns]`, 1 at the
    ball and at the paddle. There is one task, the empty pytree `()`.

    With `recall` the ball is observed in the first and the last row only: a task of memory. The
    paddle's first move can tell three cases apart (ball to the left, above, to the right), and
    its position stores that; so an agent without memory has a mean return of
    `2 * 3 / columns - 1` at most, 0.2 with five columns.
    """

    rows: int = 10
    columns: int = 5
    recall: bool = False

    def observation_spec(self) -> specs.Array:
        return specs.BoundedArray((self.rows, self.columns), np.float32, 0.0, 1.0, name="board")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3, name="left_stay_right")

    def reset(self, task: tuple, key: PRNGKeyArray) -> tuple[CatchState, dm_env.TimeStep]:
        del task
        state = CatchState(
            ball_row=jnp.int32(0),
            ball_column=jax.random.randint(key, (), 0, self.columns, jnp.int32),
            paddle_column=jnp.int32(self.columns // 2),
        )
        return state, restart(self._board(state))

    def step(
        self, task: tuple, state: CatchState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[CatchState, dm_env.TimeStep]:
        del task, key
        moved = state.paddle_column + jnp.asarray(action, jnp.int32) - 1
        state = CatchState(
            ball_row=state.ball_row + 1,
            ball_column=state.ball_column,
            paddle_column=jnp.clip(moved, 0, self.columns - 1),
        )
        landed = state.ball_row == self.rows - 1
        caught = state.ball_column == state.paddle_column
        reward = jnp.where(landed, jnp.where(caught, 1.0, -1.0), 0.0)
        return state, transition(
            self._board(state), reward, terminated=landed, truncated=jnp.bool_(False)
        )

    def _board(self, state: CatchState) -> Float[Array, "rows columns"]:
        rows = jnp.arange(self.rows, dtype=jnp.int32)[:, None]
        columns = jnp.arange(self.columns, dtype=jnp.int32)[None]
        ball = (rows == state.ball_row) & (columns == state.ball_column)
        if self.recall:
            ball &= (rows == 0) | (rows == self.rows - 1)
        paddle = (rows == self.rows - 1) & (columns == state.paddle_column)
        return (ball | paddle).astype(jnp.float32)


def make(name: str) -> Environment:
    """Make `catch/8x8` (rows x columns), `catch/8x8/recall` or `catch` (10x5, bsuite's size).

    Raises:
      EnvironmentNameError: if the size is not of that form, or too small or large.
    """
    size = name.removeprefix("catch").removeprefix("/")
    match = re.fullmatch(r"(\d+)x(\d+)(/recall)?", size or "10x5")
    rows, columns = (int(n) for n in match.groups()[:2]) if match else (0, 0)
    recall = bool(match and match[3])
    if not (2 <= rows <= _LARGEST and 1 <= columns <= _LARGEST):
        raise EnvironmentNameError(
            f"The size of 'catch/{size}' is {size!r}; expected <rows>x<columns> with 2 to"
            f" {_LARGEST} rows and 1 to {_LARGEST} columns, for example 'catch/8x8', and"
            " perhaps '/recall' after it."
        )
    name = f"catch/{rows}x{columns}{'/recall' * recall}" if size else "catch"
    return Environment(name=name, dynamics=Catch(rows=rows, columns=columns, recall=recall))

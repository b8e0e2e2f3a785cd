"""Three small tasks, each of which asks for one ability: Catch, DeepSea, and delayed chains."""

import dataclasses
import functools
import re

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.errors import EnvironmentNameError, unknown_name

_LARGEST = 1_000  # Rows and columns.


@chex.dataclass(frozen=True)
class CatchState:
    """The positions of the ball and the paddle. The paddle's row is always the last one."""

    ball_row: Int[Array, "*batch"]
    ball_column: Int[Array, "*batch"]
    paddle_column: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Catch:
    """Catch: a ball falls, and the paddle in the last row must be under it.

    Mnih et al. (2014), "Recurrent models of visual attention"; sizes and rules as in bsuite (Osband
    et al. 2020, "Behaviour suite for reinforcement learning", appendix A). The ball starts at a
    random column of the top row and falls by one row per step.

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
        return state, transition(self._board(state), reward, terminated=landed)

    def _board(self, state: CatchState) -> Float[Array, "rows columns"]:
        rows = jnp.arange(self.rows, dtype=jnp.int32)[:, None]
        columns = jnp.arange(self.columns, dtype=jnp.int32)[None]
        ball = (rows == state.ball_row) & (columns == state.ball_column)
        if self.recall:
            ball &= (rows == 0) | (rows == self.rows - 1)
        paddle = (rows == self.rows - 1) & (columns == state.paddle_column)
        return (ball | paddle).astype(jnp.float32)


def _make_catch(name: str) -> Environment:
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
    """DeepSea: one reward, found only by going right at every step.

    Osband et al. (2020), "Behaviour suite for reinforcement learning" (appendix A, deterministic
    version). Which of the two actions means *right* differs from cell to cell; this mapping and the
    size are data, so that seas of several sizes share their dynamics. The diver sinks one row per
    step and moves left or right, from the upper left corner.

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
            self._observe(task, state), reward, terminated=state.row >= task.size
        )

    def _observe(self, task: DeepSeaTask, state: DeepSeaState) -> Float[Array, "max_size max_size"]:
        cells = jnp.arange(self.max_size, dtype=jnp.int32)
        diver = (cells[:, None] == state.row) & (cells == state.column) & (state.row < task.size)
        return diver.astype(jnp.float32)


def make_deep_sea(dynamics: DeepSea, size: int) -> DeepSeaTask:
    """Build a task's arrays; the meaning of actions is drawn from its size."""
    shape = (dynamics.max_size, dynamics.max_size)
    right = np.random.default_rng([0, size]).integers(0, 2, shape)
    return DeepSeaTask(size=jnp.int32(size), right=jnp.asarray(right, jnp.int32))


def _make_deep_sea(name: str) -> Environment:
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
    return Environment(name=name, dynamics=dynamics, params=make_deep_sea(dynamics, int(digits)))


@chex.dataclass(frozen=True)
class DelayedChainTask:
    """One chain.

    Attributes:
      length: steps of an episode, at most the dynamics' `max_length`.
      good_action: the first action that leads to +1; the other leads to -1.
      noise: standard deviation of the Gaussian noise added to every reward.
      distraction: probability that a distractor bit is on (0: no distraction).
    """

    length: Int[Array, "*tasks"]
    good_action: Int[Array, "*tasks"]
    noise: Float[Array, "*tasks"]
    distraction: Float[Array, "*tasks"]


@chex.dataclass(frozen=True)
class DelayedChainState:
    """The step count, and the branch that the first action chose (1 is the good one)."""

    time: Int[Array, "*batch"]
    branch: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class DelayedChain:
    """A task of `delayed_chain`: the first action decides a reward at the end of a chain.

    The delayed-chain tasks of Oh et al. (2020), "Discovering reinforcement learning algorithms"
    (arXiv 2007.08794, appendix): short and long chains, noisy rewards, and distracting random bits
    in the observation. Lengths and noise levels are chosen here. A chain has two branches, of which
    the first action chooses one.

    There are two actions; later ones have no effect. The last step gives +1 at the end of the
    good branch and -1 at the end of the other, and terminates; other rewards are 0, plus
    noise. The observation is float32 `[2 (max_length + 1) + num_bits]`: the position, one-hot
    (the start is on the first branch), and distractor bits.
    """

    max_length: int = 30
    num_bits: int = 20

    def observation_spec(self) -> specs.Array:
        size = 2 * (self.max_length + 1) + self.num_bits
        return specs.BoundedArray((size,), np.float32, 0.0, 1.0, name="place_and_bits")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="branch")

    def reset(
        self, task: DelayedChainTask, key: PRNGKeyArray
    ) -> tuple[DelayedChainState, dm_env.TimeStep]:
        state = DelayedChainState(time=jnp.int32(0), branch=jnp.int32(0))
        return state, restart(self._observe(task, state, key))

    def step(
        self,
        task: DelayedChainTask,
        state: DelayedChainState,
        action: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[DelayedChainState, dm_env.TimeStep]:
        noise_key, bits_key = jax.random.split(key)
        chosen = (action == task.good_action).astype(jnp.int32)
        state = DelayedChainState(
            time=state.time + 1,
            branch=jnp.where(state.time == 0, chosen, state.branch),
        )
        ended = state.time >= task.length
        noise = task.noise * jax.random.normal(noise_key, (), jnp.float32)
        reward = jnp.where(ended, 2.0 * state.branch.astype(jnp.float32) - 1.0, 0.0) + noise
        return state, transition(self._observe(task, state, bits_key), reward, terminated=ended)

    def _observe(
        self, task: DelayedChainTask, state: DelayedChainState, key: PRNGKeyArray
    ) -> Float[Array, "features"]:
        position = state.branch * (self.max_length + 1) + state.time
        one_hot = jax.nn.one_hot(position, 2 * (self.max_length + 1), dtype=jnp.float32)
        bits = jax.random.uniform(key, (self.num_bits,), jnp.float32) < task.distraction
        return jnp.concatenate([one_hot, bits.astype(jnp.float32)])


# By name: length, good action, noise, distraction.
CHAINS = {
    "short": (8, 0, 0.0, 0.0),
    "long": (30, 1, 0.0, 0.0),
    "noisy_short": (8, 1, 0.3, 0.0),
    "noisy_long": (30, 0, 0.3, 0.0),
    "distractor": (12, 1, 0.0, 0.5),
}
SUITES = {"delayed_chain": tuple(f"delayed_chain/{name}" for name in CHAINS)}


@functools.cache
def make_delayed_chain(name: str) -> Environment:
    """Make an environment of the suite, for example `delayed_chain/noisy_long`.

    Raises:
      EnvironmentNameError: if there is none of this name.
    """
    if name not in SUITES["delayed_chain"]:
        raise unknown_name(name, SUITES["delayed_chain"])
    length, good_action, noise, distraction = CHAINS[name.removeprefix("delayed_chain/")]
    task = DelayedChainTask(
        length=jnp.int32(length),
        good_action=jnp.int32(good_action),
        noise=jnp.float32(noise),
        distraction=jnp.float32(distraction),
    )
    return Environment(name=name, dynamics=DelayedChain(), params=task)


def make(name: str) -> Environment:
    """Make `catch/…`, `deep_sea/…` or `delayed_chain/…`.

    Raises:
      EnvironmentNameError: if there is none of this name, saying what was expected.
    """
    family = name.partition("/")[0]
    makers = {
        "catch": _make_catch,
        "deep_sea": _make_deep_sea,
        "delayed_chain": make_delayed_chain,
    }
    return makers[family](name)

"""Sokoban: the player pushes boxes onto targets.

Weber et al. 2017, "Imagination-augmented agents for deep reinforcement learning" (arXiv 1707.06203,
section on Sokoban and its appendix); Guez et al. 2019, "An investigation of model-free planning"
(arXiv 1901.03559). Rooms of 10x10 with 4 boxes. -0.1 per step, +1 for a box pushed onto a target,
-1 for one pushed off a target, +10 when all boxes are on targets, which terminates the episode; it
is truncated after 120 steps.

Each episode draws a level from the task's pool. `sokoban/train`, the suite `sokoban`, has 10,000
generated levels; `sokoban/valid` and `sokoban/test` have 1,000 others each, for evaluation on
levels never trained on. (The papers' pool of "unfiltered" training levels has 900,000.)
`sokoban/file:PATH` has the levels of a Boxoban text file. `generator` makes levels, `levels` reads
files of them.

The observation is the compact symbolic form, in place of the papers' images of the same.
"""

import dataclasses
import functools
import hashlib
import os

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from disco_common import files
from environments.base import Environment, restart, transition
from environments.errors import EnvironmentNameError, require, unknown_name
from environments.suites.sokoban import generator, levels
from environments.suites.sokoban.generator import POOL_SIZES
from environments.suites.sokoban.levels import BOX, PLAYER, SIZE, TARGET, WALL, Levels

TIME_LIMIT = 120
SUITES = {"sokoban": ("sokoban/train",)}

_CELLS = SIZE * SIZE
_STEP = np.array([-SIZE, 1, SIZE, -1], np.int32)  # Up, right, down, left.


@chex.dataclass(frozen=True)
class SokobanTask:
    """A pool of levels.

    Attributes:
      levels: see `environments.suites.sokoban.levels`; built by `make_task`.
      number: of levels. The others are padding.
    """

    levels: UInt8[Array, "*tasks capacity 10 10"]
    number: Int[Array, "*tasks"]


@chex.dataclass(frozen=True)
class SokobanState:
    """The level without its player, the player's cell (row by row), and the step count."""

    cells: UInt8[Array, "*batch cells"]
    player: Int[Array, "*batch"]
    time: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Sokoban:
    """Sokoban; the task is a pool of levels.

    Actions: 0 up, 1 right, 2 down, 3 left. Moving into a box pushes it if the cell behind it has
    neither wall nor box; without a legal move the player stays. The observation is float32
    `[10, 10, 4]` of zeros and ones: walls, targets, boxes and the player. A box or a player on a
    target shows in both planes.

    Attributes:
      capacity: levels that a task is padded to, so that pools of equal dynamics have equal shapes.
      time_limit: steps after which an episode is truncated.
    """

    capacity: int = max(POOL_SIZES.values())
    time_limit: int = TIME_LIMIT

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((SIZE, SIZE, 4), np.float32, 0.0, 1.0, name="planes")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(4, name="up_right_down_left")

    def reset(self, task: SokobanTask, key: PRNGKeyArray) -> tuple[SokobanState, dm_env.TimeStep]:
        index = jax.random.randint(key, (), 0, task.number, jnp.int32)
        level = task.levels[index].reshape(_CELLS)
        state = SokobanState(
            cells=level & (WALL | TARGET | BOX),
            player=jnp.argmax(level & PLAYER).astype(jnp.int32),
            time=jnp.int32(0),
        )
        return state, restart(_observe(state))

    def step(
        self, task: SokobanTask, state: SokobanState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[SokobanState, dm_env.TimeStep]:
        del task, key
        step = jnp.asarray(_STEP)[action]
        ahead, behind = state.player + step, state.player + 2 * step
        # A cell behind the border does not exist; what is read in its place is not used.
        here, there = state.cells[ahead], state.cells[jnp.clip(behind, 0, _CELLS - 1)]
        is_box = (here & BOX) > 0
        moves = ((here & WALL) == 0) & ~(is_box & ((there & (WALL | BOX)) > 0))
        pushes = moves & is_box
        cell = jnp.arange(_CELLS, dtype=jnp.int32)
        changes = pushes & ((cell == ahead) | (cell == behind))
        state = SokobanState(
            cells=jnp.where(changes, state.cells ^ BOX, state.cells),
            player=jnp.where(moves, ahead, state.player),
            time=state.time + 1,
        )
        here_is_target, there_is_target = (
            ((x & TARGET) > 0).astype(jnp.float32) for x in (here, there)
        )
        gained = there_is_target - here_is_target
        solved = _solved(state)
        reward = -0.1 + jnp.where(pushes, gained, 0.0) + jnp.where(solved, 10.0, 0.0)
        return state, transition(
            _observe(state), reward, terminated=solved, truncated=state.time >= self.time_limit
        )

    def results(self, task: SokobanTask, state: SokobanState) -> dict[str, Float[Array, ""]]:
        """Return whether the level is solved, and how many boxes are on targets."""
        del task
        on_target = (state.cells & (BOX | TARGET)) == (BOX | TARGET)
        return {
            "solved": _solved(state).astype(jnp.float32),
            "boxes_on_target": jnp.sum(on_target, dtype=jnp.float32),
        }


def _solved(state: SokobanState) -> Bool[Array, ""]:
    return jnp.all((state.cells & (BOX | TARGET)) != BOX)


def _observe(state: SokobanState) -> Float[Array, "10 10 4"]:
    at_player = jnp.arange(_CELLS, dtype=jnp.int32) == state.player
    cells = state.cells | jnp.where(at_player, jnp.uint8(PLAYER), jnp.uint8(0))
    planes = cells[:, None] & jnp.array([WALL, TARGET, BOX, PLAYER], jnp.uint8)
    return (planes > 0).astype(jnp.float32).reshape(SIZE, SIZE, 4)


def make_task(dynamics: Sokoban, pool: Levels) -> SokobanTask:
    """Build a pool of at most `dynamics.capacity` levels.

    Raises:
      ValueError: if there are more.
    """
    padding = dynamics.capacity - len(pool)
    require(
        padding >= 0,
        f"There are {len(pool)} levels; expected at most Sokoban.capacity {dynamics.capacity}.",
    )
    return SokobanTask(
        levels=jnp.asarray(np.pad(pool, ((0, padding), (0, 0), (0, 0)))),
        number=jnp.int32(len(pool)),
    )


def make(name: str) -> Environment:
    """Make `sokoban/train`, `sokoban/valid`, `sokoban/test` or `sokoban/file:PATH`.

    Raises:
      EnvironmentNameError: if it is none of these, or the file cannot be opened.
      ValueError: if the file is malformed, naming the line of the level.
    """
    pool, sha256 = name.removeprefix("sokoban/"), None
    if pool.startswith("file:"):
        path = pool.removeprefix("file:")
        try:
            content = files.read_bytes(os.path.expanduser(path), files.MOST_DATA)
        except (OSError, ValueError) as error:
            raise EnvironmentNameError(
                f"{name!r} needs a file of levels, which cannot be read: {error}"
            ) from error
        pool_levels, sha256 = levels.parse(content, path), hashlib.sha256(content).hexdigest()
    elif pool in POOL_SIZES:
        pool_levels = _generated(pool)
    else:
        known = [f"sokoban/{split}" for split in POOL_SIZES]
        hint = "Levels of a Boxoban text file are 'sokoban/file:PATH'."
        raise unknown_name(name, known, hint)
    dynamics = Sokoban(capacity=max(Sokoban.capacity, len(pool_levels)))
    return Environment(name, dynamics, make_task(dynamics, pool_levels), sha256)


@functools.cache
def _generated(split: str) -> Levels:
    pool_levels = generator.generate(split, POOL_SIZES[split])
    pool_levels.flags.writeable = False  # The cache shares it.
    return pool_levels

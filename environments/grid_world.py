"""Grid-worlds whose task is data: the maze, its objects and the horizon are arrays.

The family of Oh et al. (2020), "Discovering reinforcement learning algorithms" (LPG,
arXiv 2007.08794, appendix on the training environments): the agent walks in a maze and
collects objects. Touching an object gives its reward, takes the object away, and ends the
episode with the object's probability; an absent object reappears with its probability per
step. In *fixed* variants an object has one cell, in *random* variants its cell is drawn
anew for every episode and for every reappearance.

Beyond LPG, and off by default: objects that walk about, keys and doors, slippery moves
and a reward per step.
"""

import dataclasses
import functools
from collections.abc import Sequence

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from environments.base import restart, transition
from environments.errors import require

ORTHOGONAL = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))  # stay, up, right, down, left
DIAGONAL = ((-1, 1), (1, 1), (1, -1), (-1, -1))
MOVES = {"orthogonal": ORTHOGONAL, "king": ORTHOGONAL + DIAGONAL}

Cell = tuple[int, int]  # (row, column)


@chex.dataclass(frozen=True)
class GridWorldTask:
    """What a grid-world is made of. Cells are numbered row by row; build with `make_task`.

    Attributes:
      walls: cells that nothing enters; a maze smaller than the canvas is padded with them.
      doors: cells that are walls to those without the key.
      start: the agent's first cell, unless `random_start`.
      random_start: whether the agent starts at a random spawn cell.
      spawn_cells: the first `num_spawn_cells` are where random things may appear.
      num_spawn_cells: at least one more than there are random objects.
      used: the objects that exist. Random ones come before the others.
      kind: the observation plane an object shows in.
      random: whether an object appears at random spawn cells, else at `cell`.
      cell: see `random`.
      reward: for touching the object.
      termination: probability that touching it ends the episode.
      respawn: probability per step that it comes back once taken.
      walk: probability per step that it tries to move to a random neighbouring cell.
      key: whether touching it opens the doors for the rest of the episode.
      slip: probability that an action is replaced by a uniformly random one.
      step_reward: added to every step's reward.
      horizon: steps after which the episode is cut.
    """

    walls: Bool[Array, "cells"]
    doors: Bool[Array, "cells"]
    start: Int[Array, ""]
    random_start: Bool[Array, ""]
    spawn_cells: Int[Array, "cells"]
    num_spawn_cells: Int[Array, ""]
    used: Bool[Array, "objects"]
    kind: Int[Array, "objects"]
    random: Bool[Array, "objects"]
    cell: Int[Array, "objects"]
    reward: Float[Array, "objects"]
    termination: Float[Array, "objects"]
    respawn: Float[Array, "objects"]
    walk: Float[Array, "objects"]
    key: Bool[Array, "objects"]
    slip: Float[Array, ""]
    step_reward: Float[Array, ""]
    horizon: Int[Array, ""]


@chex.dataclass(frozen=True)
class GridWorldState:
    """The agent, the objects, whether the key was taken, and steps since the start."""

    agent: Int[Array, ""]
    cell: Int[Array, "objects"]
    present: Bool[Array, "objects"]
    has_key: Bool[Array, ""]
    time: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class GridWorld:
    """Dynamics of all grid-worlds on one canvas.

    The observation is float32 `[height, width, 2 + kinds (+ 2)]` of zeros and ones: the
    agent, the walls, the objects of each kind, and, where there are doors, a plane of ones
    once the key is held and the doors. Actions, with `"orthogonal"` moves: stay, up, right,
    down, left; with `"king"` moves also the diagonals, clockwise from up-right. Moving into
    a wall or out of the canvas is staying. A diagonal move needs only its target free.

    One step: the agent moves and touches what it finds; then the other objects walk (one
    that walks into the agent is touched), and absent ones may come back, never on top of
    the agent or of another object. The episode *terminates* by touching; at the horizon it
    is *cut* (discount stays 1).

    Attributes:
      height: of the canvas, in cells.
      width: of the canvas, in cells.
      max_objects: that a task may have.
      kinds: observation planes for objects.
      moves: `"orthogonal"` (5 actions) or `"king"` (9 actions).
      doors: whether there are keys and doors, and planes that show them.

    Raises:
      ValueError: on sizes below 1, on more kinds than fit in the observation's bit mask,
        or on unknown moves.
    """

    height: int
    width: int
    max_objects: int
    kinds: int
    moves: str = "orthogonal"
    doors: bool = False

    def __post_init__(self):
        for field in ("height", "width", "max_objects", "kinds"):
            value = getattr(self, field)
            require(value >= 1, f"GridWorld.{field} must be at least 1, found {value}.")
        require(self.kinds <= 24, f"GridWorld.kinds must be at most 24, found {self.kinds}.")
        require(
            self.moves in MOVES,
            f"GridWorld.moves must be one of {sorted(MOVES)}, found {self.moves!r}.",
        )

    @property
    def num_cells(self) -> int:
        return self.height * self.width

    @property
    def num_planes(self) -> int:
        return 2 + self.kinds + 2 * self.doors

    def observation_spec(self) -> specs.Array:
        shape = (self.height, self.width, self.num_planes)
        return specs.BoundedArray(shape, np.float32, 0.0, 1.0, name="planes")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(len(MOVES[self.moves]), name="move")

    def reset(
        self, task: GridWorldTask, key: PRNGKeyArray
    ) -> tuple[GridWorldState, dm_env.TimeStep]:
        uniforms = jax.random.uniform(key, (1 + self.max_objects,), jnp.float32)
        drawn = _distinct_cells(task, uniforms)
        state = GridWorldState(
            agent=jnp.where(task.random_start, drawn[0], task.start),
            cell=jnp.where(task.random, drawn[1:], task.cell),
            present=jnp.asarray(task.used),
            has_key=jnp.bool_(False),
            time=jnp.int32(0),
        )
        return state, restart(self._observe(task, state))

    def step(
        self, task: GridWorldTask, state: GridWorldState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[GridWorldState, dm_env.TimeStep]:
        n = self.max_objects
        uniforms = jax.random.uniform(key, (2 * n + 3,), jnp.float32)
        event, choice = uniforms[:n], uniforms[n : 2 * n]
        slip, slip_action, end = uniforms[2 * n], uniforms[2 * n + 1], uniforms[2 * n + 2]

        # The agent moves, and touches what it finds.
        moves = MOVES[self.moves]
        action = jnp.asarray(action, jnp.int32)
        action = jnp.where(slip < task.slip, _scaled(slip_action, len(moves)), action)
        closed = task.walls
        if self.doors:
            closed = closed | (task.doors & ~state.has_key)
        agent = _move(self._neighbours(moves), closed, state.agent, action)
        touched = state.present & (state.cell == agent)
        remaining = state.present & ~touched

        # The others walk (into the agent: touched) or come back, if their new cell is free.
        walks = remaining & (event < task.walk)
        returns = ~state.present & task.used & (event < task.respawn)
        walk_cell = _move(
            self._neighbours(ORTHOGONAL[1:]),
            task.walls | task.doors if self.doors else task.walls,
            state.cell,
            _scaled(choice, 4),
        )
        random_cell = task.spawn_cells[_scaled(choice, task.num_spawn_cells)]
        return_cell = jnp.where(task.random, random_cell, task.cell)
        now = jnp.where(remaining, state.cell, -1)
        proposed = jnp.where(walks, walk_cell, jnp.where(returns, return_cell, now))
        clashes = _clashes(proposed, now)
        returns = returns & ~clashes & (proposed != agent)
        cell = jnp.where((walks & ~clashes) | returns, proposed, state.cell)
        walked_into = remaining & (cell == agent)
        present = (remaining & ~walked_into) | returns

        # What touching does. Each touched object ends the episode independently.
        contact = touched | walked_into
        reward = task.step_reward + jnp.sum(jnp.where(contact, task.reward, 0.0))
        survival = jnp.prod(jnp.where(contact, 1.0 - task.termination, 1.0))
        terminated = end < 1.0 - survival
        has_key = state.has_key
        if self.doors:
            has_key = has_key | jnp.any(contact & task.key)
        time = state.time + 1
        state = GridWorldState(agent=agent, cell=cell, present=present, has_key=has_key, time=time)
        return state, transition(
            self._observe(task, state),
            reward,
            terminated=terminated,
            truncated=time >= task.horizon,
        )

    def _neighbours(self, moves: Sequence[Cell]) -> Int[Array, "cells moves"]:
        """The cell that each move leads to, leaving the canvas being no move."""
        return jnp.asarray(_neighbour_table(self.height, self.width, tuple(moves)))

    def _observe(
        self, task: GridWorldTask, state: GridWorldState
    ) -> Float[Array, "height width planes"]:
        # One bit per plane, so that XLA fuses everything into one pass over the canvas.
        cells = jnp.arange(self.num_cells, dtype=jnp.int32)
        bits = (cells == state.agent).astype(jnp.int32) | (task.walls.astype(jnp.int32) << 1)
        kind_bit = jnp.where(state.present, jnp.int32(4) << task.kind, 0)
        for i in range(self.max_objects):
            bits = bits | jnp.where(cells == state.cell[i], kind_bit[i], 0)
        if self.doors:
            bits = bits | (state.has_key.astype(jnp.int32) << (2 + self.kinds))
            bits = bits | (task.doors.astype(jnp.int32) << (3 + self.kinds))
        planes = (bits[:, None] >> jnp.arange(self.num_planes, dtype=jnp.int32)) & 1
        return planes.astype(jnp.float32).reshape(self.height, self.width, self.num_planes)


@functools.cache
def _neighbour_table(height: int, width: int, moves: tuple[Cell, ...]) -> np.ndarray:
    row, column = np.divmod(np.arange(height * width), width)
    table = []
    for down, right in moves:
        to_row, to_column = row + down, column + right
        inside = (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
        table.append(np.where(inside, to_row * width + to_column, row * width + column))
    return np.stack(table, axis=-1).astype(np.int32)


def _scaled(uniform: Float[Array, "..."], number: chex.Numeric) -> Int[Array, "..."]:
    """Uniforms of [0, 1) to integers of [0, number); exact as `number` is far below 2^23."""
    return jnp.floor(uniform * jnp.asarray(number, jnp.float32)).astype(jnp.int32)


def _move(
    neighbours: Int[Array, "cells moves"],
    closed: Bool[Array, "cells"],
    cell: Int[Array, "..."],
    move: Int[Array, "..."],
) -> Int[Array, "..."]:
    target = neighbours[cell, move]
    return jnp.where(closed[target], cell, target)


def _distinct_cells(task: GridWorldTask, uniforms: Float[Array, "draws"]) -> Int[Array, "draws"]:
    """Draws spawn cells without replacement.

    Draw `i` picks the `pick[i]`-th of the cells that the earlier draws left over. That rank
    becomes an index into all cells by undoing the removals, latest first (the decoding of a
    Lehmer code): no sorting and one random number per draw, since streams reset at every
    step. Draws beyond the number of cells are arbitrary; `make_task` leaves them unused.
    """
    order = jnp.arange(uniforms.shape[0], dtype=jnp.int32)
    left = jnp.maximum(task.num_spawn_cells - order, 1)
    pick = _scaled(uniforms, left)
    index = pick
    for i in reversed(range(uniforms.shape[0] - 1)):
        later = index[i + 1 :]
        index = index.at[i + 1 :].set(later + (later >= pick[i]).astype(later.dtype))
    return task.spawn_cells[jnp.minimum(index, task.num_spawn_cells - 1)]


def _clashes(proposed: Int[Array, "objects"], now: Int[Array, "objects"]) -> Bool[Array, "objects"]:
    """Objects whose proposed cell another object has or also proposes (-1 is nowhere)."""
    same = (proposed[:, None] == proposed[None]) | (proposed[:, None] == now[None])
    others = ~np.eye(proposed.shape[0], dtype=bool)
    return jnp.any(same & others, axis=1) & (proposed >= 0)


@dataclasses.dataclass(frozen=True)
class Object:
    """Something to touch: LPG's [reward, termination, respawn], and beyond.

    Attributes:
      reward: for touching it.
      termination: probability that touching it ends the episode.
      respawn: probability per step that it comes back.
      kind: observation plane, from 0.
      cell: (row, column), or None for a random one in every episode.
      walk: probability per step of walking to a random neighbouring cell.
      key: whether it opens the doors.
    """

    reward: float
    termination: float = 0.0
    respawn: float = 0.0
    kind: int = 0
    cell: Cell | None = None
    walk: float = 0.0
    key: bool = False


def make_task(
    dynamics: GridWorld,
    maze: np.ndarray,
    objects: Sequence[Object],
    *,
    horizon: int,
    start: Cell | None = None,
    doors: Sequence[Cell] = (),
    spawn: np.ndarray | None = None,
    slip: float = 0.0,
    step_reward: float = 0.0,
) -> GridWorldTask:
    """Builds a task's arrays.

    Args:
      dynamics: whose canvas the maze must fit in; it is put in the upper left corner.
      maze: bool `[h, w]`, True at walls.
      objects: at most `dynamics.max_objects`.
      horizon: steps after which an episode is cut.
      start: the agent's first cell, or None for a random one in every episode.
      doors: cells that need a key.
      spawn: bool `[h, w]`, where the agent and objects may appear at random; by default
        all cells without a wall, a door, a fixed object or the fixed start.
      slip: probability that an action is replaced by a random one.
      step_reward: added to every reward.

    Raises:
      ValueError: if something does not fit, lies in a wall, shares a cell, or is not a
        probability, saying what was found and expected.
    """
    height, width = maze.shape
    require(
        height <= dynamics.height and width <= dynamics.width,
        f"A maze of {height}x{width} does not fit in the canvas of"
        f" {dynamics.height}x{dynamics.width}.",
    )
    require(
        len(objects) <= dynamics.max_objects,
        f"Found {len(objects)} objects, expected at most {dynamics.max_objects}.",
    )
    require(horizon >= 1, f"The horizon must be at least 1 step, found {horizon}.")
    for what, p in [("slip", slip)] + [
        (what, getattr(thing, what))
        for thing in objects
        for what in ("termination", "respawn", "walk")
    ]:
        require(0.0 <= p <= 1.0, f"Expected a probability for {what!r}, found {p}.")
    for thing in objects:
        require(
            0 <= thing.kind < dynamics.kinds,
            f"Expected an object kind below {dynamics.kinds}, found {thing.kind}.",
        )
    require(
        dynamics.doors or not (doors or any(thing.key for thing in objects)),
        "Keys and doors need dynamics with doors=True.",
    )

    walls = np.ones((dynamics.height, dynamics.width), bool)
    walls[:height, :width] = maze
    door_plane = np.zeros_like(walls)
    free = ~walls
    fixed = [(thing.cell, "an object") for thing in objects if thing.cell is not None]
    fixed += [(cell, "a door") for cell in doors]
    fixed += [(start, "the start")] if start is not None else []
    for cell, what in fixed:
        inside = 0 <= cell[0] < dynamics.height and 0 <= cell[1] < dynamics.width
        require(
            inside and bool(free[cell]),
            f"Expected a free cell of its own for {what}, found {cell}.",
        )
        free[cell] = False
    for cell in doors:
        door_plane[cell] = True
    if spawn is not None:
        allowed = np.zeros_like(walls)
        allowed[:height, :width] = spawn
        free &= allowed
    spawn_cells = np.flatnonzero(free)

    # `_distinct_cells` draws for the agent, then for objects in order: random ones first.
    objects = sorted(objects, key=lambda thing: thing.cell is not None)
    num_random = sum(thing.cell is None for thing in objects)
    if num_random or start is None:
        require(
            len(spawn_cells) > num_random,
            f"Expected more than {num_random} cells for random placement,"
            f" found {len(spawn_cells)}.",
        )
    num_spawn_cells = max(1, len(spawn_cells))

    def column(values, dtype):
        padded = np.zeros((dynamics.max_objects,), dtype)
        padded[: len(objects)] = list(values)
        return jnp.asarray(padded)

    def number(cell: Cell | None) -> int:
        return 0 if cell is None else cell[0] * dynamics.width + cell[1]

    return GridWorldTask(
        walls=jnp.asarray(walls.ravel()),
        doors=jnp.asarray(door_plane.ravel()),
        start=jnp.int32(number(start)),
        random_start=jnp.bool_(start is None),
        spawn_cells=jnp.asarray(
            np.pad(spawn_cells, (0, dynamics.num_cells - len(spawn_cells))), jnp.int32
        ),
        num_spawn_cells=jnp.int32(num_spawn_cells),
        used=column((True for _ in objects), bool),
        kind=column((thing.kind for thing in objects), np.int32),
        random=column((thing.cell is None for thing in objects), bool),
        cell=column((number(thing.cell) for thing in objects), np.int32),
        reward=column((thing.reward for thing in objects), np.float32),
        termination=column((thing.termination for thing in objects), np.float32),
        respawn=column((thing.respawn for thing in objects), np.float32),
        walk=column((thing.walk for thing in objects), np.float32),
        key=column((thing.key for thing in objects), bool),
        slip=jnp.float32(slip),
        step_reward=jnp.float32(step_reward),
        horizon=jnp.int32(horizon),
    )

"""The dynamics that all grid-worlds of one size share."""

import dataclasses
from typing import NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from disco_common.ranges import Count, require_ranges
from environments.base import restart, transition
from environments.errors import require
from environments.suites.grid_worlds.mazes import MOVES, ORTHOGONAL, Cell, neighbour_table


@chex.dataclass(frozen=True)
class GridWorldTask:
    """One grid-world. Cells are numbered row by row; build it with `make_task`.

    Attributes:
      walls: cells that nothing enters; a maze smaller than the grid is padded with them.
      doors: cells that are walls without the key.
      start: the agent's first cell, unless `random_start`.
      random_start: whether the agent starts in a random spawn cell.
      spawn_cells: the first `num_spawn_cells` are where random objects and agents appear.
      num_spawn_cells: at least one more than there are random objects.
      used: the objects that exist. Random ones precede the others.
      kind: the observation plane of each object.
      random: whether an object appears in random spawn cells, else in `cell`.
      cell: see `random`.
      reward: for touching the object.
      termination: probability that touching it terminates the episode.
      respawn: probability per step that the object reappears once it is removed.
      walk: probability per step that it tries to move to a random neighbouring cell.
      key: whether touching it opens the doors for the rest of the episode.
      slip: probability that an action is replaced by a uniformly random one.
      step_reward: added to every step's reward.
      horizon: steps after which the episode is truncated.
    """

    walls: Bool[Array, "*tasks cells"]
    doors: Bool[Array, "*tasks cells"]
    start: Int[Array, "*tasks"]
    random_start: Bool[Array, "*tasks"]
    spawn_cells: Int[Array, "*tasks cells"]
    num_spawn_cells: Int[Array, "*tasks"]
    used: Bool[Array, "*tasks objects"]
    kind: Int[Array, "*tasks objects"]
    random: Bool[Array, "*tasks objects"]
    cell: Int[Array, "*tasks objects"]
    reward: Float[Array, "*tasks objects"]
    termination: Float[Array, "*tasks objects"]
    respawn: Float[Array, "*tasks objects"]
    walk: Float[Array, "*tasks objects"]
    key: Bool[Array, "*tasks objects"]
    slip: Float[Array, "*tasks"]
    step_reward: Float[Array, "*tasks"]
    horizon: Int[Array, "*tasks"]


@chex.dataclass(frozen=True)
class GridWorldState:
    """The cells of the agent and the objects, whether the key is held, and the step count."""

    agent: Int[Array, "*batch"]
    cell: Int[Array, "*batch objects"]
    present: Bool[Array, "*batch objects"]
    has_key: Bool[Array, "*batch"]
    time: Int[Array, "*batch"]


class Draws(NamedTuple):
    """The uniform random numbers of one step.

    Attributes:
      event: decide whether each object walks or respawns.
      choice: decide each object's move or respawn cell.
      slip: decides whether the action is replaced.
      slip_action: decides by which.
      end: decides whether touching terminates the episode.
    """

    event: Float[Array, "objects"]
    choice: Float[Array, "objects"]
    slip: Float[Array, ""]
    slip_action: Float[Array, ""]
    end: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class GridWorld:
    """The dynamics of all grid-worlds of one size.

    The observation is float32 `[height, width, 2 + kinds (+ 2)]` of zeros and ones: the
    agent, the walls, the objects of each kind, and, with doors, a plane of ones once the key
    is held and the doors. Actions, with `"orthogonal"` moves: stay, up, right, down, left;
    with `"king"` moves also the diagonals, clockwise from up-right. An agent that moves into
    a wall or out of the grid stays. A diagonal move needs only its target free.

    In one step the agent moves and touches the objects in its cell. Then the other objects
    walk (one that walks into the agent is touched), and absent ones may respawn, never in
    the cell of the agent or of another object. Touching may *terminate* the episode; at the
    horizon it is *truncated* (the discount stays 1).

    Attributes:
      height: of the grid, in cells.
      width: of the grid, in cells.
      max_objects: of a task.
      kinds: observation planes for objects.
      moves: `"orthogonal"` (5 actions) or `"king"` (9 actions).
      doors: whether there are keys and doors, and planes that show them.

    Raises:
      ValueError: on sizes below 1, on more kinds than fit in the observation's bit mask,
        or on unknown moves.
    """

    height: Count
    width: Count
    max_objects: Count
    kinds: Count
    moves: str = "orthogonal"
    doors: bool = False

    def __post_init__(self):
        require_ranges(self, "GridWorld.")
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
        draws = self._draw(key)
        state, contact = self.advance(task, state, action, draws)
        reward, terminated = _contact_outcome(task, contact, draws.end)
        return state, transition(
            self._observe(task, state),
            reward,
            terminated=terminated,
            truncated=state.time >= task.horizon,
        )

    def advance(
        self, task: GridWorldTask, state: GridWorldState, action: Int[Array, ""], draws: Draws
    ) -> tuple[GridWorldState, Bool[Array, "objects"]]:
        """Return the next state, and which objects are touched on the way."""
        agent = self._move_agent(task, state, action, draws)
        touched = state.present & (state.cell == agent)
        remaining = state.present & ~touched
        cell, respawned = self._move_objects(task, state, agent, remaining, draws)
        walked_into = remaining & (cell == agent)
        contact = touched | walked_into
        has_key = state.has_key
        if self.doors:
            has_key = has_key | jnp.any(contact & task.key)
        present = (remaining & ~walked_into) | respawned
        state = GridWorldState(
            agent=agent, cell=cell, present=present, has_key=has_key, time=state.time + 1
        )
        return state, contact

    def neighbours(self, moves: tuple[Cell, ...]) -> Int[Array, "cells moves"]:
        """Return the cell that each move leads to; see `mazes.neighbour_table`."""
        return jnp.asarray(neighbour_table(self.height, self.width, moves))

    def _draw(self, key: PRNGKeyArray) -> Draws:
        n = self.max_objects
        uniforms = jax.random.uniform(key, (2 * n + 3,), jnp.float32)
        event, choice = uniforms[:n], uniforms[n : 2 * n]
        return Draws(event, choice, uniforms[2 * n], uniforms[2 * n + 1], uniforms[2 * n + 2])

    def _move_agent(
        self, task: GridWorldTask, state: GridWorldState, action: Int[Array, ""], draws: Draws
    ) -> Int[Array, ""]:
        """Return the agent's next cell."""
        moves = MOVES[self.moves]
        action = jnp.asarray(action, jnp.int32)
        action = jnp.where(draws.slip < task.slip, _scale(draws.slip_action, len(moves)), action)
        closed = task.walls
        if self.doors:
            closed = closed | (task.doors & ~state.has_key)
        return _move(self.neighbours(moves), closed, state.agent, action)

    def _move_objects(
        self,
        task: GridWorldTask,
        state: GridWorldState,
        agent: Int[Array, ""],
        remaining: Bool[Array, "objects"],
        draws: Draws,
    ) -> tuple[Int[Array, "objects"], Bool[Array, "objects"]]:
        """Let present objects walk and absent ones respawn, where their new cell is free.

        `agent` is its cell after its move; `remaining` objects are present and not touched by it.

        Returns:
          The objects' next cells, and which of them respawn.
        """
        walks = remaining & (draws.event < task.walk)
        respawns = ~state.present & task.used & (draws.event < task.respawn)
        walk_cell = _move(
            self.neighbours(ORTHOGONAL[1:]),
            task.walls | task.doors if self.doors else task.walls,
            state.cell,
            _scale(draws.choice, 4),
        )
        random_cell = task.spawn_cells[_scale(draws.choice, task.num_spawn_cells)]
        respawn_cell = jnp.where(task.random, random_cell, task.cell)
        now = jnp.where(remaining, state.cell, -1)
        proposed = jnp.where(walks, walk_cell, jnp.where(respawns, respawn_cell, now))
        conflicts = _conflicts(proposed, now)
        respawns = respawns & ~conflicts & (proposed != agent)
        return jnp.where((walks & ~conflicts) | respawns, proposed, state.cell), respawns

    def _observe(
        self, task: GridWorldTask, state: GridWorldState
    ) -> Float[Array, "height width planes"]:
        # One bit per plane, so that XLA fuses everything into one pass over the grid.
        cells = jnp.arange(self.num_cells, dtype=jnp.int32)
        bits = (cells == state.agent).astype(jnp.int32) | (task.walls.astype(jnp.int32) << 1)
        kind_bit = jnp.where(state.present, jnp.int32(4) << task.kind, 0)
        for i in range(self.max_objects):
            bits = bits | jnp.where(cells == state.cell[i], kind_bit[i], 0)
        if self.doors:
            bits = bits | (state.has_key.astype(jnp.int32) << (2 + self.kinds))
            bits = bits | (task.doors.astype(jnp.int32) << (3 + self.kinds))
        planes = (bits[:, None] >> jnp.arange(self.num_planes, dtype=jnp.int32)[None]) & 1
        return planes.astype(jnp.float32).reshape(self.height, self.width, self.num_planes)


def _scale(uniform: Float[Array, "*n"], number: chex.Numeric) -> Int[Array, "*n"]:
    """Map uniforms of [0, 1) to integers of [0, number); exact as `number` is far below 2^23."""
    return jnp.floor(uniform * jnp.asarray(number, jnp.float32)).astype(jnp.int32)


def _move(
    neighbours: Int[Array, "cells moves"],
    closed: Bool[Array, "cells"],
    cell: Int[Array, "*n"],
    move: Int[Array, "*n"],
) -> Int[Array, "*n"]:
    target = neighbours[cell, move]
    return jnp.where(closed[target], cell, target)


def _contact_outcome(
    task: GridWorldTask, contact: Bool[Array, "objects"], end: Float[Array, ""]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return the step's reward and whether it terminates the episode.

    Each touched object terminates the episode independently.
    """
    reward = task.step_reward + jnp.sum(jnp.where(contact, task.reward, 0.0))
    survival = jnp.prod(jnp.where(contact, 1.0 - task.termination, 1.0))
    return reward, end < 1.0 - survival


def _distinct_cells(task: GridWorldTask, uniforms: Float[Array, "draws"]) -> Int[Array, "draws"]:
    """Draw spawn cells without replacement.

    Draw `i` picks the `pick[i]`-th of the cells that the earlier draws left over. That rank
    becomes an index into all cells by undoing the removals, latest first (the decoding of a
    Lehmer code): no sorting and one random number per draw, since streams reset at every
    step. Draws beyond the number of cells are arbitrary; `make_task` leaves them unused.
    """
    order = jnp.arange(uniforms.shape[0], dtype=jnp.int32)
    left = jnp.maximum(task.num_spawn_cells - order, 1)
    pick = _scale(uniforms, left)
    index = pick
    for i in reversed(range(uniforms.shape[0] - 1)):
        later = index[i + 1 :]
        index = index.at[i + 1 :].set(later + (later >= pick[i]).astype(later.dtype))
    return task.spawn_cells[jnp.minimum(index, task.num_spawn_cells - 1)]


def _conflicts(
    proposed: Int[Array, "objects"], now: Int[Array, "objects"]
) -> Bool[Array, "objects"]:
    """Return which proposed cells another object holds or also proposes (-1 is no cell)."""
    same = (proposed[:, None] == proposed[None]) | (proposed[:, None] == now[None])
    others = ~np.eye(proposed.shape[0], dtype=bool)
    return jnp.any(same & others, axis=1) & (proposed >= 0)

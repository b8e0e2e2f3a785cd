"""Build the arrays of a grid-world from a maze and a list of objects."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Shaped

from disco_common.ranges import AT_LEAST_1, FRACTION, Fraction, require_ranges
from environments.errors import require
from environments.suites.grid_worlds import mazes
from environments.suites.grid_worlds.dynamics import GridWorld, GridWorldTask
from environments.suites.grid_worlds.mazes import Cell


@dataclasses.dataclass(frozen=True)
class Object:
    """Something to touch: LPG's [reward, termination, respawn], and beyond.

    Attributes:
      reward: for touching it.
      termination: probability that touching it terminates the episode.
      respawn: probability per step that it reappears.
      kind: observation plane, from 0.
      cell: (row, column), or None for a random one in every episode.
      walk: probability per step of walking to a random neighbouring cell.
      key: whether it opens the doors.
    """

    reward: float
    termination: Fraction = 0.0
    respawn: Fraction = 0.0
    kind: int = 0
    cell: Cell | None = None
    walk: Fraction = 0.0
    key: bool = False


def make_task(
    dynamics: GridWorld,
    maze: Bool[np.ndarray, "h w"],
    objects: Sequence[Object],
    *,
    horizon: int,
    start: Cell | None = None,
    doors: Sequence[Cell] = (),
    spawn: Bool[np.ndarray, "h w"] | None = None,
    slip: float = 0.0,
    step_reward: float = 0.0,
) -> GridWorldTask:
    """Build a task's arrays.

    Args:
      dynamics: whose grid the maze must fit in; it is put in the upper left corner.
      maze: True at walls.
      objects: at most `dynamics.max_objects`.
      horizon: steps after which an episode is truncated.
      start: the agent's first cell, or None for a random one in every episode.
      doors: cells that need a key.
      spawn: where the agent and objects may appear at random; by default all cells without a
        wall, a door, a fixed object or the fixed start.
      slip: probability that an action is replaced by a random one.
      step_reward: added to every reward.

    Raises:
      ValueError: if something does not fit, lies in a wall, shares a cell, or is not a
        probability, saying what was found and expected.
    """
    _check(dynamics, maze, objects, horizon, slip, has_doors=bool(doors))
    padding = ((0, dynamics.height - maze.shape[0]), (0, dynamics.width - maze.shape[1]))
    walls = np.pad(maze, padding, constant_values=True)
    free = _free_cells(walls, objects, doors, start)
    if spawn is not None:
        free &= np.pad(spawn, padding)
    spawn_cells = np.flatnonzero(free)
    num_random = sum(thing.cell is None for thing in objects)
    require(
        len(spawn_cells) > num_random or not (num_random or start is None),
        f"Expected more than {num_random} cells for random placement, found {len(spawn_cells)}.",
    )
    closed = np.isin(np.arange(walls.size), [_number(cell, dynamics.width) for cell in doors])
    return GridWorldTask(
        walls=jnp.asarray(walls.ravel()),
        doors=jnp.asarray(closed),
        start=jnp.int32(_number(start, dynamics.width)),
        random_start=jnp.bool_(start is None),
        spawn_cells=jnp.asarray(
            np.pad(spawn_cells, (0, dynamics.num_cells - len(spawn_cells))), jnp.int32
        ),
        num_spawn_cells=jnp.int32(max(1, len(spawn_cells))),
        **_object_arrays(dynamics, objects),
        slip=jnp.float32(slip),
        step_reward=jnp.float32(step_reward),
        horizon=jnp.int32(horizon),
    )


def make_fixed_task(
    dynamics: GridWorld,
    rng: np.random.Generator,
    maze: Bool[np.ndarray, "h w"],
    goods: Sequence[Object],
    hazards: Sequence[Object],
    *,
    horizon: int,
    slip: float = 0.0,
) -> GridWorldTask:
    """Build a task whose start and object cells are drawn once, by `mazes.place`.

    The goods can be reached from the start around the hazards.

    Raises:
      ValueError: if there is no such placement, or as `make_task`.
    """
    start, good_cells, hazard_cells = mazes.place(rng, maze, len(goods), len(hazards))
    objects = [
        dataclasses.replace(thing, cell=cell)
        for thing, cell in zip([*goods, *hazards], good_cells + hazard_cells, strict=True)
    ]
    return make_task(dynamics, maze, objects, horizon=horizon, start=start, slip=slip)


def _check(
    dynamics: GridWorld,
    maze: Bool[np.ndarray, "h w"],
    objects: Sequence[Object],
    horizon: int,
    slip: float,
    *,
    has_doors: bool,
) -> None:
    """Refuse what does not fit the dynamics or is no probability."""
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
    AT_LEAST_1.require_value("horizon", horizon)
    FRACTION.require_value("slip", slip)
    for thing in objects:
        require_ranges(thing)
        require(
            0 <= thing.kind < dynamics.kinds,
            f"Expected an object kind below {dynamics.kinds}, found {thing.kind}.",
        )
    require(
        dynamics.doors or not (has_doors or any(thing.key for thing in objects)),
        "Keys and doors need dynamics with doors=True.",
    )


def _free_cells(
    walls: Bool[np.ndarray, "height width"],
    objects: Sequence[Object],
    doors: Sequence[Cell],
    start: Cell | None,
) -> Bool[np.ndarray, "height width"]:
    """Return the cells without a wall, a fixed object, a door or the fixed start.

    Raises:
      ValueError: if one of these lies in a wall, outside the grid or in another one's cell.
    """
    free = ~walls
    fixed = [(thing.cell, "an object") for thing in objects if thing.cell is not None]
    fixed += [(cell, "a door") for cell in doors]
    fixed += [(start, "the start")] if start is not None else []
    for cell, what in fixed:
        inside = 0 <= cell[0] < walls.shape[0] and 0 <= cell[1] < walls.shape[1]
        require(
            inside and bool(free[cell]),
            f"Expected a free cell of its own for {what}, found {cell}.",
        )
        free[cell] = False
    return free


def _object_arrays(
    dynamics: GridWorld, objects: Sequence[Object]
) -> dict[str, Shaped[Array, "objects"]]:
    """Return the fields of `GridWorldTask` that have one entry per object."""

    def column(values: Iterable[Any], dtype: Any) -> Shaped[Array, "objects"]:
        padded = np.zeros((dynamics.max_objects,), dtype)
        padded[: len(objects)] = list(values)
        return jnp.asarray(padded)

    # `dynamics._distinct_cells` draws for the agent, then for objects in order: random ones first.
    objects = sorted(objects, key=lambda thing: thing.cell is not None)
    cells = (_number(thing.cell, dynamics.width) for thing in objects)
    floats = {
        name: column((getattr(thing, name) for thing in objects), np.float32)
        for name in ("reward", "termination", "respawn", "walk")
    }
    return floats | {
        "used": column((True for _ in objects), bool),
        "kind": column((thing.kind for thing in objects), np.int32),
        "random": column((thing.cell is None for thing in objects), bool),
        "cell": column(cells, np.int32),
        "key": column((thing.key for thing in objects), bool),
    }


def _number(cell: Cell | None, width: int) -> int:
    """Return the number of a cell, row by row; 0 for none."""
    return 0 if cell is None else cell[0] * width + cell[1]

"""`grid_heldout`: tasks on which rules are judged that were discovered on `grid57`.

Grid-worlds of other sizes, horizons, reward scales and object mixes than any discovery
task's; then mechanics that no discovery task has: keys and doors, moving objects,
slippery floors, Catch, DeepSea and delayed chains. All grid-worlds share `DYNAMICS`, so the
suite is four compiled programs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from environments.base import Environment
from environments.suites import small_tasks
from environments.suites.grid_worlds import (
    GridWorld,
    GridWorldTask,
    Object,
    make_fixed_task,
    make_task,
    mazes,
)

SEED = 1957
DYNAMICS = GridWorld(height=10, width=10, max_objects=8, kinds=3, doors=True)
DEEP_SEA = small_tasks.DeepSea(max_size=7)

GOOD, HAZARD, OTHER = range(3)  # The kinds of objects.


def _good(respawn: float, reward: float = 1.0, termination: float = 0.0, **more: Any) -> Object:
    return Object(reward, termination, respawn, GOOD, **more)


def _hazard(termination: float, respawn: float, reward: float = -1.0, **more: Any) -> Object:
    return Object(reward, termination, respawn, HAZARD, **more)


_GOAL, _TRAP = _good(0.0, termination=1.0), _hazard(1.0, 0.0)  # Both end the episode.


def _at(cell: mazes.Cell, thing: Object) -> Object:
    return dataclasses.replace(thing, cell=cell)


def _task(
    maze: mazes.Maze, objects: Sequence[Object], *, placed_by: int | None = None, **settings: Any
) -> Callable[[], GridWorldTask]:
    """Return a function that builds a task; `placed_by` is the number that cells are drawn by."""

    def build() -> GridWorldTask:
        if placed_by is None:
            return make_task(DYNAMICS, maze, objects, **settings)
        goods = [thing for thing in objects if thing.kind == GOOD]
        hazards = [thing for thing in objects if thing.kind != GOOD]
        rng = np.random.default_rng([SEED, placed_by])
        return make_fixed_task(DYNAMICS, rng, maze, goods, hazards, **settings)

    return build


_RNG = np.random.default_rng(SEED)
_FOUR_ROOMS = mazes.four_rooms(_RNG, 10, 10)
_BARS = mazes.bars(_RNG, 10, 10)

# S start, K key, D door, G good, H hazard, s where random objects and agents may start.
_KEY_DOOR = """
    S...#...
    ....#...
    ..K.D..G
    ....#...
    ....#...
"""
_KEY_DOOR_RANDOM = """
    ssss#....
    ssss#....
    ssss#..G.
    ssssD....
    ssss#....
    ssss#....
"""
_CLIFF = """
    ......
    ......
    SHHHHG
"""
_ZIGZAG = """
    S.........
    #########.
    ..........
    .#########
    .........G
"""

# The mechanics of discovery tasks, with other sizes, scales and mixes.
_FAMILIAR = {
    "tiny_dense_fixed": _task(
        mazes.room(4, 4), [*2 * [_good(0.3)], _hazard(0.2, 0.2)], horizon=40, placed_by=0
    ),
    "tiny_sparse_random": _task(mazes.room(3, 4), [_GOAL, _TRAP], horizon=15),
    "corridor_random": _task(mazes.room(1, 10), [_good(0.5)], horizon=60),
    "large_dense_fixed": _task(
        _BARS, [*4 * [_good(0.1)], *3 * [_hazard(0.3, 0.3)]], horizon=120, placed_by=3
    ),
    "large_dense_random": _task(mazes.room(10, 10), 6 * [_good(0.2)], horizon=120),
    "four_rooms_sparse_fixed": _task(_FOUR_ROOMS, [_GOAL, _TRAP], horizon=80, placed_by=5),
    "large_rewards_random": _task(
        mazes.room(4, 10),
        [*2 * [_good(0.2, reward=10.0)], *2 * [_hazard(0.1, 0.2, reward=-10.0)]],
        horizon=60,
    ),
    "small_rewards_fixed": _task(
        mazes.room(10, 4),
        [*3 * [_good(0.2, reward=0.1)], *2 * [_hazard(0.1, 0.5, reward=-0.1)]],
        horizon=60,
        placed_by=7,
    ),
    # Both goods end the episode: a small one nearby, a large one far away.
    "near_or_far": _task(
        mazes.room(5, 10),
        [
            Object(0.2, 1.0, 0.0, OTHER, cell=(2, 3)),
            _good(0.0, reward=3.0, termination=1.0, cell=(2, 9)),
        ],
        horizon=60,
        start=(2, 2),
    ),
    "cliff": _task(
        mazes.parse(_CLIFF),
        [
            _at(mazes.find(_CLIFF, "G")[0], _GOAL),
            *(_hazard(1.0, 0.0, reward=-0.5, cell=cell) for cell in mazes.find(_CLIFF, "H")),
        ],
        horizon=40,
        start=mazes.find(_CLIFF, "S")[0],
    ),
    "costly_steps": _task(mazes.room(4, 5), [_GOAL], horizon=40, step_reward=-0.05),
    # Small rewards mark the path, a large one its end.
    "zigzag": _task(
        mazes.parse(_ZIGZAG),
        [
            *(Object(0.25, 0.0, 0.0, OTHER, cell=cell) for cell in ((0, 5), (2, 7), (2, 2))),
            _good(0.0, reward=2.0, termination=1.0, cell=mazes.find(_ZIGZAG, "G")[0]),
        ],
        horizon=120,
        start=mazes.find(_ZIGZAG, "S")[0],
    ),
}
# Mechanics that no discovery task has.
_NEW = {
    "key_door": _task(
        mazes.parse(_KEY_DOOR),
        [
            Object(0.1, kind=OTHER, cell=mazes.find(_KEY_DOOR, "K")[0], key=True),
            _at(mazes.find(_KEY_DOOR, "G")[0], _GOAL),
        ],
        horizon=80,
        start=mazes.find(_KEY_DOOR, "S")[0],
        doors=mazes.find(_KEY_DOOR, "D"),
    ),
    "key_door_random": _task(
        mazes.parse(_KEY_DOOR_RANDOM),
        [
            Object(0.1, kind=OTHER, key=True),
            _at(mazes.find(_KEY_DOOR_RANDOM, "G")[0], _GOAL),
        ],
        horizon=80,
        doors=mazes.find(_KEY_DOOR_RANDOM, "D"),
        spawn=mazes.mask(_KEY_DOOR_RANDOM, "s"),
    ),
    "moving_hazards": _task(
        mazes.room(6, 6), [*2 * [_good(0.3)], *3 * [_hazard(0.5, 1.0, walk=0.5)]], horizon=60
    ),
    "moving_goods": _task(mazes.room(5, 5), 2 * [_good(1.0, walk=0.4)], horizon=60),
    "slippery_fixed": _task(
        mazes.room(6, 7),
        [*2 * [_good(0.2)], *2 * [_hazard(0.5, 0.5)]],
        horizon=60,
        slip=0.3,
        placed_by=16,
    ),
    "slippery_random": _task(mazes.room(5, 5), [_GOAL, _TRAP], horizon=40, slip=0.25),
}
_GRID_WORLDS = _FAMILIAR | _NEW
_SEAS = {"deep_sea_5": 5, "deep_sea_7": 7}
_CHAINS = {f"chain_{name}": f"delayed_chain/{name}" for name in small_tasks.CHAINS}

NAMES = (*_GRID_WORLDS, "catch_8x8", *_SEAS, *_CHAINS)
SUITES = {"grid_heldout": tuple(f"grid_heldout/{name}" for name in NAMES)}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `grid_heldout/key_door`."""
    task = name.removeprefix("grid_heldout/")
    if task in _GRID_WORLDS:
        return Environment(name, DYNAMICS, _GRID_WORLDS[task]())
    if task in _SEAS:
        return Environment(name, DEEP_SEA, small_tasks.make_deep_sea(DEEP_SEA, _SEAS[task]))
    if task in _CHAINS:
        return dataclasses.replace(small_tasks.make_delayed_chain(_CHAINS[task]), name=name)
    return Environment(name, small_tasks.Catch(rows=8, columns=8))

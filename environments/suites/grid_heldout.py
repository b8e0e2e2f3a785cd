"""`grid_heldout`: tasks on which rules are judged that were discovered on `grid57`.

Grid-worlds of other sizes, horizons, reward scales and object mixes than any discovery
task's; then mechanics that no discovery task has: keys and doors, moving objects,
slippery floors, Catch, DeepSea and delayed chains. All grid-worlds share `DYNAMICS`, so the
suite is four compiled programs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from environments.base import Environment
from environments.protocols import SuiteProtocol
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


_drawn = partial(make_task, DYNAMICS)


def _placed(
    number: int, maze: mazes.Maze, objects: Sequence[Object], **settings: Any
) -> GridWorldTask:
    """Build a task whose cells of the start and all objects are drawn once, from this number."""
    goods = [thing for thing in objects if thing.kind == GOOD]
    hazards = [thing for thing in objects if thing.kind != GOOD]
    rng = np.random.default_rng([SEED, number])
    return make_fixed_task(DYNAMICS, rng, maze, goods, hazards, **settings)


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
    "tiny_dense_fixed": partial(
        _placed,
        0,
        mazes.room(4, 4),
        (*[Object(1.0, 0.0, 0.3, GOOD)] * 2, Object(-1.0, 0.2, 0.2, HAZARD)),
        horizon=40,
    ),
    "tiny_sparse_random": partial(
        _drawn,
        mazes.room(3, 4),
        (Object(1.0, 1.0, 0.0, GOOD), Object(-1.0, 1.0, 0.0, HAZARD)),
        horizon=15,
    ),
    "corridor_random": partial(
        _drawn, mazes.room(1, 10), (Object(1.0, 0.0, 0.5, GOOD),), horizon=60
    ),
    "large_dense_fixed": partial(
        _placed,
        3,
        _BARS,
        (*[Object(1.0, 0.0, 0.1, GOOD)] * 4, *[Object(-1.0, 0.3, 0.3, HAZARD)] * 3),
        horizon=120,
    ),
    "large_dense_random": partial(
        _drawn, mazes.room(10, 10), (Object(1.0, 0.0, 0.2, GOOD),) * 6, horizon=120
    ),
    "four_rooms_sparse_fixed": partial(
        _placed,
        5,
        _FOUR_ROOMS,
        (Object(1.0, 1.0, 0.0, GOOD), Object(-1.0, 1.0, 0.0, HAZARD)),
        horizon=80,
    ),
    "large_rewards_random": partial(
        _drawn,
        mazes.room(4, 10),
        (*[Object(10.0, 0.0, 0.2, GOOD)] * 2, *[Object(-10.0, 0.1, 0.2, HAZARD)] * 2),
        horizon=60,
    ),
    "small_rewards_fixed": partial(
        _placed,
        7,
        mazes.room(10, 4),
        (*[Object(0.1, 0.0, 0.2, GOOD)] * 3, *[Object(-0.1, 0.1, 0.5, HAZARD)] * 2),
        horizon=60,
    ),
    # Both goods end the episode: a small one nearby, a large one far away.
    "near_or_far": partial(
        _drawn,
        mazes.room(5, 10),
        (Object(0.2, 1.0, 0.0, OTHER, cell=(2, 3)), Object(3.0, 1.0, 0.0, GOOD, cell=(2, 9))),
        horizon=60,
        start=(2, 2),
    ),
    "cliff": partial(
        _drawn,
        mazes.parse(_CLIFF),
        (
            Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_CLIFF, "G")[0]),
            *[Object(-0.5, 1.0, 0.0, HAZARD, cell=cell) for cell in mazes.find(_CLIFF, "H")],
        ),
        horizon=40,
        start=mazes.find(_CLIFF, "S")[0],
    ),
    "costly_steps": partial(
        _drawn,
        mazes.room(4, 5),
        (Object(1.0, 1.0, 0.0, GOOD),),
        horizon=40,
        step_reward=-0.05,
    ),
    # Small rewards mark the path, a large one its end.
    "zigzag": partial(
        _drawn,
        mazes.parse(_ZIGZAG),
        (
            Object(0.25, 0.0, 0.0, OTHER, cell=(0, 5)),
            Object(0.25, 0.0, 0.0, OTHER, cell=(2, 7)),
            Object(0.25, 0.0, 0.0, OTHER, cell=(2, 2)),
            Object(2.0, 1.0, 0.0, GOOD, cell=mazes.find(_ZIGZAG, "G")[0]),
        ),
        horizon=120,
        start=mazes.find(_ZIGZAG, "S")[0],
    ),
}
# Mechanics that no discovery task has.
_NEW = {
    "key_door": partial(
        _drawn,
        mazes.parse(_KEY_DOOR),
        (
            Object(0.1, kind=OTHER, cell=mazes.find(_KEY_DOOR, "K")[0], key=True),
            Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_KEY_DOOR, "G")[0]),
        ),
        horizon=80,
        start=mazes.find(_KEY_DOOR, "S")[0],
        doors=mazes.find(_KEY_DOOR, "D"),
    ),
    "key_door_random": partial(
        _drawn,
        mazes.parse(_KEY_DOOR_RANDOM),
        (
            Object(0.1, kind=OTHER, key=True),
            Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_KEY_DOOR_RANDOM, "G")[0]),
        ),
        horizon=80,
        doors=mazes.find(_KEY_DOOR_RANDOM, "D"),
        spawn=mazes.mask(_KEY_DOOR_RANDOM, "s"),
    ),
    "moving_hazards": partial(
        _drawn,
        mazes.room(6, 6),
        (
            *[Object(1.0, 0.0, 0.3, GOOD)] * 2,
            *[Object(-1.0, 0.5, 1.0, HAZARD, walk=0.5)] * 3,
        ),
        horizon=60,
    ),
    "moving_goods": partial(
        _drawn, mazes.room(5, 5), (Object(1.0, 0.0, 1.0, GOOD, walk=0.4),) * 2, horizon=60
    ),
    "slippery_fixed": partial(
        _placed,
        16,
        mazes.room(6, 7),
        (*[Object(1.0, 0.0, 0.2, GOOD)] * 2, *[Object(-1.0, 0.5, 0.5, HAZARD)] * 2),
        horizon=60,
        slip=0.3,
    ),
    "slippery_random": partial(
        _drawn,
        mazes.room(5, 5),
        (Object(1.0, 1.0, 0.0, GOOD), Object(-1.0, 1.0, 0.0, HAZARD)),
        horizon=40,
        slip=0.25,
    ),
}
_GRID_WORLDS = _FAMILIAR | _NEW
_SEAS = {"deep_sea_5": 5, "deep_sea_7": 7}
_CHAINS = {f"chain_{name}": f"delayed_chain/{name}" for name in small_tasks.CHAINS}

NAMES = (*_GRID_WORLDS, "catch_8x8", *_SEAS, *_CHAINS)
SUITES = {"grid_heldout": tuple(f"grid_heldout/{name}" for name in NAMES)}
PROTOCOLS = {"grid_heldout": SuiteProtocol()}


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

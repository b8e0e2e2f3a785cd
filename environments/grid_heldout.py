"""`grid_heldout`: tasks to judge rules on that were discovered on `grid57`.

Grid-worlds of other sizes, horizons, reward scales and object mixes than any discovery
task's, then mechanics that no discovery task has: keys and doors, objects that move,
slippery floors, Catch, DeepSea and delayed chains. All grid-worlds share `DYNAMICS`, so the
suite is four compiled programs.
"""

import functools

import numpy as np

from environments import catch, deep_sea, delayed_chain, mazes
from environments.base import Environment
from environments.grid_world import GridWorld, GridWorldTask, Object, make_task

SEED = 1957
DYNAMICS = GridWorld(height=10, width=10, max_objects=8, kinds=3, doors=True)
DEEP_SEA = deep_sea.DeepSea(max_size=7)

GOOD, HAZARD, OTHER = range(3)  # the kinds of objects

# S start, K key, D door, G good, H hazard, s where random things may start.
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


def _fixed(
    index: int,
    maze: np.ndarray,
    goods: list[Object],
    others: list[Object],
    *,
    horizon: int,
    slip: float = 0.0,
) -> GridWorldTask:
    """A task whose positions are drawn once, from the task's own seed."""
    rng = np.random.default_rng([SEED, index])
    start, good_cells, other_cells = mazes.place(rng, maze, len(goods), len(others))
    objects = [
        Object(thing.reward, thing.termination, thing.respawn, thing.kind, cell)
        for thing, cell in zip(goods + others, good_cells + other_cells, strict=True)
    ]
    return make_task(DYNAMICS, maze, objects, horizon=horizon, start=start, slip=slip)


def _random(maze: np.ndarray, objects: list[Object], **settings) -> GridWorldTask:
    """A task whose positions are drawn for every episode."""
    return make_task(DYNAMICS, maze, objects, **settings)


def _grid_worlds() -> dict[str, GridWorldTask]:
    """What discovery tasks have, otherwise sized, scaled and mixed."""
    rng = np.random.default_rng(SEED)
    large = mazes.four_rooms(rng, 10, 10)
    pillars = mazes.bars(rng, 10, 10)
    zigzag = mazes.parse(_ZIGZAG)
    return {
        "tiny_dense_fixed": _fixed(
            0,
            mazes.room(4, 4),
            [Object(1.0, 0.0, 0.3, GOOD)] * 2,
            [Object(-1.0, 0.2, 0.2, HAZARD)],
            horizon=40,
        ),
        "tiny_sparse_random": _random(
            mazes.room(3, 4),
            [Object(1.0, 1.0, 0.0, GOOD), Object(-1.0, 1.0, 0.0, HAZARD)],
            horizon=15,
        ),
        "corridor_random": _random(mazes.room(1, 10), [Object(1.0, 0.0, 0.5, GOOD)], horizon=60),
        "large_dense_fixed": _fixed(
            3,
            pillars,
            [Object(1.0, 0.0, 0.1, GOOD)] * 4,
            [Object(-1.0, 0.3, 0.3, HAZARD)] * 3,
            horizon=120,
        ),
        "large_dense_random": _random(
            mazes.room(10, 10), [Object(1.0, 0.0, 0.2, GOOD)] * 6, horizon=120
        ),
        "four_rooms_sparse_fixed": _fixed(
            5, large, [Object(1.0, 1.0, 0.0, GOOD)], [Object(-1.0, 1.0, 0.0, HAZARD)], horizon=80
        ),
        "large_rewards_random": _random(
            mazes.room(4, 10),
            [*[Object(10.0, 0.0, 0.2, GOOD)] * 2, *[Object(-10.0, 0.1, 0.2, HAZARD)] * 2],
            horizon=60,
        ),
        "small_rewards_fixed": _fixed(
            7,
            mazes.room(10, 4),
            [Object(0.1, 0.0, 0.2, GOOD)] * 3,
            [Object(-0.1, 0.1, 0.5, HAZARD)] * 2,
            horizon=60,
        ),
        # A small reward nearby that ends the episode, a large one far away that does too.
        "near_or_far": make_task(
            DYNAMICS,
            mazes.room(5, 10),
            [
                Object(0.2, 1.0, 0.0, OTHER, cell=(2, 3)),
                Object(3.0, 1.0, 0.0, GOOD, cell=(2, 9)),
            ],
            horizon=60,
            start=(2, 2),
        ),
        "cliff": make_task(
            DYNAMICS,
            mazes.parse(_CLIFF),
            [
                Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_CLIFF, "G")[0]),
                *[Object(-0.5, 1.0, 0.0, HAZARD, cell=c) for c in mazes.find(_CLIFF, "H")],
            ],
            horizon=40,
            start=mazes.find(_CLIFF, "S")[0],
        ),
        "costly_steps": _random(
            mazes.room(4, 5), [Object(1.0, 1.0, 0.0, GOOD)], horizon=40, step_reward=-0.05
        ),
        # The way is marked by small rewards, the end by a large one.
        "zigzag": make_task(
            DYNAMICS,
            zigzag,
            [
                Object(0.25, 0.0, 0.0, OTHER, cell=(0, 5)),
                Object(0.25, 0.0, 0.0, OTHER, cell=(2, 7)),
                Object(0.25, 0.0, 0.0, OTHER, cell=(2, 2)),
                Object(2.0, 1.0, 0.0, GOOD, cell=mazes.find(_ZIGZAG, "G")[0]),
            ],
            horizon=120,
            start=mazes.find(_ZIGZAG, "S")[0],
        ),
    }


def _new_mechanics() -> dict[str, GridWorldTask]:
    """Grid-worlds that work in ways that no discovery task's does."""
    key = Object(0.1, kind=OTHER, cell=mazes.find(_KEY_DOOR, "K")[0], key=True)
    return {
        "key_door": make_task(
            DYNAMICS,
            mazes.parse(_KEY_DOOR),
            [key, Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_KEY_DOOR, "G")[0])],
            horizon=80,
            start=mazes.find(_KEY_DOOR, "S")[0],
            doors=mazes.find(_KEY_DOOR, "D"),
        ),
        "key_door_random": make_task(
            DYNAMICS,
            mazes.parse(_KEY_DOOR_RANDOM),
            [
                Object(0.1, kind=OTHER, key=True),
                Object(1.0, 1.0, 0.0, GOOD, cell=mazes.find(_KEY_DOOR_RANDOM, "G")[0]),
            ],
            horizon=80,
            doors=mazes.find(_KEY_DOOR_RANDOM, "D"),
            spawn=_mask(_KEY_DOOR_RANDOM, "s"),
        ),
        "moving_hazards": _random(
            mazes.room(6, 6),
            [
                *[Object(1.0, 0.0, 0.3, GOOD)] * 2,
                *[Object(-1.0, 0.5, 1.0, HAZARD, walk=0.5)] * 3,
            ],
            horizon=60,
        ),
        "moving_goods": _random(
            mazes.room(5, 5), [Object(1.0, 0.0, 1.0, GOOD, walk=0.4)] * 2, horizon=60
        ),
        "slippery_fixed": _fixed(
            16,
            mazes.room(6, 7),
            [Object(1.0, 0.0, 0.2, GOOD)] * 2,
            [Object(-1.0, 0.5, 0.5, HAZARD)] * 2,
            horizon=60,
            slip=0.3,
        ),
        "slippery_random": _random(
            mazes.room(5, 5),
            [Object(1.0, 1.0, 0.0, GOOD), Object(-1.0, 1.0, 0.0, HAZARD)],
            horizon=40,
            slip=0.25,
        ),
    }


def _mask(text: str, mark: str) -> np.ndarray:
    mask = np.zeros_like(mazes.parse(text))
    for cell in mazes.find(text, mark):
        mask[cell] = True
    return mask


@functools.cache
def suite() -> tuple[Environment, ...]:
    """The held-out environments, named `"grid_heldout/…"`."""
    environments = [
        Environment(name=name, dynamics=DYNAMICS, task=task)
        for name, task in (_grid_worlds() | _new_mechanics()).items()
    ]
    environments.append(
        Environment(name="catch_8x8", dynamics=catch.Catch(rows=8, columns=8), task=())
    )
    environments += [
        Environment(
            name=f"deep_sea_{size}", dynamics=DEEP_SEA, task=deep_sea.make_task(DEEP_SEA, size)
        )
        for size in (5, 7)
    ]
    environments += [
        Environment(
            name=f"chain_{chain.name.removeprefix('delayed_chain/')}",
            dynamics=chain.dynamics,
            task=chain.task,
        )
        for chain in delayed_chain.suite()
    ]
    return tuple(
        Environment(name=f"grid_heldout/{e.name}", dynamics=e.dynamics, task=e.task)
        for e in environments
    )

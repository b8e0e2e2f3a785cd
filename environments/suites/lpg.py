"""`lpg`: the ten grid-worlds of "Discovering reinforcement learning algorithms".

Oh et al. (2020), arXiv 2007.08794, appendix: objects as [reward, termination, respawn],
moves to all eight neighbours, *tabular* tasks with fixed positions and *random* ones with
positions drawn for every episode. Here all share one grid and are observed as its planes;
rooms have no inner walls, and the tabular tasks' positions are drawn from a seed.
"""

import functools

import numpy as np

from environments.base import Environment
from environments.protocols import LPG, SuiteProtocol
from environments.suites.grid_worlds import (
    GridWorld,
    Object,
    make_fixed_task,
    make_task,
    mazes,
)

DYNAMICS = GridWorld(height=13, width=13, max_objects=7, kinds=3, moves="king")
SEED = 0

_DENSE = (
    *[Object(1.0, 0.0, 0.05, kind=0)] * 2,
    Object(-1.0, 0.5, 0.1, kind=1),
    Object(-1.0, 0.0, 0.5, kind=2),
)
_LONG_HORIZON = (
    *[Object(1.0, 0.0, 0.01, kind=0)] * 2,
    *[Object(-1.0, 0.5, 1.0, kind=1)] * 2,
)

# By name: (height, width), horizon, objects. Each object kind has its plane.
TASKS = {
    "tabular_dense": ((11, 11), 500, _DENSE),
    "tabular_sparse": ((13, 13), 50, (Object(1.0, 1.0, 0.0, 0), Object(-1.0, 1.0, 0.0, 1))),
    "tabular_long_horizon": ((11, 11), 1000, _LONG_HORIZON),
    "tabular_longer_horizon": (
        (7, 9),
        2000,
        (*[Object(1.0, 0.1, 0.01, 0)] * 2, *[Object(-1.0, 0.8, 1.0, 1)] * 5),
    ),
    "tabular_long_dense": ((11, 11), 2000, (Object(1.0, 0.0, 0.005, 0),) * 4),
    "random_dense": ((11, 11), 500, _DENSE),
    "random_long_horizon": ((11, 11), 1000, _LONG_HORIZON),
    "random_small": (
        (5, 7),
        500,
        (*[Object(1.0, 0.0, 0.05, 0)] * 2, *[Object(-1.0, 0.5, 0.1, 1)] * 2),
    ),
    "random_small_sparse": (
        (5, 7),
        50,
        (Object(1.0, 1.0, 1.0, 0), *[Object(-1.0, 1.0, 1.0, 1)] * 2),
    ),
    "random_very_dense": ((11, 11), 2000, (Object(1.0, 0.0, 1.0, 0),)),
}
SUITES = {"lpg": tuple(f"lpg/{name}" for name in TASKS)}
PROTOCOLS = {"lpg": SuiteProtocol(papers=(LPG,))}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `lpg/tabular_dense`."""
    size, horizon, objects = TASKS[name.removeprefix("lpg/")]
    maze = mazes.room(*size)
    if name.startswith("lpg/tabular"):
        rng = np.random.default_rng([SEED, SUITES["lpg"].index(name)])
        task = make_fixed_task(DYNAMICS, rng, maze, objects, [], horizon=horizon)
    else:
        task = make_task(DYNAMICS, maze, objects, horizon=horizon)
    return Environment(name=name, dynamics=DYNAMICS, params=task)

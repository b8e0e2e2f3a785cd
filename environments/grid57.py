"""`grid57`: the 57 grid-worlds that rules are discovered on.

The counterpart of the "57 grid-world tasks" of Oh et al. (2025), "Discovering
state-of-the-art reinforcement learning algorithms" (Methods), in the spirit of the ten
grid-world variants of LPG (arXiv 2007.08794): {dense, sparse, long horizon, longer horizon,
long dense} x {fixed, random positions}. Mazes, object counts, rewards, probabilities and
horizons vary, drawn once and for all from a fixed seed; all tasks share `DYNAMICS`.
"""

import functools
from collections.abc import Callable

import numpy as np

from environments import mazes
from environments.base import Environment
from environments.grid_world import GridWorld, Object, make_task

NUM_TASKS = 57
SEED = 57
DYNAMICS = GridWorld(height=9, width=9, max_objects=7, kinds=3)
SIZES = (5, 6, 7, 8, 9)

GOOD, HAZARD, NUISANCE = range(3)  # the kinds of objects


def _reward(rng: np.random.Generator) -> float:
    return float(rng.choice([0.5, 1.0]))


def _dense(rng: np.random.Generator) -> tuple[list[Object], int]:
    """A few goods that come back, a hazard that may end it, one that only costs."""
    respawn = float(rng.choice([0.05, 0.1]))
    goods = [Object(_reward(rng), 0.0, respawn, GOOD) for _ in range(rng.integers(1, 4))]
    hazards = [Object(-_reward(rng), 0.5, 0.1, HAZARD), Object(-_reward(rng), 0.0, 0.5, NUISANCE)]
    return goods + hazards, int(rng.choice([50, 75, 100]))


def _sparse(rng: np.random.Generator) -> tuple[list[Object], int]:
    """One good and some hazards, any of which ends the episode."""
    hazards = [Object(-_reward(rng), 1.0, 0.0, HAZARD) for _ in range(rng.integers(1, 3))]
    return [Object(1.0, 1.0, 0.0, GOOD), *hazards], int(rng.choice([20, 30, 50]))


def _long_horizon(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Goods that come back slowly, hazards that are always there."""
    goods = [Object(1.0, 0.0, 0.02, GOOD) for _ in range(rng.integers(2, 4))]
    hazards = [Object(-_reward(rng), 0.5, 1.0, HAZARD) for _ in range(2)]
    return goods + hazards, int(rng.choice([150, 200, 250]))


def _longer_horizon(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Goods that may end the episode, among many hazards that mostly do."""
    goods = [Object(1.0, 0.1, 0.05, GOOD) for _ in range(2)]
    hazards = [Object(-_reward(rng), 0.8, 1.0, HAZARD) for _ in range(rng.integers(3, 6))]
    return goods + hazards, int(rng.choice([300, 400, 500]))


def _long_dense(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Goods only, which come back very slowly."""
    goods = [Object(_reward(rng), 0.0, 0.01, GOOD) for _ in range(rng.integers(3, 6))]
    return goods, int(rng.choice([200, 300, 400]))


VARIANTS: dict[str, Callable[[np.random.Generator], tuple[list[Object], int]]] = {
    "dense": _dense,
    "sparse": _sparse,
    "long_horizon": _long_horizon,
    "longer_horizon": _longer_horizon,
    "long_dense": _long_dense,
}


def _maze(rng: np.random.Generator, fixed: bool) -> np.ndarray:
    height, width = (int(size) for size in rng.choice(SIZES, 2))
    style = rng.choice(["room", "bars", "four_rooms", "corridors"] if fixed else ["room", "bars"])
    if style == "bars":
        return mazes.bars(rng, height, width)
    # Narrow ways only where positions are fixed, so that nothing ever blocks them. Small
    # ones of these would leave no space.
    if style == "four_rooms" and min(height, width) >= 7:
        return mazes.four_rooms(rng, height, width)
    if style == "corridors" and max(height, width) >= 7:
        return mazes.corridors(rng, height - 1 + height % 2, width - 1 + width % 2)
    return mazes.room(height, width)


def _task(rng: np.random.Generator, variant: str, fixed: bool):
    maze = _maze(rng, fixed)
    objects, horizon = VARIANTS[variant](rng)
    start = None
    if fixed:
        goods = [thing for thing in objects if thing.kind == GOOD]
        others = [thing for thing in objects if thing.kind != GOOD]
        start, good_cells, other_cells = mazes.place(rng, maze, len(goods), len(others))
        objects = [
            Object(thing.reward, thing.termination, thing.respawn, thing.kind, cell)
            for thing, cell in zip(goods + others, good_cells + other_cells, strict=True)
        ]
    return make_task(DYNAMICS, maze, objects, horizon=horizon, start=start)


@functools.cache
def suite() -> tuple[Environment, ...]:
    """The 57 environments, `"grid57/00_dense_fixed"` to `"grid57/56_…"`."""
    environments = []
    for i in range(NUM_TASKS):
        variant, fixed = list(VARIANTS)[i // 2 % len(VARIANTS)], i % 2 == 0
        name = f"grid57/{i:02d}_{variant}_{'fixed' if fixed else 'random'}"
        # Each task has a generator of its own, so that changing one leaves the others.
        task = _task(np.random.default_rng([SEED, i]), variant, fixed)
        environments.append(Environment(name=name, dynamics=DYNAMICS, task=task))
    return tuple(environments)

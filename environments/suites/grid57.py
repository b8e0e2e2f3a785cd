"""`grid57`, `grid_generated` and `lpg`: the grid-worlds on which rules are discovered.

`grid57` is the counterpart of the "57 grid-world tasks" of Oh et al. (2025), "Discovering
state-of-the-art reinforcement learning algorithms" (Methods;
https://www.nature.com/articles/s41586-025-09761-x), after the ten grid-world variants of LPG (arXiv
2007.08794): {dense, sparse, long horizon, longer horizon, long dense} x {fixed, random positions}.
Mazes, object counts, rewards, probabilities and horizons vary, drawn from a fixed seed. All tasks
share `DYNAMICS`.

`grid_generated` has 256 tasks of the same variants, mazes and probabilities, each drawn from its
number, with rewards of other scales and, in half of the tasks, noise in every reward. Many tasks
from a distribution, instead of a few: Jackson et al. (2023), "Discovering general reinforcement
learning algorithms with adversarial environment design" (GROOVE, arXiv 2310.02782), choose among
such levels, too.

`lpg` is the ten grid-worlds of LPG (appendix): objects as [reward, termination, respawn], moves to
all eight neighbours, *tabular* tasks with fixed positions and *random* ones with positions drawn
for every episode. Here all share `LPG_DYNAMICS` and are observed as its planes; rooms have no inner
walls, and the tabular tasks' positions are drawn from a seed.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.noise import NoisyRewards, NoisyTask, log_uniform
from environments.suites.grid_worlds import (
    GridWorld,
    GridWorldTask,
    Object,
    make_fixed_task,
    make_task,
    mazes,
)

SEED, GENERATED_SEED, LPG_SEED = 57, 256, 0
DYNAMICS = GridWorld(height=9, width=9, max_objects=7, kinds=3)
NOISY_DYNAMICS = NoisyRewards(DYNAMICS)
LPG_DYNAMICS = GridWorld(height=13, width=13, max_objects=7, kinds=3, moves="king")
SIZES = (5, 6, 7, 8, 9)
SCALES = (0.5, 2.0)  # Of rewards of `grid_generated`, log-uniform.
NOISES = (0.05, 1.0)  # Standard deviation by the scale of rewards, log-uniform.

GOOD, HAZARD, NUISANCE = range(3)  # The kinds of objects.


def _reward(rng: np.random.Generator) -> float:
    return float(rng.choice([0.5, 1.0]))


def _dense(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Draw goods that respawn, a hazard that may terminate, and one that only costs."""
    respawn = float(rng.choice([0.05, 0.1]))
    goods = [Object(_reward(rng), 0.0, respawn, GOOD) for _ in range(rng.integers(1, 4))]
    hazards = [Object(-_reward(rng), 0.5, 0.1, HAZARD), Object(-_reward(rng), 0.0, 0.5, NUISANCE)]
    return goods + hazards, int(rng.choice([50, 75, 100]))


def _sparse(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Draw one good and some hazards, any of which terminates the episode."""
    hazards = [Object(-_reward(rng), 1.0, 0.0, HAZARD) for _ in range(rng.integers(1, 3))]
    return [Object(1.0, 1.0, 0.0, GOOD), *hazards], int(rng.choice([20, 30, 50]))


def _long_horizon(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Draw goods that respawn slowly, and hazards that are always present."""
    goods = [Object(1.0, 0.0, 0.02, GOOD) for _ in range(rng.integers(2, 4))]
    hazards = [Object(-_reward(rng), 0.5, 1.0, HAZARD) for _ in range(2)]
    return goods + hazards, int(rng.choice([150, 200, 250]))


def _longer_horizon(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Draw goods that may terminate the episode, among many hazards that mostly do."""
    goods = [Object(1.0, 0.1, 0.05, GOOD) for _ in range(2)]
    hazards = [Object(-_reward(rng), 0.8, 1.0, HAZARD) for _ in range(rng.integers(3, 6))]
    return goods + hazards, int(rng.choice([300, 400, 500]))


def _long_dense(rng: np.random.Generator) -> tuple[list[Object], int]:
    """Draw goods only, which respawn very slowly."""
    goods = [Object(_reward(rng), 0.0, 0.01, GOOD) for _ in range(rng.integers(3, 6))]
    return goods, int(rng.choice([200, 300, 400]))


VARIANTS: dict[str, Callable[[np.random.Generator], tuple[list[Object], int]]] = {
    "dense": _dense,
    "sparse": _sparse,
    "long_horizon": _long_horizon,
    "longer_horizon": _longer_horizon,
    "long_dense": _long_dense,
}


_LPG_DENSE = (
    *[Object(1.0, 0.0, 0.05, kind=0)] * 2,
    Object(-1.0, 0.5, 0.1, kind=1),
    Object(-1.0, 0.0, 0.5, kind=2),
)
_LPG_LONG_HORIZON = (
    *[Object(1.0, 0.0, 0.01, kind=0)] * 2,
    *[Object(-1.0, 0.5, 1.0, kind=1)] * 2,
)

# By name: (height, width), horizon, objects. Each object kind has its plane.
LPG_TASKS = {
    "tabular_dense": ((11, 11), 500, _LPG_DENSE),
    "tabular_sparse": ((13, 13), 50, (Object(1.0, 1.0, 0.0, 0), Object(-1.0, 1.0, 0.0, 1))),
    "tabular_long_horizon": ((11, 11), 1000, _LPG_LONG_HORIZON),
    "tabular_longer_horizon": (
        (7, 9),
        2000,
        (*[Object(1.0, 0.1, 0.01, 0)] * 2, *[Object(-1.0, 0.8, 1.0, 1)] * 5),
    ),
    "tabular_long_dense": ((11, 11), 2000, (Object(1.0, 0.0, 0.005, 0),) * 4),
    "random_dense": ((11, 11), 500, _LPG_DENSE),
    "random_long_horizon": ((11, 11), 1000, _LPG_LONG_HORIZON),
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


def names(family: str, number: int, digits: int) -> tuple[str, ...]:
    """Return the names of tasks that take turns in variants, fixed positions first."""
    variants = [f"{name}_{positions}" for name in VARIANTS for positions in ("fixed", "random")]
    return tuple(f"{family}/{i:0{digits}d}_{variants[i % len(variants)]}" for i in range(number))


SUITES = {
    "grid57": names("grid57", 57, digits=2),
    "grid_generated": names("grid_generated", 256, digits=3),
    "lpg": tuple(f"lpg/{name}" for name in LPG_TASKS),
}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of a suite, for example `grid57/00_dense_fixed`."""
    if name in SUITES["lpg"]:
        return Environment(name=name, dynamics=LPG_DYNAMICS, params=_lpg_task(name))
    if name in SUITES["grid57"]:
        return Environment(name=name, dynamics=DYNAMICS, params=draw(name, SEED))
    number = SUITES["grid_generated"].index(name)
    rng = np.random.default_rng([GENERATED_SEED, number, 1])
    scale = log_uniform(rng, *SCALES)
    noise = scale * log_uniform(rng, *NOISES)
    # Ten variants take turns: of each, every second task has noise.
    has_noise = number // 10 % 2 == 1
    params = NoisyTask(
        task=draw(name, GENERATED_SEED, scale=scale), noise=jnp.float32(noise if has_noise else 0.0)
    )
    return Environment(name=name, dynamics=NOISY_DYNAMICS, params=params)


def _lpg_task(name: str) -> GridWorldTask:
    size, horizon, objects = LPG_TASKS[name.removeprefix("lpg/")]
    maze = mazes.room(*size)
    if not name.startswith("lpg/tabular"):
        return make_task(LPG_DYNAMICS, maze, objects, horizon=horizon)
    rng = np.random.default_rng([LPG_SEED, SUITES["lpg"].index(name)])
    return make_fixed_task(LPG_DYNAMICS, rng, maze, objects, [], horizon=horizon)


def draw(name: str, seed: int, *, scale: float = 1.0) -> GridWorldTask:
    """Draw the task of a name of `names`, behind a family's, for `DYNAMICS`.

    Each task has its own generator, so that a change of one leaves the others. `scale` multiplies
    rewards.
    """
    index, _, variant = name.rpartition("/")[2].partition("_")
    variant, _, positions = variant.rpartition("_")
    rng = np.random.default_rng([seed, int(index)])
    maze = _maze(rng, positions == "fixed")
    objects, horizon = VARIANTS[variant](rng)
    objects = [dataclasses.replace(thing, reward=scale * thing.reward) for thing in objects]
    if positions == "random":
        return make_task(DYNAMICS, maze, objects, horizon=horizon)
    goods = [thing for thing in objects if thing.kind == GOOD]
    hazards = [thing for thing in objects if thing.kind != GOOD]
    return make_fixed_task(DYNAMICS, rng, maze, goods, hazards, horizon=horizon)


def _maze(rng: np.random.Generator, fixed: bool) -> mazes.Maze:
    height, width = (int(size) for size in rng.choice(SIZES, 2))
    style = rng.choice(["room", "bars", "four_rooms", "corridors"] if fixed else ["room", "bars"])
    if style == "bars":
        return mazes.bars(rng, height, width)
    # Narrow passages only where positions are fixed, so that no object ever blocks them, and
    # only in large mazes, as small ones would have too few free cells.
    if style == "four_rooms" and min(height, width) >= 7:
        return mazes.four_rooms(rng, height, width)
    if style == "corridors" and max(height, width) >= 7:
        return mazes.corridors(rng, height - 1 + height % 2, width - 1 + width % 2)
    return mazes.room(height, width)

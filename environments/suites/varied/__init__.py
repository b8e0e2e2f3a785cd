"""`varied`: 512 tasks to discover rules on, in many encodings, so that no rule depends on one.

A task is one of seven families, and a nuisance: an encoding of its observations, a scale of its
rewards (1e-2 to 1e2, log-uniform), an order of its actions. `VARIANTS` take turns. Tasks of a
variant share their dynamics, and so one compiled program.

| family | tasks |
| --- | --- |
| `grid` | the variants of `grid57`, half of them with noise in every reward |
| `rooms` | a goal in a room, behind a gap or a locked door whose key lies about; it may move |
| `mdp` | those of `mdp_generated` |
| `cart`, `pendulum` | with masses, lengths and forces of their own |
| `bandit` | contextual bandits of 18 actions, episodes of 1 to 20 steps |
| `chain` | rare rewards: a long corridor |

`varied_1` to `varied_256` are the first of them, for discovery; `varied_heldout` are three of each
variant that none of these has.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from environments.base import Environment, JaxEnvironment
from environments.encodings import Encoded
from environments.noise import NoisyRewards, NoisyTask, log_uniform
from environments.suites import grid57, mdp_generated
from environments.suites.grid_worlds import GridWorld, GridWorldTask, Object, make_task, mazes
from environments.suites.varied.contexts import (
    NUM_CONTEXTS,
    NUM_FEATURES,
    Contexts,
    ContextsTask,
)
from environments.suites.varied.physics import Cart, Pendulum, PhysicsTask
from environments.suites.varied.views import Coordinates, Egocentric

SEED, NUM_TASKS = 512, 512
REWARD_SCALES = (1e-2, 1e2)
GRID = grid57.DYNAMICS
ROOMS = GridWorld(height=9, width=9, max_objects=3, kinds=2, doors=True)
_GOAL, _KEY = range(2)  # The kinds of objects in rooms.
_NOISES = (0.05, 1.0)  # Standard deviation by the scale of rewards, log-uniform.


def _grid(rng: np.random.Generator) -> GridWorldTask:
    """Draw one of the variants of `grid57`."""
    number = int(rng.integers(2**31))
    variant = rng.choice(list(grid57.VARIANTS))
    return grid57.draw(f"varied/{number}_{variant}_{rng.choice(['fixed', 'random'])}", SEED)


def _rooms(rng: np.random.Generator) -> GridWorldTask:
    """Draw an empty room, one with a gap in its wall, or one with a locked door and its key."""
    height, width = (int(size) for size in rng.integers(5, 10, 2))
    style = rng.choice(["empty", "gap", "locked"])
    maze, doors, wall = mazes.room(height, width), [], int(rng.integers(2, width - 2))
    opening = (int(rng.integers(height)), wall)
    if style != "empty":
        maze[:, wall] = True
        maze[opening] = False
    walk = float(rng.choice([0.0, 0.0, 0.2]))
    near, far = (int(rng.integers(height)), 0), (int(rng.integers(height)), width - 1)
    objects = [Object(1.0, 1.0, 0.0, _GOAL, cell=far, walk=walk)]
    if style == "locked":
        doors = [opening]
        row = (near[0] + 1 + int(rng.integers(height - 1))) % height
        objects.append(Object(0.0, 0.0, 0.0, _KEY, cell=(row, int(rng.integers(wall))), key=True))
    horizon = int(rng.choice([2, 4])) * height * width
    return make_task(ROOMS, maze, objects, horizon=horizon, start=near, doors=doors)


def _mdp(rng: np.random.Generator) -> mdp_generated.RingTask:
    return mdp_generated.draw(str(rng.choice(mdp_generated.KINDS)), rng)


def _chain(rng: np.random.Generator) -> GridWorldTask:
    """Draw a corridor with a small reward at its beginning and a large one at its end."""
    length = int(rng.integers(5, 10))
    objects = [
        Object(float(rng.uniform(0.0, 0.2)), 1.0, 0.0, _KEY, cell=(0, 0)),
        Object(1.0, 1.0, 0.0, _GOAL, cell=(0, length - 1)),
    ]
    slip, cost = float(rng.choice([0.0, 0.2])), float(rng.choice([0.0, -0.01]))
    return make_task(
        ROOMS,
        mazes.room(1, length),
        objects,
        horizon=4 * length,
        start=(0, 1),
        slip=slip,
        step_reward=cost,
    )


def _physics(rng: np.random.Generator, limit: tuple[float, float]) -> PhysicsTask:
    numbers = {
        "gravity": rng.uniform(5.0, 15.0),
        "mass": rng.uniform(0.05, 0.5),
        "length": rng.uniform(0.3, 1.0),
        "force": rng.uniform(5.0, 15.0),
        "limit": rng.uniform(*limit),
        "is_sparse": 0.0,
    }
    horizon = jnp.int32(round(log_uniform(rng, 100, 1000)))
    return PhysicsTask(**{name: jnp.float32(x) for name, x in numbers.items()}, horizon=horizon)


def _cart(rng: np.random.Generator) -> PhysicsTask:
    return _physics(rng, (0.15, 0.5))


def _pendulum(rng: np.random.Generator) -> PhysicsTask:
    task = _physics(rng, (0.2, 0.6))
    mass, length = rng.uniform(0.5, 1.5), rng.uniform(0.7, 1.3)
    # A third to all of the torque that holds it out level.
    torque = rng.uniform(0.35, 1.0) * mass * float(task.gravity) * length / 2.0
    return dataclasses.replace(
        task,
        mass=jnp.float32(mass),
        length=jnp.float32(length),
        force=jnp.float32(torque),
        is_sparse=jnp.float32(rng.random() < 0.3),
        horizon=jnp.int32(round(log_uniform(rng, 100, 300))),
    )


def _bandit(rng: np.random.Generator) -> ContextsTask:
    shape = NUM_CONTEXTS, Contexts().num_actions
    probability = rng.uniform(0.0, 1.0, shape) ** float(rng.choice([1.0, 3.0]))
    return ContextsTask(
        probability=jnp.asarray(probability, jnp.float32),
        features=jnp.asarray(rng.normal(size=(NUM_CONTEXTS, NUM_FEATURES)), jnp.float32),
        horizon=jnp.int32(rng.integers(1, 21)),
    )


class Family(NamedTuple):
    """A family of tasks: how one is drawn, and whether half of them have noise in rewards."""

    draw: Callable[[np.random.Generator], Any]
    is_noisy: bool = False


FAMILIES = {
    "grid": Family(_grid, is_noisy=True),
    "rooms": Family(_rooms),
    "mdp": Family(_mdp, is_noisy=True),
    "cart": Family(_cart),
    "pendulum": Family(_pendulum),
    "bandit": Family(_bandit),
    "chain": Family(_chain),
}


class Variant(NamedTuple):
    """A family in an encoding.

    Attributes:
      family: of `FAMILIES`.
      encoding: a word for names.
      dynamics: of the tasks, encoded; its `dynamics` are the family's, with noise if it has some.
      noise: part of the inputs that are noise, if they are selected ones.
    """

    family: str
    encoding: str
    dynamics: Encoded
    noise: float = 0.0


def _noisy(dynamics: JaxEnvironment, *encoding: Any) -> Encoded:
    return Encoded(NoisyRewards(dynamics), *encoding)


VARIANTS = (
    Variant("grid", "planes", _noisy(GRID)),
    Variant("rooms", "planes", Encoded(ROOMS)),
    Variant("mdp", "features", _noisy(mdp_generated.Ring())),
    Variant("cart", "state", Encoded(Cart())),
    Variant("grid", "one_hot_1600", _noisy(GRID, "selected", 1600)),
    Variant("rooms", "view", Encoded(Egocentric(ROOMS))),
    Variant("mdp", "projected_64", _noisy(mdp_generated.Ring(), "projected", 64)),
    Variant("pendulum", "state", Encoded(Pendulum())),
    Variant("grid", "projected_64", _noisy(GRID, "projected", 64)),
    Variant("rooms", "one_hot_1200", Encoded(Egocentric(ROOMS), "selected", 1200)),
    Variant("mdp", "distracted_128", _noisy(mdp_generated.Ring(), "selected", 128), 0.5),
    Variant("bandit", "features", Encoded(Contexts())),
    Variant("grid", "coordinates", _noisy(Coordinates(GRID))),
    Variant("rooms", "projected_128", Encoded(ROOMS, "projected", 128)),
    Variant("chain", "coordinates", Encoded(Coordinates(ROOMS))),
    Variant("cart", "distracted_32", Encoded(Cart(), "selected", 32), 0.5),
)
_NAMES = tuple(
    f"varied/{i:03d}_{VARIANTS[i % len(VARIANTS)].family}_{VARIANTS[i % len(VARIANTS)].encoding}"
    for i in range(NUM_TASKS)
)
SUITES = {
    "varied": _NAMES,
    **{f"varied_{number}": _NAMES[:number] for number in (1, 4, 16, 64, 256)},
    "varied_heldout": _NAMES[-3 * len(VARIANTS) :],
}


def draw(number: int) -> tuple[Any, np.random.Generator]:
    """Return the parameters of a task's family, and the generator to draw its encoding from."""
    variant, rng = VARIANTS[number % len(VARIANTS)], np.random.default_rng([SEED, number])
    family = FAMILIES[variant.family]
    task = family.draw(rng)
    if family.is_noisy:
        noise = log_uniform(rng, *_NOISES) if number // len(VARIANTS) % 2 else 0.0
        task = NoisyTask(task=task, noise=jnp.float32(noise))
    return task, rng


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `varied/000_grid_planes`."""
    number = _NAMES.index(name)
    variant, (task, rng) = VARIANTS[number % len(VARIANTS)], draw(number)
    scale = log_uniform(rng, *REWARD_SCALES)
    params = variant.dynamics.draw(rng, task, scale, variant.noise)
    return Environment(name=name, dynamics=variant.dynamics, params=params)

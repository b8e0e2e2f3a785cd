"""Crafter (Hafner 2021, arXiv 2109.06780), the original engine; `craftax_classic` is in JAX.

Two environments, the suite `crafter`: `crafter/reward`, whose scores are in DiscoRL's Extended
Data Table 5 (https://www.nature.com/articles/s41586-025-09761-x), and `crafter/no_reward`, in which
rewards are 0 and agents are scored by their achievements. A run of the benchmark has a million
steps.

17 actions, no frame skip, uint8 `[64, 64, 3]` images of a 9x9 view with the inventory below.
Each of 22 achievements pays 1 when it is first unlocked in an episode, each health point lost
or gained -0.1 or +0.1. An episode terminates when the health is 0, and is truncated after 10,000
steps.

`results` has an entry per achievement, 1 if it was unlocked in the episode: success rates and
the Crafter score are computed from them. Worlds depend on the seed only. (The engine keeps the
creatures of a chunk in a set, ordered by memory addresses; here they are in order of insertion.)

The engine makes a few hundred steps per second; several processes share the work.
"""

import collections
import dataclasses
import functools

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment, Simulator, Simulators
from environments.errors import import_package
from environments.processes import ProcessSimulators

NUM_ACTIONS = 17
TIME_LIMIT = 10_000
ACHIEVEMENTS = tuple(
    """collect_coal collect_diamond collect_drink collect_iron collect_sapling collect_stone
    collect_wood defeat_skeleton defeat_zombie eat_cow eat_plant make_iron_pickaxe make_iron_sword
    make_stone_pickaxe make_stone_sword make_wood_pickaxe make_wood_sword place_furnace place_plant
    place_stone place_table wake_up""".split()
)
SUITES = {"crafter": ("crafter/reward", "crafter/no_reward")}


@dataclasses.dataclass(frozen=True)
class Crafter:
    """Crafter; the task is `"reward"` or `"no_reward"`.

    Attributes:
      time_limit: steps after which an episode is truncated.
    """

    time_limit: int = TIME_LIMIT

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((64, 64, 3), np.uint8, 0, 255, name="image")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(NUM_ACTIONS, name="action")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        make_world = functools.partial(CrafterWorld, task, self.time_limit)
        return ProcessSimulators(make_world, self, batch_size, seed, ACHIEVEMENTS, workers)


class CrafterWorld(Simulator):
    """One Crafter world."""

    def __init__(self, task: str, time_limit: int, seed: int):
        crafter = import_package("crafter", "crafter", "crafter/…")
        self._world = crafter.Env(reward=task == "reward", length=time_limit, seed=seed)
        _keep_creatures_in_order(self._world, crafter)
        self._achievements: dict[str, int] = {}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._world.reset())

    def step(self, action: int | np.integer) -> dm_env.TimeStep:
        image, reward, done, info = self._world.step(int(action))
        if not done:
            return dm_env.transition(reward, image)
        self._achievements = info["achievements"]
        if info["discount"] == 0:
            return dm_env.termination(reward, image)
        return dm_env.truncation(reward, image, discount=1.0)

    def episode_results(self) -> dict[str, float]:
        """Return which achievements were unlocked in the episode that ended."""
        return {name: float(self._achievements[name] > 0) for name in ACHIEVEMENTS}


class _OrderedSet(dict):
    """A set iterated in order of insertion, with the methods that the engine uses."""

    def add(self, member) -> None:
        self[member] = None

    def remove(self, member) -> None:
        del self[member]


def _keep_creatures_in_order(env, crafter) -> None:
    class World(crafter.engine.World):
        def reset(self, seed=None):
            super().reset(seed)
            self._chunks = collections.defaultdict(_OrderedSet)

    # The engine's views and creatures refer to this object.
    env._world.__class__ = World


def make(name: str) -> Environment:
    """Make an environment of the suite.

    Raises:
      MissingPackageError: if crafter is not installed.
    """
    import_package("crafter", "crafter", "crafter/…")
    return Environment(name=name, dynamics=Crafter(), params=name.removeprefix("crafter/"))

"""Minecraft Diamond (Hafner et al. 2023), through MineRL 0.4.4 (Guss et al. 2019).

One environment, `minecraft/diamond`, the suite `minecraft_diamond`. DreamerV3 (arXiv 2301.04104v1),
appendix F; its Nature version, Methods, "Minecraft". MineRL: arXiv 1907.13440.

Every episode is in another world of Minecraft 1.11.2, at 20 steps per second. 25 actions (see
`ACTIONS`); blocks break 100 times faster than in the game, so that an attack need not be sustained;
the camera's pitch stays within 60 degrees of the horizon; the keys of a jump stay pressed for 200
ms, 4 steps, whatever the next actions are. Each of 12 milestones on the path to a diamond pays 1
when it is first in the inventory in an episode, each heart lost or restored -0.01 or +0.01. An
episode terminates when the player dies, and is truncated after 36,000 steps, half an hour.

The observation is a dictionary: `image` uint8 `[64, 64, 3]`; `inventory` float32 `[391]`, the
number of each of the game's items (air: of empty slots); `inventory_max` float32 `[391]`, its
maximum in the episode; `equipped` float32 `[393]`, one-hot; `health`, `hunger`, `breath` float32,
scalars, 1 when full.

`results` has an entry per milestone, 1 if it was reached in the episode.

What the papers leave open is as in the authors' release, `diamond_env`: names and order of the
actions, turns of 15 degrees, a jump that moves forwards, the scales of observations, both kinds
of log counted as one, days that start at sunrise. Where the two differ, this follows the papers:
the release holds a jump for 10 steps, and rewards health on another scale.

A game whose connection breaks down is truncated there, and restarted, as often as a run of 100
million steps needs it; the run fails when a game breaks down three times in a row within 1000 steps
of its start (`ProcessSimulators`). Every game is a Java process of some gigabytes, which takes
minutes to start at the first reset, and needs a display (for example that of `xvfb-run`).

This follows MineRL's documentation and is tested with a stand-in; it has not run with MineRL, which
predates Python 3.11.
"""

import dataclasses
import functools
import importlib
import importlib.util
from typing import Any

import dm_env
import numpy as np
from dm_env import specs
from jaxtyping import Float32

from environments.base import Environment, Simulator, Simulators
from environments.errors import EngineDiedError, MissingPackageError, require
from environments.processes import ProcessSimulators

TIME_LIMIT = 36_000
BREAK_SPEED = 100
MAX_PITCH = 60
JUMP_STEPS = 4
_START_SECONDS = 900.0  # MineRL itself waits for 600 until a game has started.
NUM_ITEMS, NUM_EQUIPPABLE = 391, 393
MILESTONES = tuple(
    """log planks stick crafting_table wooden_pickaxe cobblestone stone_pickaxe iron_ore furnace
    iron_ingot iron_pickaxe diamond""".split()
)
SUITES = {"minecraft_diamond": ("minecraft/diamond",)}

ACTIONS: dict[str, dict[str, Any]] = {
    "noop": {},
    "attack": {"attack": 1},
    "turn_up": {"camera": (-15, 0)},
    "turn_down": {"camera": (15, 0)},
    "turn_left": {"camera": (0, -15)},
    "turn_right": {"camera": (0, 15)},
    "forward": {"forward": 1},
    "back": {"back": 1},
    "left": {"left": 1},
    "right": {"right": 1},
    "jump": {"jump": 1, "forward": 1},
    "place_dirt": {"place": "dirt"},
    "craft_planks": {"craft": "planks"},
    "craft_stick": {"craft": "stick"},
    "craft_crafting_table": {"craft": "crafting_table"},
    "place_crafting_table": {"place": "crafting_table"},
    "craft_wooden_pickaxe": {"nearbyCraft": "wooden_pickaxe"},
    "craft_stone_pickaxe": {"nearbyCraft": "stone_pickaxe"},
    "craft_iron_pickaxe": {"nearbyCraft": "iron_pickaxe"},
    "equip_stone_pickaxe": {"equip": "stone_pickaxe"},
    "equip_wooden_pickaxe": {"equip": "wooden_pickaxe"},
    "equip_iron_pickaxe": {"equip": "iron_pickaxe"},
    "craft_furnace": {"nearbyCraft": "furnace"},
    "place_furnace": {"place": "furnace"},
    "smelt_iron_ingot": {"nearbySmelt": "iron_ingot"},
}
"""Of each action, its changes of MineRL's no-op. The camera's are the changes of pitch (downwards)
and yaw (to the right) in degrees."""

_FULL_LIFE, _FULL_FOOD, _FULL_AIR = 20.0, 20.0, 300.0
_HEARTS = 10


@dataclasses.dataclass(frozen=True)
class Minecraft:
    """Minecraft; the only task is `"diamond"`.

    Attributes:
      time_limit: steps after which an episode is truncated.
    """

    time_limit: int = TIME_LIMIT

    def observation_spec(self) -> dict[str, specs.Array]:
        return {
            "image": specs.BoundedArray((64, 64, 3), np.uint8, 0, 255, name="image"),
            "inventory": specs.Array((NUM_ITEMS,), np.float32, name="inventory"),
            "inventory_max": specs.Array((NUM_ITEMS,), np.float32, name="inventory_max"),
            "equipped": specs.BoundedArray((NUM_EQUIPPABLE,), np.float32, 0, 1, name="equipped"),
            "health": specs.Array((), np.float32, name="health"),
            "hunger": specs.Array((), np.float32, name="hunger"),
            "breath": specs.Array((), np.float32, name="breath"),
        }

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(len(ACTIONS), name="action")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        # There is one task. Each game is a process, for which one worker process waits.
        del task, workers
        make_world = functools.partial(MinecraftWorld, self.time_limit)
        return ProcessSimulators(
            make_world, self, batch_size, seed, MILESTONES, batch_size, _START_SECONDS
        )


class MinecraftWorld(Simulator):
    """One game of Minecraft."""

    def __init__(self, time_limit: int, seed: int):
        """Prepare the game, which starts at the first reset."""
        self._game = _make_game()
        space = self._game.observation_space
        self._items = [name for name in space["inventory"].spaces if name != "log2"]
        self._equippable = list(space["equipped_items"]["mainhand"]["type"].values)
        found, expected = (len(self._items), len(self._equippable)), (NUM_ITEMS, NUM_EQUIPPABLE)
        require(
            found == expected,
            f"MineRL lists {found[0]} kinds of items and {found[1]} that can be equipped, expected"
            f" {expected[0]} and {expected[1]}: is it version 0.4.4?",
        )
        self._milestones = [self._items.index(name) for name in MILESTONES]
        self._time_limit = time_limit
        self._random = np.random.default_rng(seed)
        self._steps = self._jump_steps = self._pitch = 0
        self._observation: dict[str, np.ndarray] = {}

    def reset(self) -> dm_env.TimeStep:
        self._game.seed(int(self._random.integers(2**31)))  # Each reset discards the seed.
        self._steps = self._jump_steps = self._pitch = 0
        self._observation = {}
        try:
            shown = self._game.reset()
        except Exception as error:  # Many kinds: of sockets, of XML, of MineRL's own.
            raise EngineDiedError(f"Minecraft broke down at a reset: {error}") from error
        self._observation = self._observe(shown)
        return dm_env.restart(self._observation)

    def step(self, action: int | np.integer) -> dm_env.TimeStep:
        keys = self._keys(int(action))
        try:
            shown, _, done, info = self._game.step(keys)
        except Exception as error:
            raise EngineDiedError(f"Minecraft broke down: {error}") from error
        if "error" in info:  # The observation is invented then.
            raise EngineDiedError(f"Minecraft broke down: {info['error']}")
        self._steps += 1
        reached, health = self._reached().sum(), self._observation["health"]
        self._observation = self._observe(shown)
        hearts = _HEARTS * float(self._observation["health"] - health)
        reward = float(self._reached().sum() - reached) + 0.01 * hearts
        if done:
            return dm_env.termination(reward, self._observation)
        if self._steps >= self._time_limit:
            return dm_env.truncation(reward, self._observation, discount=1.0)
        return dm_env.transition(reward, self._observation)

    def episode_results(self) -> dict[str, float]:
        """Return which milestones were reached in the episode so far."""
        return dict(zip(MILESTONES, self._reached().tolist(), strict=True))

    def close(self) -> None:
        self._game.close()

    def _keys(self, action: int) -> dict[str, Any]:
        """Convert an action to MineRL's."""
        keys = self._game.action_space.no_op() | tuple(ACTIONS.values())[action]
        pitch, yaw = keys["camera"]
        if abs(self._pitch + pitch) > MAX_PITCH:
            pitch = 0
        self._pitch += int(pitch)
        keys["camera"] = np.array([pitch, yaw], np.float32)
        self._jump_steps = JUMP_STEPS if keys["jump"] else max(0, self._jump_steps - 1)
        if self._jump_steps:
            keys["jump"] = keys["forward"] = 1
        return keys

    def _reached(self) -> Float32[np.ndarray, "12"]:
        """Return 1 for each milestone that is reached."""
        return (self._observation["inventory_max"][self._milestones] > 0).astype(np.float32)

    def _observe(self, shown: dict[str, Any]) -> dict[str, np.ndarray]:
        """Convert MineRL's observation; the inventory's maximum continues the last one's."""
        counts, life = shown["inventory"], shown["life_stats"]
        inventory = np.array([counts[name] for name in self._items], np.float32)
        # Logs of acacia and dark oak.
        inventory[self._items.index("log")] += counts.get("log2", 0)
        maximum = np.maximum(inventory, self._observation.get("inventory_max", inventory))
        equipped = np.zeros(NUM_EQUIPPABLE, np.float32)
        equipped[self._equippable.index(shown["equipped_items"]["mainhand"]["type"])] = 1.0
        return {
            "image": shown["pov"],
            "inventory": inventory,
            "inventory_max": maximum,
            "equipped": equipped,
            "health": np.asarray(life["life"] / _FULL_LIFE, np.float32),
            "hunger": np.asarray(life["food"] / _FULL_FOOD, np.float32),
            "breath": np.asarray(life["air"] / _FULL_AIR, np.float32),
        }


def _make_game() -> Any:
    """Make the game as an environment of MineRL's. No other code here uses MineRL's classes."""
    for name, successor in {"bool": bool, "float": float, "int": int}.items():
        if not hasattr(np, name):  # MineRL uses names that NumPy has removed.
            setattr(np, name, successor)
    base = importlib.import_module("minerl.herobraine.env_specs.simple_embodiment")

    specification: Any = type("Diamond", (_DiamondSpec, base.SimpleEmbodimentEnvSpec), _METHODS)
    return specification("MinecraftDiamond-v0", resolution=(64, 64)).make()


class _DiamondSpec:
    """A specification of the task to MineRL: to be mixed into its `SimpleEmbodimentEnvSpec`.

    Adds to the image, the keys and the camera, which that has. Rewards, and the time limit, are
    `MinecraftWorld`'s.
    """

    def create_observables(self) -> list:
        items = _minerl("mc").ALL_ITEMS
        inherited: Any = super()
        return [
            *inherited.create_observables(),
            _handler("FlatInventoryObservation", list(items)),
            # A copy: the handler adds to the list.
            _handler("EquippedItemObservation", list(items), _default="air", _other="other"),
            _handler("ObservationFromLifeStats"),
        ]

    def create_actionables(self) -> list:
        choices = {
            "place": "PlaceBlock",
            "equip": "EquipAction",
            "craft": "CraftAction",
            "nearbyCraft": "CraftNearbyAction",
            "nearbySmelt": "SmeltItemNearby",
        }
        inherited: Any = super()
        actionables = list(inherited.create_actionables())
        for name, choice in choices.items():
            items = ["none", *(x[name] for x in ACTIONS.values() if name in x), "other"]
            actionables.append(_handler(choice, items, _default="none", _other="other"))
        return actionables

    def create_agent_start(self) -> list:
        class BreakSpeed(_minerl("handler").Handler):
            def to_string(self) -> str:
                return "break_speed"

            def xml_template(self) -> str:
                return f"<BreakSpeedMultiplier>{BREAK_SPEED}</BreakSpeedMultiplier>"

        return [BreakSpeed()]


# Further methods that MineRL asks for; the last ones of what the task does not have.
_METHODS = {
    "create_server_world_generators": lambda self: [
        _handler("DefaultWorldGenerator", force_reset=True)
    ],
    "create_server_initial_conditions": lambda self: [
        _handler("TimeInitialCondition", allow_passage_of_time=True, start_time=0),
        _handler("SpawningInitialCondition", allow_spawning=True),
    ],
    "create_server_quit_producers": lambda self: [_handler("ServerQuitWhenAnyAgentFinishes")],
    "create_rewardables": lambda self: [],
    "create_agent_handlers": lambda self: [],
    "create_monitors": lambda self: [],
    "create_server_decorators": lambda self: [],
    "determine_success_from_rewards": lambda self, rewards: False,
    "is_from_folder": lambda self, folder: False,
    "get_docstring": lambda self: "",
}


def _minerl(module: str) -> Any:
    return importlib.import_module(f"minerl.herobraine.hero.{module}")


def _handler(name: str, *arguments: Any, **settings: Any) -> Any:
    return getattr(_minerl("handlers"), name)(*arguments, **settings)


def make(name: str) -> Environment:
    """Make the environment of the suite.

    Raises:
      MissingPackageError: if MineRL is not installed.
    """
    # Not imported here, as that needs changes of NumPy (see `_make_game`).
    if importlib.util.find_spec("minerl") is None:
        raise MissingPackageError(
            "Environments named 'minecraft/…' need the package 'minerl', which is not installed."
            " Install MineRL 0.4.4 and a Java 8 development kit. MineRL needs gym<0.20, which"
            " only builds with setuptools<66 and wheel<0.39."
        )
    return Environment(name=name, dynamics=Minecraft(), params="diamond")

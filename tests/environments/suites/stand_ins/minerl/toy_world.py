"""A world in which every item is at hand.

Attacking gives what the equipped tool is good for. Behind the player is a cactus, which costs a
heart, and to the left a bed, which restores one.
"""

import minerl
import numpy as np
from minerl.herobraine.hero import spaces

FOUND_WITH = {
    "wooden_pickaxe": "cobblestone",
    "stone_pickaxe": "iron_ore",
    "iron_pickaxe": "diamond",
}
MADE_OF = {
    "planks": ({"log": 1}, 4),
    "stick": ({"planks": 2}, 4),
    "crafting_table": ({"planks": 4}, 1),
    "wooden_pickaxe": ({"planks": 3, "stick": 2}, 1),
    "stone_pickaxe": ({"cobblestone": 3, "stick": 2}, 1),
    "iron_pickaxe": ({"iron_ingot": 3, "stick": 2}, 1),
    "furnace": ({"cobblestone": 8}, 1),
    "iron_ingot": ({"iron_ore": 1}, 1),
}


class ToyWorld:
    def __init__(self, spec):
        self.spec = spec
        self.observation_space, self.action_space = (
            spaces.Dict({handler.to_string(): handler.space for handler in made})
            for made in (spec.create_observables(), spec.create_actionables())
        )
        self.actions: list[dict] = []
        self.seeds: list[int | None] = []
        self.is_closed = False
        self.breaks_at: int | None = None  # A step at which the connection is lost,
        self.breaks_loudly = False  # with an exception, or with an entry in `info`.
        self._seed: int | None = None
        self._is_done = True
        minerl.worlds.append(self)

    def seed(self, seed=None):
        assert isinstance(seed, int), "Seed must be an int!"
        self._seed = seed

    def reset(self):
        self.seeds.append(self._seed)
        self._seed = None
        self._is_done, self._steps = False, 0
        self._items = dict.fromkeys(self.observation_space["inventory"].spaces, 0)
        self._life, self._tool, self._near = 20.0, "air", set()
        return self._show()

    def step(self, action):
        if self._is_done:
            raise RuntimeError("Attempted to step an environment server with done=True")
        assert action in self.action_space, action
        assert action.keys() == self.action_space.spaces.keys()
        self.actions.append(action)
        self._steps += 1
        if self._steps == self.breaks_at:
            self._is_done = True
            if self.breaks_loudly:
                raise ConnectionResetError("lost")
            return self._show() | {"pov": None}, 0, True, {"error": "Connection timed out!"}
        self._act(action)
        self._is_done = self._life <= 0
        return self._show(), 0.0, self._is_done, {}

    def close(self):
        self.is_closed = True

    def _act(self, action):
        if action["attack"]:
            log = "log2" if self._steps % 2 else "log"
            self._items[FOUND_WITH.get(self._tool, log)] += 1
        for name, station in (
            ("craft", None),
            ("nearbyCraft", "crafting_table"),
            ("nearbySmelt", "furnace"),
        ):
            if action[name] != "none" and (station is None or station in self._near):
                self._make(action[name])
        if self._items.get(action["place"], 0):
            self._items[action["place"]] -= 1
            self._near.add(action["place"])
        if self._items.get(action["equip"], 0):
            self._tool = action["equip"]
        self._life = min(20.0, self._life + 2.0 * (action["left"] - action["back"]))

    def _make(self, item):
        parts, number = MADE_OF[item]
        self._items["log"] += self._items["log2"]  # Any log will do.
        self._items["log2"] = 0
        if all(self._items[part] >= needed for part, needed in parts.items()):
            for part, needed in parts.items():
                self._items[part] -= needed
            self._items[item] += number

    def _show(self):
        return {
            "pov": np.full((64, 64, 3), (self.seeds[-1] or 0) % 256, np.uint8),
            "inventory": {name: np.array(number) for name, number in self._items.items()},
            "equipped_items": {"mainhand": {"type": self._tool}},
            "life_stats": {"life": self._life, "food": 10, "air": 300},
        }

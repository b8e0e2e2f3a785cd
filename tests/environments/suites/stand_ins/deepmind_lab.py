"""DeepMind Lab's Python interface, with two toy levels in place of the engine's.

Any level is an empty room for its level's number of seconds. In a skymaze, 100 frames of walking
forwards lead to the goal, which pays 100 and ends the episode.
"""

import numpy as np

SECONDS = {"rooms_select_nonmatching_object": 12, "skymaze_irreversible_path_hard": 60}
INSTRUCTIONS = {"language_select_located_object": "Pick the red object in the blue room"}
HELD_OUT = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")
FRAMES_PER_SECOND = 60
OBSERVATIONS = ("RGB_INTERLEAVED", "INSTR", "FRAMES_REMAINING_AT_60")

labs: list["Lab"] = []


class Lab:
    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        if not isinstance(observations, list) or not isinstance(config, dict):
            raise TypeError("observations must be a list and config a dict")
        if not all(isinstance(text, str) for item in config.items() for text in item):
            raise TypeError("config must be of str")
        if unknown := set(observations) - set(OBSERVATIONS):
            raise ValueError(f"Unknown observation {unknown}.")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(f"Failed to set renderer {renderer}!")
        folder, _, self.level = level.rpartition("/")
        if folder != "contributed/dmlab30":
            raise RuntimeError(f"Invalid levelName flag {level!r}")
        if self.level in HELD_OUT and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError("This level must only be used during evaluation.")
        self.config, self.renderer = config, renderer
        self.seeds: list[int] = []
        self.steps: list[tuple[list[int], int]] = []
        self._names = observations
        self._shape = (int(config["height"]), int(config["width"]), 3)
        self._length = SECONDS.get(self.level, 120) * FRAMES_PER_SECOND
        self._running = False
        labs.append(self)

    def reset(self, episode=-1, seed=None):
        if not isinstance(seed, int) or not 0 <= seed < 2**31:
            raise ValueError(f"'seed' must be an int of 31 bits, was {seed!r}.")
        self.seeds.append(seed)
        self._frame = self._walked = 0
        self._running = True
        return True

    def step(self, action, num_steps=1):
        if not self._running:
            raise RuntimeError("Environment in wrong status to advance.")
        if not isinstance(action, np.ndarray) or action.shape != (7,) or action.dtype != np.intc:
            raise ValueError("action must have shape (7) and dtype np.intc")
        self.steps.append((action.tolist(), num_steps))
        for _ in range(num_steps):
            self._frame += 1
            self._walked += int(action[3])
            is_found = self.level.startswith("skymaze") and self._walked >= 100
            if is_found or self._frame >= self._length:
                self._running = False
                return 100.0 if is_found else 0.0
        return 0.5

    def is_running(self):
        return self._running

    def observations(self):
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to observations()")
        shown = {
            "RGB_INTERLEAVED": np.full(self._shape, (self.seeds[-1] + self._frame) % 256, np.uint8),
            "INSTR": INSTRUCTIONS.get(self.level, ""),
            # As the engine reckons it: a difference of seconds.
            "FRAMES_REMAINING_AT_60": np.array([(self._length / 60 - self._frame / 60) * 60]),
        }
        return {name: shown[name] for name in self._names}

    def close(self):
        self._running = False
        return True

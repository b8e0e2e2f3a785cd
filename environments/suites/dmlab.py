"""DMLab-30: 30 levels of DeepMind Lab.

Beattie et al. 2016 (arXiv 1612.03801); Espeholt et al. 2018, IMPALA (arXiv 1802.01561).

Four suites:

`dmlab30`, the environments `dmlab/<level>`, on which agents are trained.

`dmlab30_test`, the environments `dmlab_test/<level>`, on which they are judged, as in DiscoRL's
Extended Data Table 3. Two levels, `rooms_collect_good_objects` and
`rooms_exploit_deferred_effects`, have another script for testing. The other 28 have one
script for both (the level set's own list says "drawn from the same distribution"), with other
seeds: IMPALA's `mixerSeed`.

`dmlab30_r2d2` and `dmlab30_r2d2_test`, the environments `dmlab_r2d2/<level>` and
`dmlab_r2d2_test/<level>`: the same levels with R2D2's actions.

An action is repeated for 4 frames, at 60 frames per second. Two published sets of actions:
IMPALA's 9, which DiscoRL uses too (Methods, "Hyperparameters and evaluation"), and the 15 of
PopArt and R2D2, which DreamerV3 uses too.

The observation is a dictionary: `image` uint8 `[72, 96, 3]`; `instruction` int32 `[16]`, a number
from 1 to 1000 for each word of the level's text, then zeros (see `environments.base`);
`previous_action` int32 and `previous_reward` float32, scalars, unclipped, which IMPALA's LSTM sees,
both 0 at the start of an episode.

Each level has its own time limit, of 12 to 300 seconds. Skymaze, keys and doors, collect good
objects and deferred effects also end once the task is done, PsychLab after a number of trials. The
engine does not report the cause of an end, but it reports how many frames were left: an episode
that ends within its last 4 frames is truncated, one that ends earlier terminates. (IMPALA's
published code treats both as terminations.) After the end the engine has no observation: the last
image is repeated.

Two levels, `psychlab_arbitrary_visuomotor_mapping` and `psychlab_continuous_recognition`, need
images that are not part of the engine, those of Brady, Konkle and Oliva (2008), prepared as in its
`data/brady_konkle_oliva2008`, in the folder that it was built with.

This follows the engine's documentation and is tested with a stand-in; it has not run with the
engine.
"""

import dataclasses
import functools
import importlib
from types import ModuleType
from typing import NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment, Simulator, Simulators, TextSpec
from environments.errors import MissingPackageError, require
from environments.processes import ProcessSimulators

ACTION_REPEAT = 4
HEIGHT, WIDTH = 72, 96
INSTRUCTION = TextSpec(16, name="instruction")  # No level has more words.
TEST_MIXER_SEED = 0x600D5EED  # IMPALA's. Episodes of tests are drawn with it.

LEVELS = tuple(
    """rooms_collect_good_objects rooms_exploit_deferred_effects rooms_select_nonmatching_object
    rooms_watermaze rooms_keys_doors_puzzle language_select_described_object
    language_select_located_object language_execute_random_task
    language_answer_quantitative_question lasertag_one_opponent_small
    lasertag_three_opponents_small lasertag_one_opponent_large lasertag_three_opponents_large
    natlab_fixed_large_map natlab_varying_map_regrowth natlab_varying_map_randomized
    skymaze_irreversible_path_hard skymaze_irreversible_path_varied
    psychlab_arbitrary_visuomotor_mapping psychlab_continuous_recognition
    psychlab_sequential_comparison psychlab_visual_search explore_object_locations_small
    explore_object_locations_large explore_obstructed_goals_small explore_obstructed_goals_large
    explore_goal_locations_small explore_goal_locations_large explore_object_rewards_few
    explore_object_rewards_many""".split()
)
PAIRS = ("rooms_collect_good_objects", "rooms_exploit_deferred_effects")
SUITES = {
    f"dmlab30{kind}": tuple(f"dmlab{kind}/{level}" for level in LEVELS)
    for kind in ("", "_test", "_r2d2", "_r2d2_test")
}


# Look right and look down, both in pixels per frame; strafe right; forward; fire; jump; crouch.
ACTION_SETS = {
    "impala": (
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-20, 0, 0, 0, 0, 0, 0),
        (20, 0, 0, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0, 0, 0),
        (20, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ),
    "r2d2": (
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-10, 0, 0, 0, 0, 0, 0),
        (10, 0, 0, 0, 0, 0, 0),
        (-60, 0, 0, 0, 0, 0, 0),
        (60, 0, 0, 0, 0, 0, 0),
        (0, 10, 0, 0, 0, 0, 0),
        (0, -10, 0, 0, 0, 0, 0),
        (-10, 0, 0, 1, 0, 0, 0),
        (10, 0, 0, 1, 0, 0, 0),
        (-60, 0, 0, 1, 0, 0, 0),
        (60, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ),
}
_IMAGE, _INSTRUCTION, _FRAMES_LEFT = "RGB_INTERLEAVED", "INSTR", "FRAMES_REMAINING_AT_60"


class Level(NamedTuple):
    """A task of DMLab-30.

    Attributes:
      script: its name in the engine, below `contributed/dmlab30`.
      is_test: whether its episodes are drawn for testing.
    """

    script: str
    is_test: bool = False


@dataclasses.dataclass(frozen=True)
class DMLab:
    """DMLab-30; the task is a `Level`.

    Attributes:
      action_set: `"impala"` or `"r2d2"`.
      height: of the images, in pixels.
      width: likewise.
    """

    action_set: str = "impala"
    height: int = HEIGHT
    width: int = WIDTH

    def observation_spec(self) -> dict[str, specs.Array]:
        num_actions = len(ACTION_SETS[self.action_set])
        return {
            "image": specs.BoundedArray(
                (self.height, self.width, 3), np.uint8, 0, 255, name="image"
            ),
            "instruction": INSTRUCTION,
            "previous_action": specs.DiscreteArray(num_actions, name="previous_action"),
            "previous_reward": specs.Array((), np.float32, name="previous_reward"),
        }

    def with_images(self, side: int, channels: int) -> "DMLab":
        require(channels == 3, f"channels is {channels}, expected 3: DMLab has colour images.")
        return dataclasses.replace(self, height=side, width=side)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(len(ACTION_SETS[self.action_set]), name="action")

    def start(
        self, task: Level, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        make_level = functools.partial(LabLevel, self, task)
        return ProcessSimulators(make_level, self, batch_size, seed, num_processes=workers)


class LabLevel(Simulator):
    """One level in the engine."""

    def __init__(self, settings: DMLab, level: Level, seed: int):
        """Start the engine. All its settings are strings."""
        config = {"width": str(settings.width), "height": str(settings.height), "fps": "60"}
        if level.is_test:
            config |= {"allowHoldOutLevels": "true", "mixerSeed": str(TEST_MIXER_SEED)}
        self._lab = _import_lab().Lab(
            f"contributed/dmlab30/{level.script}",
            [_IMAGE, _INSTRUCTION, _FRAMES_LEFT],
            config=config,
            renderer="software",
        )
        self._actions = np.array(ACTION_SETS[settings.action_set], np.intc)
        self._random = np.random.default_rng(seed)
        self._engine_observation: dict[str, np.ndarray] = {}
        self._frames_left = 0.0

    def reset(self) -> dm_env.TimeStep:
        self._lab.reset(seed=int(self._random.integers(2**31 - 1)))
        self._store_observation()
        return dm_env.restart(self._observation(0, 0.0))

    def step(self, action: int | np.integer) -> dm_env.TimeStep:
        reward = self._lab.step(self._actions[action], num_steps=ACTION_REPEAT)
        if self._lab.is_running():
            self._store_observation()
            return dm_env.transition(reward, self._observation(action, reward))
        last = self._observation(action, reward)
        # The frames left before this action. A difference of seconds, so not exact.
        if self._frames_left < ACTION_REPEAT + 0.5:
            return dm_env.truncation(reward, last, discount=1.0)
        return dm_env.termination(reward, last)

    def close(self) -> None:
        self._lab.close()

    def _store_observation(self) -> None:
        """Store the engine's observation, which it refuses after an episode's end."""
        shown = self._lab.observations()
        self._engine_observation = {
            "image": shown[_IMAGE],
            "instruction": INSTRUCTION.tokens(shown[_INSTRUCTION]),
        }
        self._frames_left = shown[_FRAMES_LEFT].item()

    def _observation(self, action: int | np.integer, reward: float) -> dict[str, np.ndarray]:
        return {
            **self._engine_observation,
            "previous_action": np.asarray(action, np.int32),
            "previous_reward": np.asarray(reward, np.float32),
        }


def make(name: str) -> Environment:
    """Make an environment of one of the suites, for example `dmlab_r2d2_test/rooms_watermaze`.

    Raises:
      MissingPackageError: if DeepMind Lab is not installed.
    """
    _import_lab()
    family, _, level = name.partition("/")
    is_test = family.endswith("_test")
    dynamics = DMLab(action_set="r2d2" if "r2d2" in family else "impala")
    script = f"{level}_{'test' if is_test else 'train'}" if level in PAIRS else level
    return Environment(name=name, dynamics=dynamics, params=Level(script, is_test))


def _import_lab() -> ModuleType:
    try:
        return importlib.import_module("deepmind_lab")
    except ImportError as error:
        raise MissingPackageError(
            f"Environments named 'dmlab/…' need DeepMind Lab: {error}. No package index has it:"
            " build its wheel with Bazel (//python/pip_package:build_pip_package) from"
            " https://github.com/google-deepmind/lab, and install that with pip."
        ) from error

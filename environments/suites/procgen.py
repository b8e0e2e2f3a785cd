"""ProcGen: 16 procedurally generated games through envpool's engine.

Cobbe et al. 2020 (arXiv 1912.01588). Suites, all in hard mode, whose runs have 200 million steps:

`procgen16`, the environments `procgen/<game>`: training levels 0 to 499, on which agents are
trained and judged in DiscoRL's Extended Data Table 2.

`procgen16_unseen`, the environments `procgen_unseen/<game>`: all levels from 500 on, to judge
agents that were trained on the first 500.

`procgen16_all`, the environments `procgen_all/<game>`: all levels, on which DreamerV3 (Nature
version) is trained and judged. Its authors enlarge frames to 96x96 from the 512x512 of the original
engine, which envpool's does not render.

15 actions, no frame skip, no sticky actions; the observation is a uint8 `[64, 64, 3]` frame.
Levels are drawn at random from an instance's seed. An episode terminates when a level is completed
or lost, and is truncated at the game's own time limit (1,000 steps; 500 in leaper and maze, 4,000
in bossfight and plunder, 6,000 in bigfish). The engine reports such a truncation as a termination.
`results` says whether the level was completed.
"""

import dataclasses
import importlib
from types import ModuleType

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment
from environments.errors import MissingPackageError, import_package
from environments.processes import available_processors

NUM_ACTIONS = 15
NUM_TRAINING_LEVELS = 500
_NUM_LEVELS = 2**31 - 1  # The engine draws from a range of 32-bit level seeds.
GAMES = tuple(
    """bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper
    maze miner ninja plunder starpilot""".split()
)
TIME_LIMITS = dict.fromkeys(GAMES, 1_000) | {
    "bigfish": 6_000,
    "bossfight": 4_000,
    "leaper": 500,
    "maze": 500,
    "plunder": 4_000,
}
SUITES = {
    "procgen16": tuple(f"procgen/{game}" for game in GAMES),
    "procgen16_unseen": tuple(f"procgen_unseen/{game}" for game in GAMES),
    "procgen16_all": tuple(f"procgen_all/{game}" for game in GAMES),
}


@dataclasses.dataclass(frozen=True)
class ProcGen:
    """ProcGen games; the task is the game's name.

    Attributes:
      first_level: the first of the levels that episodes are drawn from.
      num_levels: their number; 0 for no limit.
    """

    first_level: int = 0
    num_levels: int = NUM_TRAINING_LEVELS

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((64, 64, 3), np.uint8, 0, 255, name="frame")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(NUM_ACTIONS, name="action")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> "ProcGenSimulators":
        return ProcGenSimulators(self, task, batch_size, seed, workers)


class ProcGenSimulators:
    """Instances of one game on the engine's own threads.

    `results` has whether a level was completed. The same seed gives the same games, for any number
    of threads.
    """

    def __init__(
        self, settings: ProcGen, game: str, batch_size: int, seed: int, workers: int | None
    ):
        self.batch_size, self.restarts = batch_size, 0
        self._engine = _import_envpool().make_dm(
            f"{game.capitalize()}Hard-v0",
            num_envs=batch_size,
            seed=seed,
            num_threads=min(batch_size, workers or available_processors()),
            start_level=settings.first_level,
            num_levels=settings.num_levels,
        )
        self._time_limit = TIME_LIMITS[game]
        self._length = np.zeros(batch_size, np.int64)
        self._frames = np.zeros((batch_size, 64, 64, 3), np.uint8)
        self.results: dict[str, np.ndarray] = {"level_completed": np.zeros(batch_size, np.float32)}

    def reset(self) -> dm_env.TimeStep:
        self._length[:] = 0
        return self._convert(self._engine.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        timestep = self._engine.step(np.asarray(action, np.int32))
        self._length = np.where(timestep.step_type == dm_env.StepType.FIRST, 0, self._length + 1)
        return self._convert(timestep)

    def close(self) -> None:
        self._engine.close()

    def _convert(self, timestep) -> dm_env.TimeStep:
        completed = timestep.observation.prev_level_complete.astype(np.float32)
        self.results["level_completed"] = completed
        for channel in range(3):  # Five times faster than a transposed copy.
            self._frames[..., channel] = timestep.observation.obs[:, channel]
        is_last = timestep.step_type == dm_env.StepType.LAST
        is_truncated = is_last & (self._length >= self._time_limit) & (completed == 0)
        is_first = timestep.step_type == dm_env.StepType.FIRST
        return dm_env.TimeStep(
            step_type=timestep.step_type.astype(np.int32),
            reward=np.where(is_first, 0.0, timestep.reward).astype(np.float32),
            discount=np.where(is_last & ~is_truncated, 0.0, 1.0).astype(np.float32),
            observation=self._frames,
        )


_LEVELS = {
    "procgen": ProcGen(),
    "procgen_unseen": ProcGen(NUM_TRAINING_LEVELS, _NUM_LEVELS - NUM_TRAINING_LEVELS),
    "procgen_all": ProcGen(0, _NUM_LEVELS),
}


def make(name: str) -> Environment:
    """Make an environment of one of the suites, for example `procgen_unseen/bigfish`.

    Raises:
      MissingPackageError: if envpool, or a library that it needs, is not installed.
    """
    _import_envpool()
    family, _, game = name.partition("/")
    return Environment(name=name, dynamics=_LEVELS[family], params=game)


def _import_envpool() -> ModuleType:
    envpool = import_package("envpool", "procgen", "procgen/…")
    try:
        _ = importlib.import_module("envpool.procgen").ProcgenEnvSpec  # Its classes load lazily.
    except (ImportError, AttributeError) as error:
        raise MissingPackageError(
            "Environments named 'procgen/…' need the system library Qt 5 (libQt5Gui.so.5,"
            f" libQt5Core.so.5), for which envpool's ProcGen is built: {error}. On Debian or"
            " Ubuntu: apt-get install libqt5gui5"
        ) from error
    return envpool

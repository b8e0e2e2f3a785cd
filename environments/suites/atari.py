"""Atari 2600 games through the Arcade Learning Environment's vector engine.

Two protocols, each a suite; sticky actions, action sets and no-ops are settings of `Atari`.

`atari57`, the environments `atari/<Game>`: 57 games, 200 million frames. Sticky actions with
probability 0.25, the full set of 18 actions, no reward clipping, no life-loss signal, no
no-ops at the start: Machado et al. 2018, "Revisiting the Arcade Learning Environment" (arXiv
1709.06009), section 5.
Episodes are truncated after 108,000 frames (30 minutes), as in Hessel et al. 2018, "Rainbow";
Machado et al. truncate after 18,000 (5 minutes). Scores in DiscoRL (Oh et al. 2025,
https://www.nature.com/articles/s41586-025-09761-x; Methods, Extended Data Table 1) are of this
protocol's budget.

`atari100k`, the environments `atari100k/<Game>`: 26 games, 400,000 frames. No sticky actions,
each game's own minimal action set, up to 29 no-ops at the start of an episode, episodes truncated
after 108,000 frames. Budget, frame skip and games: Kaiser et al. 2020 (arXiv 1903.00374); IRIS
(Micheli et al. 2023, arXiv 2209.00588), section 3.1; DreamerV3 (arXiv 2301.04104v1), Table A.1. The
rest is custom since Mnih et al. 2015. Some agents end training episodes at the loss of a life
(IRIS, `agents.protocol.Requirements.ends_at_life_loss`): `results` has the remaining lives, at
every step; the stream itself continues.

Papers with another protocol name it by arguments (`environments.names`): `sticky`, the probability
of sticky actions, and `noops`, below which the number of no-ops is. `atari/Pong?noops=30&sticky=0`
is Pong by the protocol of DiCE (Xiao et al. 2021, table 5). Scores by other protocols are not those
of the suite.

In both an action is repeated for 4 frames, of which the last two are max-pooled. The observation is
one grey uint8 `[84, 84, 1]` frame (agents stack 4: `agents.history`). Agents whose papers have
others choose them (`environments.with_images`): IRIS and DreamerV3 `[64, 64, 3]`. The end of a game
is a termination; the frame limit truncates.
"""

import dataclasses
import functools
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments import names
from environments.base import Environment
from environments.errors import EnvironmentNameError, import_package, unknown_name
from environments.processes import available_processors

_ARGUMENTS = {"sticky": ("sticky", 1.0), "noops": ("max_noops", 100)}  # Field, largest value.
FRAME_SKIP = 4
MAX_FRAMES = 108_000
NUM_ACTIONS = 18

GAMES_57 = tuple(
    """Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk
    Bowling Boxing Breakout Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk
    Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond Kangaroo Krull
    KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong PrivateEye Qbert
    Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Surround Tennis
    TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon""".split()
)
GAMES_100K = tuple(
    """Alien Amidar Assault Asterix BankHeist BattleZone Boxing Breakout ChopperCommand CrazyClimber
    DemonAttack Freeway Frostbite Gopher Hero Jamesbond Kangaroo Krull KungFuMaster MsPacman Pong
    PrivateEye Qbert RoadRunner Seaquest UpNDown""".split()
)
SUITES = {
    "atari57": tuple(f"atari/{game}" for game in GAMES_57),
    "atari100k": tuple(f"atari100k/{game}" for game in GAMES_100K),
}
_SUITE_OF = {"atari": "atari57", "atari100k": "atari100k"}  # By family.


@dataclasses.dataclass(frozen=True)
class Atari:
    """Atari games with a common number of actions; the task is the game's ROM name.

    Where a game has fewer actions than `num_actions` (Skiing has 9 legal ones even with the full
    set), the other actions equal its action 0, the no-op.

    Attributes:
      num_actions: that an agent chooses from.
      full_action_set: whether a game has all 18 actions, not its own minimal set.
      sticky: probability that the previous action is repeated instead.
      max_noops: the number of no-ops that start an episode is uniform below this; 0 for none.
      max_frames: frames after which an episode is truncated.
      side: of the images, in pixels.
      channels: 1 for grey images, 3 for RGB.
    """

    num_actions: int = NUM_ACTIONS
    full_action_set: bool = True
    sticky: float = 0.25
    max_noops: int = 0
    max_frames: int = MAX_FRAMES
    side: int = 84
    channels: int = 1

    def observation_spec(self) -> specs.BoundedArray:
        shape = (self.side, self.side, self.channels)
        return specs.BoundedArray(shape, np.uint8, 0, 255, name="frame")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self.num_actions, name="action")

    def with_images(self, side: int, channels: int) -> "Atari":
        return dataclasses.replace(self, side=side, channels=channels)

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> "AtariSimulators":
        return AtariSimulators(self, task, batch_size, seed, workers)


class AtariSimulators:
    """Instances of one game on the engine's own threads. `results` has the remaining lives.

    The same seed gives the same games, for any number of threads.
    """

    def __init__(self, settings: Atari, rom: str, batch_size: int, seed: int, workers: int | None):
        self.batch_size, self.restarts = batch_size, 0
        self._seed: int | None = seed
        engine = import_package("ale_py.vector_env", "atari", "atari/…")
        self._engine: Any = engine.AtariVectorEnv(
            rom,
            batch_size,
            num_threads=workers or available_processors(),
            max_num_frames_per_episode=settings.max_frames,
            repeat_action_probability=settings.sticky,
            full_action_space=settings.full_action_set,
            img_height=settings.side,
            img_width=settings.side,
            grayscale=settings.channels == 1,
            stack_num=1,
            frameskip=FRAME_SKIP,
            maxpool=True,
            noop_max=settings.max_noops,
            reward_clipping=False,
            use_fire_reset=False,
        )
        legal = int(self._engine.single_action_space.n)
        self._legal_action = np.zeros(settings.num_actions, np.int32)
        self._legal_action[:legal] = np.arange(legal)
        self._ended = np.zeros(batch_size, bool)
        self.results: dict[str, np.ndarray] = {"lives": np.zeros(batch_size, np.float32)}

    def reset(self) -> dm_env.TimeStep:
        frames, _ = self._engine.reset(seed=self._seed)
        self._seed = None  # A second reset continues the games' random streams.
        self._ended[:] = False
        return dm_env.TimeStep(
            step_type=np.full(self.batch_size, dm_env.StepType.FIRST, np.int32),
            reward=np.zeros(self.batch_size, np.float32),
            discount=np.ones(self.batch_size, np.float32),
            observation=_channels_last(frames),
        )

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        frames, reward, terminated, truncated, info = self._engine.step(self._legal_action[action])
        started, self._ended = self._ended, terminated | truncated
        self.results["lives"] = info["lives"].astype(np.float32)
        first, mid, last = dm_env.StepType
        return dm_env.TimeStep(
            step_type=np.where(started, first, np.where(self._ended, last, mid)).astype(np.int32),
            reward=np.where(started, 0.0, reward).astype(np.float32),
            # A game that ends in the frame of the limit has terminated.
            discount=np.where(terminated, 0.0, 1.0).astype(np.float32),
            observation=_channels_last(frames),
        )

    def close(self) -> None:
        self._engine = None  # Ends its threads.


def _channels_last(frames: np.ndarray) -> np.ndarray:
    """Return frames `[B, H, W, C]` from the engine's, of a stack of one: grey or RGB."""
    return np.moveaxis(frames, 1, -1) if frames.ndim == 4 else frames[:, 0]


def make(name: str) -> Environment:
    """Make `atari/<game>` or `atari100k/<game>`, by its suite's protocol or as arguments change it.

    Raises:
      EnvironmentNameError: if there is no such game or argument.
      MissingPackageError: if ale-py is not installed.
    """
    member, arguments = names.split(name)
    family, _, game = member.partition("/")
    if member not in SUITES[_SUITE_OF[family]]:
        raise unknown_name(member, SUITES[_SUITE_OF[family]])
    import_package("ale_py", "atari", f"{family}/…")
    # The engine's name of a game is `ms_pacman` for `MsPacman`.
    rom = "".join(f"_{c.lower()}" if c.isupper() else c for c in game).removeprefix("_")
    dynamics = Atari()
    if family == "atari100k":
        dynamics = Atari(
            num_actions=_num_minimal_actions(rom), full_action_set=False, sticky=0.0, max_noops=30
        )
    for argument, value in arguments.items():
        field, largest = _ARGUMENTS.get(argument, ("", 0))
        kind = type(largest)
        if not field:
            raise EnvironmentNameError(
                f"{member} has no argument {argument!r}; expected {' or '.join(_ARGUMENTS)}."
            )
        if type(value) not in (int, kind) or not 0 <= value <= largest:
            what = "a whole number" if kind is int else "a number"
            raise EnvironmentNameError(
                f"{member}'s argument {argument!r} is {value!r}; expected {what} from 0 to"
                f" {largest}."
            )
        dynamics = dataclasses.replace(dynamics, **{field: kind(value)})
    return Environment(names.with_arguments(member, arguments), dynamics, rom)


@functools.cache
def _num_minimal_actions(rom: str) -> int:
    ale_py = import_package("ale_py", "atari", "atari100k/…")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    game = ale_py.ALEInterface()
    game.loadROM(ale_py.roms.get_rom_path(rom))
    return len(game.getMinimalActionSet())

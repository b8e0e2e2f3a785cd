"""NetHack through the NetHack Learning Environment (Küttler et al. 2020, arXiv 2006.13760).

Two environments, the suite `nethack`:

`nethack/NetHackChallenge`: the task of the NeurIPS 2021 NetHack Challenge (Hambro et al. 2022,
arXiv 2203.11889), on which DiscoRL's Extended Data Table 4 was measured
(https://www.nature.com/articles/s41586-025-09761-x). 121 actions, the whole keyboard; the character
is drawn at random; menus, questions and "--More--" are not skipped; the reward is the increase of
the in-game score, without penalties. An episode terminates when the game is over, and is truncated
after a million steps, or when the game's turn counter has not changed for some thousands of steps
(NLE's limit is 10,000, and it counts most steps twice).

`nethack/NetHackScore`: NLE's own score task. 23 actions, a neutral human monk, menus skipped,
a penalty of 0.01 for steps in which no time passes, episodes truncated after 5,000 steps.

No frame skip. The observation is a dictionary: `glyphs` int16 `[21, 79]`, the map; `blstats`
int32 `[27]`, the bottom line's numbers (0 and 1 are the hero's column and row); `message` uint8
`[256]`, ASCII; `inventory_glyphs` int16 `[55]` and `inventory_letters` uint8 `[55]`; `misc` int32
`[3]`, whether the game waits for a yes or no, a line of text, a key.

`results` has the score in points, the deepest level reached, the experience level, and the
game's turns.

In the competition seeds cannot be chosen. Here they can, by the engine's own interface: the same
seed gives the same games. The phase of the moon, Friday the 13th and the night, which the game
reads from the clock, depend on the seed as well.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import dm_env
import numpy as np
from dm_env import specs
from jaxtyping import Integer, UInt8
from PIL import Image, ImageDraw, ImageFont

from environments.base import Environment, FilmedSimulator, Simulators
from environments.errors import import_package
from environments.processes import ProcessSimulators

NUM_GLYPHS = 5977  # NLE's MAX_GLYPH + 1; glyphs run from 0 to it.
NUM_ACTIONS = {"NetHackChallenge": 121, "NetHackScore": 23}
SUITES = {"nethack": tuple(f"nethack/{task}" for task in NUM_ACTIONS)}

_RESULTS = ("score", "depth", "experience_level", "turns")
# Of NLE's bottom-line statistics.
_SCORE, _DEPTH, _EXPERIENCE_LEVEL, _TIME = 9, 12, 18, 20
_TERMINAL = ("tty_chars", "tty_colors")
_NUMBER = np.iinfo(np.int32)
_OBSERVATIONS = {  # NLE's name, shape, dtype, smallest and largest number.
    "glyphs": ("glyphs", (21, 79), np.int16, 0, NUM_GLYPHS - 1),
    "blstats": ("blstats", (27,), np.int32, _NUMBER.min, _NUMBER.max),
    "message": ("message", (256,), np.uint8, 0, 255),
    "inventory_glyphs": ("inv_glyphs", (55,), np.int16, 0, NUM_GLYPHS - 1),
    "inventory_letters": ("inv_letters", (55,), np.uint8, 0, 127),
    "misc": ("misc", (3,), np.int32, _NUMBER.min, _NUMBER.max),
}
_KEYS = {name: nle_name for name, (nle_name, *_) in _OBSERVATIONS.items()}


@dataclasses.dataclass(frozen=True)
class NetHack:
    """NetHack; the task is NLE's name without its version.

    Attributes:
      num_actions: of the task.
      max_steps: after which an episode is truncated; None for the task's own limit.
    """

    num_actions: int
    max_steps: int | None = None

    def observation_spec(self) -> dict[str, specs.Array]:
        return {
            name: specs.BoundedArray(*array, name=name)
            for name, (_, *array) in _OBSERVATIONS.items()
        }

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self.num_actions, name="key")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        make_game = functools.partial(NetHackGame, task, self.max_steps)
        return ProcessSimulators(make_game, self, batch_size, seed, _RESULTS, workers)

    def filmed(self, task: str, seed: int) -> FilmedSimulator:
        return NetHackGame(task, self.max_steps, seed, is_filmed=True)


class NetHackGame(FilmedSimulator):
    """One game of NetHack."""

    def __init__(self, task: str, max_steps: int | None, seed: int, is_filmed: bool = False):
        """Start the engine; `is_filmed` keeps the terminal's text for `render`."""
        tasks = import_package("nle.env.tasks", "nethack", "nethack/…")
        options: dict[str, Any] = {} if max_steps is None else {"max_episode_steps": max_steps}
        self._game = getattr(tasks, task)(
            observation_keys=(*_KEYS.values(), *(_TERMINAL if is_filmed else ())),
            fix_moon_phase=True,
            **options,
        )
        self._aborted = self._game.StepStatus.ABORTED
        self._random = np.random.default_rng(seed)
        self._screen: dict[str, np.ndarray] = {}
        self._terminal: dict[str, np.ndarray] = {}
        self._deepest = 0

    def reset(self) -> dm_env.TimeStep:
        # The challenge's class disables its own seeding, but not its engine's.
        core, display = self._random.integers(2**62, size=2).tolist()
        self._game.nethack._pynethack.set_initial_seeds(core, display, False, None)
        observation, _ = self._game.reset()
        self._deepest = 0
        self._store_observation(observation)
        return dm_env.restart(self._screen)

    def step(self, action: int | np.integer) -> dm_env.TimeStep:
        observation, reward, done, _, info = self._game.step(int(action))
        if not done:
            self._store_observation(observation)
            return dm_env.transition(reward, self._screen)
        # After the end the engine's screen is blank; the last screen is repeated. To truncate an
        # episode the engine quits the game first, so its last screen is that of the step before.
        if info["end_status"] == self._aborted:
            return dm_env.truncation(reward, self._screen, discount=1.0)
        return dm_env.termination(reward, self._screen)

    def episode_results(self) -> dict[str, float]:
        """Return the results of the game so far."""
        blstats = self._screen["blstats"]
        return {
            "score": float(blstats[_SCORE]),
            "depth": float(self._deepest),
            "experience_level": float(blstats[_EXPERIENCE_LEVEL]),
            "turns": float(blstats[_TIME]),
        }

    def render(self) -> np.ndarray:
        return draw_terminal(*(self._terminal[name] for name in _TERMINAL))

    def close(self) -> None:
        self._game.close()

    def _store_observation(self, observation: dict[str, np.ndarray]) -> None:
        """Copy the engine's observation, whose arrays it reuses."""
        self._screen = {ours: observation[theirs].copy() for ours, theirs in _KEYS.items()}
        self._terminal = {name: x.copy() for name, x in observation.items() if name in _TERMINAL}
        self._deepest = max(self._deepest, int(self._screen["blstats"][_DEPTH]))


def make(name: str) -> Environment:
    """Make an environment of the suite.

    Raises:
      MissingPackageError: if nle is not installed.
    """
    import_package("nle", "nethack", "nethack/…")
    task = name.removeprefix("nethack/")
    return Environment(name=name, dynamics=NetHack(NUM_ACTIONS[task]), params=task)


_SIZE = 12  # Of the font, in pixels.
# The sixteen colours of a terminal, those of VGA; its blue is too dark to read on black.
_COLOURS = (
    *((85, 85, 85), (170, 0, 0), (0, 170, 0), (170, 85, 0)),
    *((85, 85, 255), (170, 0, 170), (0, 170, 170), (170, 170, 170)),
    *((85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85)),
    *((120, 120, 255), (255, 85, 255), (85, 255, 255), (255, 255, 255)),
)


def draw_terminal(
    characters: Integer[np.ndarray, "rows columns"], colours: Integer[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a terminal's characters, bytes of Latin-1, in their colours, of 0 to 15."""
    font, (width, height) = _font()
    rows, columns = characters.shape
    image = Image.new("RGB", (columns * width, rows * height))
    draw = ImageDraw.Draw(image)
    for row, column in zip(*np.nonzero((characters > 32) & (characters != 127)), strict=True):
        text = chr(int(characters[row, column]))
        colour = _COLOURS[int(colours[row, column]) % len(_COLOURS)]
        draw.text((column * width, row * height), text, fill=colour, font=font)
    return np.asarray(image)


@functools.cache
def _font() -> tuple[ImageFont.FreeTypeFont, tuple[int, int]]:
    """Return Matplotlib's font of equally wide characters, and the size of one."""
    import matplotlib

    path = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    font = ImageFont.truetype(str(path), _SIZE)
    ascent, descent = font.getmetrics()
    return font, (round(font.getlength("M")), ascent + descent)

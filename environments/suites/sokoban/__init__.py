"""Sokoban: the player pushes boxes onto targets.

Weber et al. 2017, "Imagination-augmented agents for deep reinforcement learning" (section on
Sokoban and its appendix); Guez et al. 2019, "An investigation of model-free planning". Rooms of
10x10 with 4 boxes. -0.1 per step, +1 for a box pushed onto a target, -1 for one pushed off a
target, +10 when all boxes are on targets, which terminates the episode; it is truncated after 120
steps.

Each episode draws a level from the task's pool. `sokoban/train`, the suite `sokoban`, has 10,000
generated levels; `sokoban/valid` and `sokoban/test` have 1,000 others each, for evaluation on
levels never trained on. (The papers' pool of "unfiltered" training levels has 900,000.)
`sokoban/file:PATH` has the levels of a Boxoban text file. `generator` makes levels, `levels` reads
and writes files of them.

The observation is the compact symbolic form, in place of the papers' images of the same.
"""

import functools
import hashlib
import os

from disco_common import files
from environments.base import Environment
from environments.errors import EnvironmentNameError, unknown_name
from environments.protocols import DISCORL, Paper, SuiteProtocol
from environments.suites.sokoban import generator, levels
from environments.suites.sokoban.game import TIME_LIMIT, Sokoban, make_task
from environments.suites.sokoban.generator import POOL_SIZES
from environments.suites.sokoban.levels import Levels

SUITES = {"sokoban": ("sokoban/train",)}
PROTOCOLS = {
    "sokoban": SuiteProtocol(
        max_episode_frames=TIME_LIMIT,
        papers=(
            Paper(
                "Weber et al. 2017, Imagination-augmented agents for deep reinforcement learning",
                "https://arxiv.org/abs/1707.06203",
            ),
            Paper(
                "Guez et al. 2019, An investigation of model-free planning",
                "https://arxiv.org/abs/1901.03559",
            ),
            DISCORL,
        ),
    )
}


def make(name: str) -> Environment:
    """Make `sokoban/train`, `sokoban/valid`, `sokoban/test` or `sokoban/file:PATH`.

    Raises:
      EnvironmentNameError: if it is none of these, or the file cannot be opened.
      ValueError: if the file is malformed, naming the line and the column.
    """
    pool, sha256 = name.removeprefix("sokoban/"), None
    if pool.startswith("file:"):
        path = pool.removeprefix("file:")
        try:
            content = files.read_bytes(os.path.expanduser(path), files.MOST_DATA)
        except (OSError, ValueError) as error:
            raise EnvironmentNameError(
                f"{name!r} needs a file of levels, which cannot be read: {error}"
            ) from error
        pool_levels, sha256 = levels.parse(content, path), hashlib.sha256(content).hexdigest()
    elif pool in POOL_SIZES:
        pool_levels = _generated(pool)
    else:
        known = [f"sokoban/{split}" for split in POOL_SIZES]
        hint = "Levels of a Boxoban text file are 'sokoban/file:PATH'."
        raise unknown_name(name, known, hint)
    dynamics = Sokoban(capacity=max(Sokoban.capacity, len(pool_levels)))
    return Environment(name, dynamics, make_task(dynamics, pool_levels), sha256)


@functools.cache
def _generated(split: str) -> Levels:
    pool_levels = generator.generate(split, POOL_SIZES[split])
    pool_levels.flags.writeable = False  # The cache shares it.
    return pool_levels

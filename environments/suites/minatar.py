"""MinAtar (Young & Tian 2019) in gymnax's implementation: five games on 10x10 grids, in JAX.

The environments `minatar/<game>` are the suite `minatar`. They are `gymnax/<Game>-MinAtar` under
other names, by gymnax's protocol. Observations are float32 `[10, 10, channels]` of zeros and
ones; there is no frame skip; the end of a game is a termination.

It differs from MinAtar's own protocol. Actions are not sticky (there with probability 0.1), so
that Space Invaders is deterministic, and Breakout but for the side from which the ball starts.
Each game has its minimal set of actions (there all six in every game). An episode is truncated
after 1,000 steps, in Freeway after 2,500 (there Freeway terminates after 2,500, and the others have
no limit). The difficulty ramps up as there. Scores therefore cannot be compared with MinAtar's.
"""

import dataclasses

from environments.base import Environment
from environments.errors import unknown_name
from environments.protocols import Paper, SuiteProtocol
from environments.suites import gymnax

GAMES = {
    "asterix": "Asterix-MinAtar",
    "breakout": "Breakout-MinAtar",
    "freeway": "Freeway-MinAtar",
    "seaquest": "Seaquest-MinAtar",
    "space_invaders": "SpaceInvaders-MinAtar",
}
SUITES = {"minatar": tuple(f"minatar/{game}" for game in GAMES)}
PROTOCOLS = {
    "minatar": SuiteProtocol(
        papers=(
            Paper(
                "Young and Tian 2019, MinAtar: An Atari-inspired testbed for thorough and"
                " reproducible reinforcement learning experiments",
                "https://arxiv.org/abs/1903.03176",
            ),
            gymnax.LANGE,
        )
    )
}


def make(game: str) -> Environment:
    """Make `minatar/<game>`, for example `minatar/breakout`.

    Raises:
      EnvironmentNameError: if there is no such game.
      MissingPackageError: if gymnax is not installed.
    """
    if game not in GAMES:
        raise unknown_name("MinAtar game", game, GAMES, prefix="minatar/")
    return dataclasses.replace(gymnax.make(GAMES[game]), name=f"minatar/{game}")

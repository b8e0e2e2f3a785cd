"""Published protocols of suites: how papers train and score agents.

Each module of `environments.suites` has a table `PROTOCOLS`, by the names of its suites.
"""

import dataclasses
from typing import NamedTuple

RETURN, BSUITE_SCORE, CRAFTER_SCORE = "return", "bsuite_score", "crafter_score"


class Paper(NamedTuple):
    """A publication that defines a benchmark or reports scores on it."""

    citation: str
    url: str


DISCORL = Paper(
    "Oh et al. 2025, Discovering state-of-the-art reinforcement learning algorithms",
    "https://www.nature.com/articles/s41586-025-09761-x",
)
DREAMERV3 = Paper(
    "Hafner et al. 2023, Mastering diverse domains through world models",
    "https://arxiv.org/abs/2301.04104",
)
LPG = Paper(
    "Oh et al. 2020, Discovering reinforcement learning algorithms",
    "https://arxiv.org/abs/2007.08794",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteProtocol:
    """The published protocol of a suite. A frame is one step of the simulator.

    Attributes:
      frames_per_action: frames for which each action is repeated.
      max_episode_frames: frames after which an episode is truncated; None if there is no limit,
        or one of each environment's own.
      budget_frames: frames of a training run, by the benchmark's own rules; None if they set
        none. Papers may report other budgets: see `evaluation/published`.
      scores: what papers report, of `RETURN` (the mean episode return), `BSUITE_SCORE` and
        `CRAFTER_SCORE`.
      papers: that define the benchmark and its protocol, or report scores.
    """

    frames_per_action: int = 1
    max_episode_frames: int | None = None
    budget_frames: int | None = None
    scores: tuple[str, ...] = (RETURN,)
    papers: tuple[Paper, ...] = ()

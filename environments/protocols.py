"""Published protocols of suites: how papers train and score agents.

Each module of `environments.suites` has a table `PROTOCOLS`, by the names of its suites.
"""

import dataclasses

RETURN, BSUITE_SCORE, CRAFTER_SCORE = "return", "bsuite_score", "crafter_score"


DISCORL = "Oh et al. 2025, https://www.nature.com/articles/s41586-025-09761-x"
DREAMERV3 = "Hafner et al. 2023, https://arxiv.org/abs/2301.04104"
LPG = "Oh et al. 2020, https://arxiv.org/abs/2007.08794"


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
      papers: that define the benchmark and its protocol, or report scores: authors, year and link.
    """

    frames_per_action: int = 1
    max_episode_frames: int | None = None
    budget_frames: int | None = None
    scores: tuple[str, ...] = (RETURN,)
    papers: tuple[str, ...] = ()

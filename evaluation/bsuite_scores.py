"""Scores of bsuite (Osband et al. 2020), made by bsuite's own analysis.

A run of a setting is a list of episodes. bsuite logs some of them (1, 2, ..., 10, 12, 14, 17, 20,
25, 30, ...), and scores an experiment between 0 and 1 from the logs of its settings. The score of
a tag (what a capability is called there) is the mean over its experiments, as in bsuite's radar
plot. Both are over what there is: a subset of settings or experiments has scores, too.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl

from environments import bsuite_adapter
from environments.errors import import_package, require


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of a run.

    Attributes:
      length: steps.
      total_reward: their undiscounted sum.
      results: bsuite's counts of the simulator since the run began, this episode included.
    """

    length: int
    total_reward: float
    results: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Scores:
    """What bsuite makes of runs.

    Attributes:
      experiments: the score of each.
      tags: the mean score of the experiments that have a tag.
      unfinished: experiments in which some run has fewer episodes than bsuite asks for.
    """

    experiments: dict[str, float]
    tags: dict[str, float]
    unfinished: tuple[str, ...]


def score(runs: Mapping[str, Sequence[Episode]]) -> Scores:
    """Scores runs, one of each setting.

    Args:
      runs: episodes in order, all of one simulator, by the names of environments, for example
        `"bsuite/catch/0"`.

    Raises:
      ValueError: if there is no run, or one without episodes.
      MissingPackageError: if bsuite is not installed.
    """
    require(bool(runs), "There is no run to score.")
    for name, episodes in runs.items():
        bsuite_adapter.num_episodes(name)  # Knows which names there are.
        require(len(episodes) > 0, f"The run of {name!r} has no episode to score.")
    # bsuite's plots set Matplotlib's style when they are imported.
    with mpl.rc_context():
        summary = _import("experiments.summary_analysis")
    with _series_can_append(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of pandas, about bsuite's use of it.
        table = summary.bsuite_score(_logs(runs))
        tags = summary.ave_score_by_tag(table, []).dropna()
    return Scores(
        experiments=dict(zip(table.bsuite_env, map(float, table.score), strict=True)),
        tags=dict(sorted(zip(tags.tag, map(float, tags.score), strict=True))),
        unfinished=tuple(table.bsuite_env[~table.finished.astype(bool)]),
    )


def _logs(runs: Mapping[str, Sequence[Episode]]) -> Any:
    """The table that bsuite would read from its logs of the runs."""
    rows = [
        row
        for name, episodes in runs.items()
        for row in _logged(name.removeprefix("bsuite/"), episodes)
    ]
    return _import("logging.logging_utils").join_metadata(_pandas().DataFrame(rows))


def _logged(bsuite_id: str, episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    is_logged = _import("utils.wrappers")._logarithmic_logging
    steps, total_return = 0, 0.0
    for number, episode in enumerate(episodes, 1):
        steps += episode.length
        total_return += episode.total_reward
        if is_logged(number):
            yield {
                "bsuite_id": bsuite_id,
                "steps": steps,
                "episode": number,
                "total_return": total_return,
                "episode_len": episode.length,
                "episode_return": episode.total_reward,
                **episode.results,
            }


@contextlib.contextmanager
def _series_can_append() -> Iterator[None]:
    """Lends pandas a method that bsuite calls, and that went with pandas 2."""
    series = _pandas().Series
    if hasattr(series, "append"):
        yield
        return
    series.append = lambda self, other: _pandas().concat([self, other])
    try:
        yield
    finally:
        del series.append


def _import(module: str) -> Any:
    return import_package(f"bsuite.{module}", "bsuite", "bsuite/…")


def _pandas() -> Any:
    return import_package("pandas", "bsuite", "bsuite/…")

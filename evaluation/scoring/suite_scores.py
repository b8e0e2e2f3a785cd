"""Scores that suites define: Crafter's achievements, and bsuite's experiments.

Crafter (Hafner 2021, arXiv 2109.06780) has success rates of achievements, and the Crafter score.

bsuite (Osband et al. 2020) is scored by its own analysis. A run of a setting is a list of episodes.
bsuite logs some of them (1, 2, ..., 10, 12, 14, 17, 20, 25, 30, ...) and computes an experiment's
score, between 0 and 1, from the logs of its settings. The score of a tag (bsuite's word for a
capability) is the mean over the tag's experiments, as in bsuite's radar plot. A subset of the
settings or experiments is scored, too.
"""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Float

from environments.errors import import_package, require
from environments.simulators import Episode
from environments.suites import bsuite, crafter
from evaluation.results import LearningCurves
from evaluation.scoring import statistics


@dataclasses.dataclass(frozen=True)
class CrafterScores:
    """One contender's results on a Crafter task.

    Attributes:
      success_rates: of each achievement, in percent of the scored episodes, the mean over runs.
      scores: the Crafter score of each run, in percent.
    """

    success_rates: dict[str, float]
    scores: Float[np.ndarray, "runs"]


def crafter_score(
    success_rates: Float[np.ndarray, "runs achievements"],
) -> Float[np.ndarray, "runs"]:
    """Return the geometric mean of each run's success rates, offset by 1%, in percent.

    Args:
      success_rates: fractions of the episodes in which each achievement was unlocked.
    """
    return np.expm1(np.mean(np.log1p(100.0 * success_rates), axis=-1))


def score_achievements(
    contender_curves: Mapping[str, LearningCurves], task: int
) -> dict[str, CrafterScores]:
    """Return the scores of each contender on a task; without those that have no achievements.

    Args:
      contender_curves: the learning curves by contender.
      task: index on the curves' first axis.
    """
    return {
        name: scores
        for name, curves in contender_curves.items()
        if (scores := _score(curves, task)) is not None
    }


def _score(curves: LearningCurves, task: int) -> CrafterScores | None:
    if not set(crafter.ACHIEVEMENTS) <= set(curves.results):
        return None
    rates = np.stack([curves.results[name][task] for name in crafter.ACHIEVEMENTS], axis=-1)
    rates = rates[np.isfinite(rates).all(axis=-1)]
    if not len(rates):
        return None
    percent = 100.0 * rates.mean(axis=0)
    return CrafterScores(
        success_rates=dict(zip(crafter.ACHIEVEMENTS, percent, strict=True)),
        scores=crafter_score(rates),
    )


@dataclasses.dataclass(frozen=True)
class BsuiteScores:
    """bsuite's scores of runs of one seed.

    Attributes:
      experiments: the score of each experiment.
      tags: the mean score of each tag's experiments.
      unfinished: experiments in which some run has fewer episodes than bsuite asks for.
    """

    experiments: dict[str, float]
    tags: dict[str, float]
    unfinished: tuple[str, ...]


def settings_of(tasks: Sequence[str]) -> list[str]:
    """Return the tasks that are bsuite's."""
    return [task for task in tasks if task.startswith("bsuite/")]


def score_contenders(
    contenders: Sequence[str],
    settings: Sequence[str],
    seeds: Sequence[int],
    read_episodes: Callable[[str, str, int], Sequence[Episode]],
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    """Return the scores of each contender's seeds, and the errors of episodes that are damaged.

    A seed counts if all of its runs have episodes. Contenders without such a seed are left out.

    Args:
      contenders: names.
      settings: of bsuite.
      seeds: to score.
      read_episodes: returns the episodes of a run, by contender, setting and seed; raises a
        ValueError if they are damaged.
    """
    scores: dict[str, list[BsuiteScores]] = {}
    errors: dict[tuple[str, int], ValueError] = {}
    for contender, seed in itertools.product(contenders, seeds):
        try:
            runs = {setting: read_episodes(contender, setting, seed) for setting in settings}
        except ValueError as error:
            errors[contender, seed] = error
            continue
        if all(runs.values()):
            scores.setdefault(contender, []).append(score(runs))
    return scores, errors


def score(runs: Mapping[str, Sequence[Episode]]) -> BsuiteScores:
    """Return the scores of runs, one of each setting.

    Args:
      runs: episodes in order, of one simulator at a time, by the names of environments, for
        example `"bsuite/catch/0"`.

    Raises:
      ValueError: if there is no run, or a run has no episode.
      MissingPackageError: if bsuite is not installed.
    """
    require(bool(runs), "There is no run to score.")
    for name, episodes in runs.items():
        bsuite.num_episodes(name)  # Refuses unknown names.
        require(len(episodes) > 0, f"The run of {name!r} has no episode to score.")
    # Importing bsuite's plots sets Matplotlib's style.
    with mpl.rc_context():
        summary = _import("experiments.summary_analysis")
    with _series_can_append(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas warns of how bsuite uses it.
        table = summary.bsuite_score(_logs(runs))
        tags = summary.ave_score_by_tag(table, []).dropna()
    return BsuiteScores(
        experiments=dict(zip(table.bsuite_env, map(float, table.score), strict=True)),
        tags=dict(sorted(zip(tags.tag, map(float, tags.score), strict=True))),
        unfinished=tuple(table.bsuite_env[~table.finished.astype(bool)]),
    )


def to_csv(scores: Mapping[str, Sequence[BsuiteScores]]) -> str:
    """Return a CSV table with a row for each contender and experiment, and contender and tag.

    Args:
      scores: of each contender's seeds.
    """
    rows = []
    for contender, seeds in scores.items():
        for kind, field in (("experiment", "experiments"), ("tag", "tags")):
            for name in getattr(seeds[0], field):
                values = np.array([getattr(one, field)[name] for one in seeds])
                error = statistics.standard_error(values)
                rows.append(
                    {
                        "contender": contender,
                        "of": kind,
                        "name": name,
                        "score": f"{statistics.mean(values):.6g}",
                        "standard error": "" if np.isnan(error) else f"{error:.6g}",
                        "seeds": len(seeds),
                        "unfinished": sum(name in one.unfinished for one in seeds),
                    }
                )
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _logs(runs: Mapping[str, Sequence[Episode]]) -> Any:
    """Return the table that bsuite would read from its own logs of the runs."""
    rows = [
        row
        for name, episodes in runs.items()
        for row in _logged(name.removeprefix("bsuite/"), episodes)
    ]
    return _import("logging.logging_utils").join_metadata(pd.DataFrame(rows))


def _logged(bsuite_id: str, episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Yield the rows that bsuite logs of a run, with totals up to each."""
    is_logged = _import("utils.wrappers")._logarithmic_logging
    steps, total_return, counts = 0, 0.0, {}
    for number, episode in enumerate(episodes, 1):
        steps += episode.length
        total_return += episode.episode_return
        for key, value in episode.results.items():
            before = counts.get(key, 0.0)
            is_best = key == bsuite.BEST_EPISODE
            counts[key] = max(before, value) if is_best else before + value
        if is_logged(number):
            yield {
                "bsuite_id": bsuite_id,
                "steps": steps,
                "episode": number,
                "total_return": total_return,
                "episode_len": episode.length,
                "episode_return": episode.episode_return,
                **counts,
            }


@contextlib.contextmanager
def _series_can_append() -> Iterator[None]:
    """Add to pandas, for a while, a method that bsuite calls and pandas has no more."""
    series: Any = pd.Series
    if hasattr(series, "append"):
        yield
        return
    series.append = lambda self, other: pd.concat([self, other])
    try:
        yield
    finally:
        del series.append


def _import(module: str) -> Any:
    return import_package(f"bsuite.{module}", "bsuite", "bsuite/…")

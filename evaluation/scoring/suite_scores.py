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
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Float

from environments.errors import import_package, require
from environments.simulators import Episode
from environments.suites import bsuite, crafter
from evaluation.scoring.evaluation import Evaluation
from training import records


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


def score_achievements(evaluation: Evaluation, task: int) -> dict[str, CrafterScores]:
    """Return the scores of the shown contenders that have achievements on a task, by its index."""
    found = {}
    for contender in evaluation.shown:
        results = evaluation.contender_curves[contender.name].results
        if not set(crafter.ACHIEVEMENTS) <= set(results):
            continue
        rates = np.stack([results[name][task] for name in crafter.ACHIEVEMENTS], axis=-1)
        rates = rates[np.isfinite(rates).all(axis=-1)]
        if len(rates):
            percent = map(float, 100.0 * rates.mean(axis=0))
            success_rates: dict[str, float] = dict(zip(crafter.ACHIEVEMENTS, percent, strict=True))
            found[contender.name] = CrafterScores(success_rates, crafter_score(rates))
    return found


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


def score_bsuite(
    evaluation: Evaluation,
) -> tuple[dict[str, list[BsuiteScores]], dict[tuple[str, int], ValueError]]:
    """Return the scores of each contender's seeds, and the errors of episodes that are damaged.

    They are of contenders that act in one environment at a time. A seed counts if all of its runs
    have episodes. Contenders without such a seed are left out; so are all if no task is bsuite's.
    """
    scores: dict[str, list[BsuiteScores]] = {}
    errors: dict[tuple[str, int], ValueError] = {}
    settings = [task for task in evaluation.tasks if task.startswith("bsuite/")]
    alone = [x.name for x in evaluation.shown if settings and x.num_environments == 1]
    for contender, seed in itertools.product(alone, evaluation.seeds):
        try:
            runs = {
                x: _read_episodes(evaluation.folders.get((contender, x, seed))) for x in settings
            }
        except ValueError as error:
            errors[contender, seed] = error
            continue
        if all(runs.values()):
            scores.setdefault(contender, []).append(score(runs))
    return scores, errors


def _read_episodes(folder: pathlib.Path | None) -> list[Episode]:
    """Return all episodes of a run; empty if they were not kept.

    Raises:
      ValueError: if they are damaged; the message names the file or folder.
    """
    if folder is None:
        return []
    try:
        episodes = records.read_episodes(folder)
        for one in episodes:
            numbers = (one.episode_return, one.length, *one.results.values())
            if not all(isinstance(x, int | float) for x in numbers):
                raise TypeError(f"expected numbers, found {one}")
        return episodes
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"The episodes in {folder} are damaged ({error!r}).") from error


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


def _logs(runs: Mapping[str, Sequence[Episode]]) -> Any:
    """Return the table that bsuite would read from its own logs of the runs."""
    logged = (_logged(name.removeprefix("bsuite/"), episodes) for name, episodes in runs.items())
    rows = [*itertools.chain(*logged)]
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
    series.append = lambda self, other: pd.concat([self, other])
    try:
        yield
    finally:
        del series.append


def _import(module: str) -> Any:
    return import_package(f"bsuite.{module}", "bsuite", "bsuite/…")

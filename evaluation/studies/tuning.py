"""Random search for the settings of contenders, with the same number of trials for each.

A trial is a contender with random settings, and all trials of all contenders are one evaluation:
its runs are stored, continued and distributed like those of any other. A trial's score is the mean
over tasks of its normalised mean return, which on each task is 0 for the random policy and 1 for
the best trial of any contender; below -1 it counts as -1. Tasks on which no trial is better than
the random policy are left out.

    tuned.json              the best settings of each contender, and all trials
    tuning.csv              a row for each trial
    manifest.json, runs/    as in an evaluation

The ranges are the algorithms' own (`agents.registry.Algorithm.ranges`). The first trial of each
contender has its package's defaults (`Algorithm.tuned`), or a rule's own settings, recorded as
`{}`. The tasks must be those of discovery: what is tuned on a task is not judged on it.
"""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from agents import registry
from agents.search_space import RULE_RANGES, Ranges, Settings
from disco_common import json_lines, plugins
from disco_common.files import write_atomically
from evaluation import tuned_settings
from evaluation.config import EvaluationConfig, algorithm_of
from evaluation.contenders import Contender, random_policy, tuned_algorithm, tuned_rule
from evaluation.evaluate import Experiment, make_runs
from evaluation.report.evaluation_files import to_csv
from evaluation.scoring import statistics
from evaluation.scoring.references import bounded
from evaluation.tuned_settings import Tuned, TunedSettings


@dataclasses.dataclass(frozen=True)
class Trial:
    """A contender with random settings.

    Attributes:
      of: the algorithm's or the rule's name.
      settings: that were drawn; none for the settings of the config.
      space: that they were drawn from.
      contender: with these settings.
    """

    of: str
    settings: Settings
    space: Ranges
    contender: Contender


def tune(experiment: Experiment, rules: Sequence[Contender], num_trials: int) -> TunedSettings:
    """Search for settings of the config's baselines and of rules; write the files.

    Each contender has `num_trials`; a search with more of them begins with the same ones. The
    config's seed is also that of the search. Finished runs in the folder are not repeated.

    Raises:
      JobsFailedError, OSError, ValueError: as `evaluation.evaluate.evaluate` does, and if no trial
        is better than the random policy on any task.
    """
    config = experiment.config
    made = trials(rules, config, num_trials)
    contenders = [random_policy(config), *(trial.contender for trial in made)]
    curves = make_runs(experiment, contenders)
    low, *means = (statistics.mean(curves[x.name].window.mean_return) for x in contenders)
    scores = normalized_means(np.stack(means), low).tolist()
    found = TunedSettings(
        tasks=[task.name for task in experiment.tasks],
        budget=config.num_steps,
        **tuned_settings.common_settings(config),
        seed=config.seed,
        contenders={of: _best(of, made, scores) for of in dict.fromkeys(x.of for x in made)},
    )
    tuned_settings.write(experiment.folder / tuned_settings.TUNED_FILE, found)
    rows = [
        {"contender": x.of, "settings": json_lines.dumps(x.settings), "score": score}
        for x, score in zip(made, scores, strict=True)
    ]
    write_atomically(experiment.folder / "tuning.csv", to_csv(rows))
    return found


def trials(rules: Sequence[Contender], config: EvaluationConfig, number: int) -> list[Trial]:
    """Return the trials of the config's baselines and of rules.

    Raises:
      ValueError: if an algorithm has no ranges, or an agent's configuration is impossible.
    """
    found = []
    for family in dict.fromkeys(map(algorithm_of, config.baselines)):
        ranges = registry.find(family).ranges
        if not ranges:
            raise ValueError(f"{family} has no ranges to search; expected another algorithm.")
        for index in range(number):
            settings, name = _draw(family, ranges, config.seed, index), f"{family}, trial {index}"
            contender = tuned_algorithm(name, family, config, settings)
            found.append(Trial(family, settings, ranges, contender))
    for own in rules:
        for index in range(number):
            settings = _draw(own.name, RULE_RANGES, config.seed, index)
            made = tuned_rule(own, config, settings)
            contender = dataclasses.replace(made, name=f"{own.name}, trial {index}")
            found.append(Trial(own.name, settings, RULE_RANGES, contender))
    return found


def all_ranges() -> dict[str, Ranges]:
    """Return the ranges of all algorithms that have some, by name."""
    found = {name: registry.find(name).ranges for name in plugins.names(registry.PLUGINS)}
    return {name: ranges for name, ranges in found.items() if ranges}


def _draw(name: str, space: Ranges, seed: int, index: int) -> dict[str, float | int | bool]:
    """Return random settings; the same ones for equal arguments. None for trial 0."""
    if index == 0:
        return {}
    random = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    return {setting: values.draw(random) for setting, values in space.items()}


def normalized_means(
    means: Float[np.ndarray, "trials tasks"], low: Float[np.ndarray, "tasks"]
) -> Float[np.ndarray, "trials"]:
    """Return each trial's mean normalised score over tasks.

    Args:
      means: mean returns; where there is none, as no episode ended, NaN: it counts as the lowest.
      low: the random policy's mean returns.

    Raises:
      ValueError: if no trial is better than the random policy on any task.
    """
    high = np.max(np.where(np.isnan(means), -np.inf, means), axis=0)
    counted = high > low
    if not counted.any():
        raise ValueError("No trial is better than the random policy on any task.")
    normalized = (means - low)[:, counted] / (high - low)[counted]
    return np.mean(bounded(normalized), axis=1)


def _best(of: str, made: Sequence[Trial], scores: Sequence[float]) -> Tuned:
    own = [(x, score) for x, score in zip(made, scores, strict=True) if x.of == of]
    best, score = max(own, key=lambda trial: trial[1])
    return Tuned(
        settings=best.settings,
        score=score,
        at_the_edge=[
            name for name, value in best.settings.items() if best.space[name].is_at_the_edge(value)
        ],
        trials=[{"settings": trial.settings, "score": score} for trial, score in own],
        parameters_sha256=best.contender.source.get("parameters_sha256"),
    )

"""Random search for the settings of contenders, with the same number of trials for each.

A trial is a contender with random settings, and all trials of all contenders are one evaluation:
its runs are stored, continued and distributed like those of any other. A trial's score is the mean
over tasks of its normalised mean return, which on each task is 0 for the random policy and 1 for
the best trial of any contender; below -1 it counts as -1. Tasks on which no trial is better than
the random policy are left out.

    tuned.json              the best settings of each contender, and all trials
    tuning.csv              a row for each trial
    manifest.json, runs/    as in an evaluation

The first trial of each contender has the defaults of `evaluation.baselines.make`, or a rule's own
settings, recorded as `{}`. The
tasks must be those of discovery: what is tuned on a task is not judged on it.
"""

import dataclasses
import math
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

import environments
from disco_common import json_lines
from disco_common.atomic import write_atomically
from evaluation import tuned_settings
from evaluation.config import EvaluationConfig, kind_of
from evaluation.contenders import RANDOM, Contender, make_contenders
from evaluation.evaluate import Execution, circumstances, make_runs
from evaluation.report.csv_tables import to_csv
from evaluation.results import LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.normalization import bounded
from evaluation.tuned_settings import Settings, Tuned, TunedSettings

TUNED = "tuned.json"
_EDGE = 0.05  # Part of a range, at each end.


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """A range of positive numbers, whose logarithms are drawn uniformly."""

    low: float
    high: float

    def draw(self, random: np.random.Generator) -> float:
        value = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{value:.3g}")

    def is_at_the_edge(self, value: float) -> bool:
        place = math.log(value / self.low) / math.log(self.high / self.low)
        return not _EDGE <= place <= 1.0 - _EDGE


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values, each as likely.

    Attributes:
      values: to choose from, in order.
      may_be_lower: whether lower values than the first would make sense, too.
      may_be_higher: likewise of higher values than the last.
    """

    values: tuple[float | int | bool, ...]
    may_be_lower: bool = False
    may_be_higher: bool = False

    def draw(self, random: np.random.Generator) -> float | int | bool:
        return self.values[int(random.integers(len(self.values)))]

    def is_at_the_edge(self, value: float) -> bool:
        is_lowest, is_highest = value == self.values[0], value == self.values[-1]
        return (self.may_be_lower and is_lowest) or (self.may_be_higher and is_highest)


_RATE = LogUniform(1e-4, 3e-2)
_ENTROPY = LogUniform(1e-4, 0.3)
_REPLAY = Choice((0.0, 0.5, 0.75, 0.875, 0.9375), may_be_higher=True)
# How often a baseline learns from a transition is free: tables say how much each one computes.
_SIZES = {
    "width": Choice((32, 64, 128, 256), may_be_lower=True, may_be_higher=True),
    "layers": Choice((1, 2)),
    "num_environments": Choice((1, 2, 4, 8, 16)),
    "unroll_length": Choice((8, 16, 32), may_be_lower=True, may_be_higher=True),
}
_YES_OR_NO = Choice((False, True))
_TRACES = Choice((0.6, 0.8, 0.9, 0.95, 1.0), may_be_lower=True)
_PPO = {
    **_SIZES,
    "unroll_length": Choice((16, 64, 256, 1024), may_be_lower=True, may_be_higher=True),
    "learning_rate": _RATE,
    "entropy_cost": _ENTROPY,
    "num_epochs": Choice((1, 2, 4, 8, 16), may_be_higher=True),
    # No minibatches of fewer than 8 transitions.
    "num_minibatches": Choice((1, 4, 16, 64), may_be_higher=True),
    "gae_lambda": _TRACES,
}
# PPO's and IMPALA's learning rates fall to 0.
_END = Choice((0.1, 1.0))
RULE_SPACE = {"learning_rate": _RATE, "end_learning_rate": _END, "replay_ratio": _REPLAY}
SPACES: Mapping[str, Mapping[str, LogUniform | Choice]] = {
    "actor_critic": {
        **_SIZES,
        **RULE_SPACE,
        "entropy_cost": _ENTROPY,
        "normalize_advantage": _YES_OR_NO,
        "lambda_": _TRACES,
    },
    "policy_gradient": {
        **_SIZES,
        "learning_rate": _RATE,
        "end_learning_rate": _END,
        "entropy_cost": LogUniform(1e-5, 0.3),
        "normalize_advantage": _YES_OR_NO,
    },
    "impala": {
        **_SIZES,
        # Of RMSProp: in Adam's range, the best rate was at the upper end.
        "learning_rate": LogUniform(1e-3, 0.3),
        "entropy_cost": _ENTROPY,
        "replay_ratio": _REPLAY,
    },
    "hand_set": {
        **_SIZES,
        **RULE_SPACE,
        "policy_prior": Choice((0.8, 0.9, 0.95, 0.98, 0.99, 1.0), may_be_lower=True),
        "advantage_weight": LogUniform(0.1, 30.0),
        "action_advantage_weight": Choice((0.0, 0.01, 0.03, 0.1, 0.3, 1.0), may_be_higher=True),
        "normalize_advantage": _YES_OR_NO,
    },
    "ppo": _PPO,
    "dpo": _PPO,
    "dice": {
        **_SIZES,
        "learning_rate": _RATE,
        "sample_reuse": Choice((1, 2, 4), may_be_higher=True),
        # A search down to 0.1 and 0.6 had its best trial at both (docs/measurements/tuning.md).
        "action_value_cost": Choice(
            (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), may_be_lower=True, may_be_higher=True
        ),
        "max_inverse_temperature": Choice((1.0, 2.0, 5.0, 15.0, 50.0), may_be_lower=True),
        "lambda_": Choice((0.2, 0.4, *_TRACES.values), may_be_lower=True),
    },
    "muesli": {
        **_SIZES,
        **RULE_SPACE,
        "regularizer_cost": LogUniform(0.1, 10.0),
        "lambda_": _TRACES,
    },
    "muzero": {
        **_SIZES,
        "learning_rate": _RATE,
        "updates_per_step": Choice(
            (0.03125, 0.0625, 0.125, 0.25), may_be_lower=True, may_be_higher=True
        ),
        # One step is worse than three with the best settings (docs/measurements/tuning.md).
        "td_steps": Choice((3, 5, 10), may_be_higher=True),
        "weight_decay": LogUniform(1e-6, 1e-2),
    },
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A contender with random settings.

    Attributes:
      of: the baseline's kind, or the rule's name.
      settings: that were drawn; none for the settings of the config.
      space: that they were drawn from.
      contender: with these settings.
    """

    of: str
    settings: Settings
    space: Mapping[str, LogUniform | Choice]
    contender: Contender


def tune(
    rules: Sequence[Contender],
    tasks: Sequence[environments.Environment],
    config: EvaluationConfig,
    num_trials: int,
    folder: pathlib.Path,
    provenance: Mapping[str, Any],
    execution: Execution,
) -> TunedSettings:
    """Search for settings of the config's baselines and of rules; write the files.

    Args:
      rules: the rules' contenders.
      tasks: to learn.
      config: of the evaluation; its seed is also that of the search.
      num_trials: of each contender. A search with more trials begins with the same ones.
      folder: for all results. Finished runs in it are not repeated.
      provenance: to record; JSON values.
      execution: of the runs.

    Raises:
      JobsFailedError, OSError, ValueError: as `evaluation.evaluate.evaluate` does.
    """
    config = dataclasses.replace(config, strip_frames=0)
    (random,) = make_contenders([], dataclasses.replace(config, baselines=()))
    made = trials(rules, config, num_trials)
    curves = make_runs(
        tasks,
        [random, *(trial.contender for trial in made)],
        config,
        folder,
        {**provenance, **circumstances()},
        execution,
    )
    scores = _scores(made, curves)
    found = TunedSettings(
        tasks=tuple(task.name for task in tasks),
        budget=config.num_steps,
        shared=tuned_settings.common_settings(config),
        seed=config.seed,
        contenders={of: _best(of, made, scores) for of in dict.fromkeys(x.of for x in made)},
    )
    tuned_settings.write(folder / TUNED, found)
    rows = [
        {"contender": x.of, "settings": json_lines.dumps(x.settings), "score": score}
        for x, score in zip(made, scores, strict=True)
    ]
    write_atomically(folder / "tuning.csv", to_csv(rows))
    return found


def trials(rules: Sequence[Contender], config: EvaluationConfig, number: int) -> list[Trial]:
    """Return the trials of the config's baselines and of rules.

    Raises:
      ValueError: if an agent's configuration is impossible.
    """
    found = []
    for kind in dict.fromkeys(map(kind_of, config.baselines)):
        for index in range(number):
            settings = _draw(kind, SPACES[kind], config.seed, index)
            contender = Contender.of_baseline(_name(kind, index), kind, config, settings)
            found.append(Trial(kind, settings, SPACES[kind], contender))
    for own in rules:
        for index in range(number):
            settings = _draw(own.name, RULE_SPACE, config.seed, index)
            contender = own.with_settings(settings)
            contender = dataclasses.replace(contender, name=_name(own.name, index))
            found.append(Trial(own.name, settings, RULE_SPACE, contender))
    return found


def _name(of: str, index: int) -> str:
    return f"{of}, trial {index}"


def _draw(
    name: str, space: Mapping[str, LogUniform | Choice], seed: int, index: int
) -> dict[str, float | int | bool]:
    """Return random settings; the same ones for equal arguments. None for trial 0."""
    if index == 0:
        return {}
    random = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    return {setting: values.draw(random) for setting, values in space.items()}


def _scores(made: Sequence[Trial], curves: Mapping[str, LearningCurves]) -> list[float]:
    """Return the score of each trial; see the module's docstring.

    Raises:
      ValueError: if no trial is better than the random policy on any task.
    """
    low = statistics.mean(curves[RANDOM].window.mean_return)
    means = np.stack([statistics.mean(curves[x.contender.name].window.mean_return) for x in made])
    return list(normalized_means(means, low))


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
    own = [(x, float(score)) for x, score in zip(made, scores, strict=True) if x.of == of]
    best, score = max(own, key=lambda trial: trial[1])
    return Tuned(
        settings=best.settings,
        score=score,
        at_the_edge=tuple(
            name for name, value in best.settings.items() if best.space[name].is_at_the_edge(value)
        ),
        trials=tuple((trial.settings, score) for trial, score in own),
        parameters_sha256=best.contender.source.get("parameters_sha256"),
    )

"""Settings that a search has found (`evaluation.studies.tuning`): their file, and their choice.

{"format": 1,
 "tasks": ["catch/5x5", ...],        tuned on
 "budget": 99968,                    environment steps of a run
 "agent": {...}, "discount": null,   what all contenders share (`common_settings`)
 "seed": 0,                          of the search
 "contenders": {"ppo": {"settings": {"learning_rate": 0.0025, ...},
                        "score": 0.81, "at_the_edge": [], "parameters_sha256": null,
                        "trials": [{"settings": {...}, "score": 0.4}, ...]}, ...}}
"""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agents.rule_agent import AgentConfig
from agents.search_space import Settings
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from environments import Environment
from evaluation.config import EvaluationConfig
from evaluation.contenders import fingerprints, rule_contenders
from evaluation.rules import copies_in

SHIPPED = "shipped"  # Stands for the tuned settings that come with this package.
TUNED_FILE = "tuned.json"  # In a workdir, the tuned settings of its contenders.
SHIPPED_FILE = pathlib.Path(__file__).parent / TUNED_FILE
_FORMAT = 1
# What a tuned contender has of its own, and what only bounds memory or follows from the budget.
_OF_EACH = ("learning_rate", "replay_ratio", "batch_size", "replay_capacity", "lifetime")

# Settings of the config that a rule's tuned ones would replace.
_UNTUNED = (
    "rule_learning_rate",
    "rule_replay_ratio",
    "rule_num_environments",
    "rule_lifetime",
    "rule_reward_scale",
)
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a search for one contender.

    Attributes:
      settings: of the best trial.
      score: of the best trial (`evaluation.studies.tuning`).
      at_the_edge: settings of the best trial that are at an end of their range.
      trials: settings and score of each trial.
      parameters_sha256: of a rule (`evaluation.contenders.fingerprint`); None for a baseline.
    """

    settings: Settings
    score: float
    at_the_edge: tuple[str, ...]
    trials: tuple[tuple[Settings, float], ...]
    parameters_sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class TunedSettings:
    """Tuned settings of several contenders, found by one search.

    Attributes:
      tasks: that the contenders were tuned on.
      budget: environment steps of a run.
      shared: the settings that all contenders shared (`common_settings`).
      seed: of the search.
      contenders: by the algorithm's or the rule's name.
    """

    tasks: tuple[str, ...]
    budget: int
    shared: Mapping[str, Any]
    seed: int
    contenders: Mapping[str, Tuned]


def common_settings(config: EvaluationConfig) -> dict[str, Any]:
    """Return the settings that all contenders of an evaluation share, as JSON values."""
    agent = dataclasses.asdict(config.agent)
    kept = {name: value for name, value in agent.items() if name not in _OF_EACH}
    return json.loads(json.dumps({"agent": kept, "discount": config.rule_discount}))


def write(path: pathlib.Path, tuned: TunedSettings) -> None:
    """Write a file.

    Raises:
      OSError: if it cannot be written.
    """
    found = {
        "format": _FORMAT,
        "tasks": list(tuned.tasks),
        "budget": tuned.budget,
        **tuned.shared,
        "seed": tuned.seed,
        "contenders": {
            name: {
                "settings": dict(one.settings),
                "score": one.score,
                "at_the_edge": list(one.at_the_edge),
                "parameters_sha256": one.parameters_sha256,
                "trials": [
                    {"settings": dict(settings), "score": score} for settings, score in one.trials
                ],
            }
            for name, one in tuned.contenders.items()
        },
    }
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def read(path: pathlib.Path) -> TunedSettings:
    """Read a file.

    Raises:
      OSError: if it cannot be read.
      ValueError: naming the file and what is wrong with it.
    """
    found = read_object(path)
    if found.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {found.get('format')!r:.50}; expected {_FORMAT}, a file that this"
            " version's launch.tune wrote."
        )
    try:
        return TunedSettings(
            tasks=tuple(map(str, _of_type(found, "tasks", list))),
            budget=_of_type(found, "budget", int),
            shared={"agent": _of_type(found, "agent", dict), "discount": found.get("discount")},
            seed=_of_type(found, "seed", int),
            contenders={
                name: Tuned(
                    settings=_settings(entry),
                    score=float(_of_type(entry, "score", float)),
                    at_the_edge=tuple(map(str, _of_type(entry, "at_the_edge", list))),
                    trials=tuple(
                        (_settings(trial), float(_of_type(trial, "score", float)))
                        for trial in _of_type(entry, "trials", list)
                    ),
                    parameters_sha256=entry.get("parameters_sha256"),
                )
                for name, entry in _of_type(found, "contenders", dict).items()
            },
        )
    except ValueError as error:
        raise ValueError(f"{path} is no file of tuned settings: {error}") from error


def require_fit(
    tuned: TunedSettings, path: pathlib.Path, config: EvaluationConfig, rules: Mapping[str, str]
) -> None:
    """Refuse tuned settings of another budget, of other agents or rules, or without a baseline.

    A rule that the file lacks keeps its own settings.

    Args:
      tuned: the settings.
      path: their file, for messages.
      config: of the evaluation that is to use them.
      rules: fingerprints of the evaluated rules, by name.

    Raises:
      ValueError: naming the file, what was found and what was expected.
    """
    if reason := misfit(tuned, config):
        raise ValueError(f"{path} is {reason}.")
    for name, fingerprint in rules.items():
        one = tuned.contenders.get(name)
        if one is not None and one.parameters_sha256 != fingerprint:
            raise ValueError(
                f"{path} has settings of another rule {name!r} (parameters_sha256"
                f" {one.parameters_sha256!r:.70}); expected {fingerprint!r}."
            )
    if missing := sorted(set(config.tuned_baselines.values()) - set(tuned.contenders)):
        raise ValueError(
            f"{path} has no settings for {missing}; it has some for {sorted(tuned.contenders)}."
        )


def misfit(tuned: TunedSettings, config: EvaluationConfig) -> str:
    """Return in what the evaluations differ that tuned settings are for; empty if in nothing."""
    if tuned.budget != config.num_steps:
        return (
            f"for a budget of {tuned.budget} environment steps; expected {config.num_steps}, that"
            " of the evaluation"
        )
    wanted = common_settings(config)
    found = {"agent": _completed(tuned.shared["agent"]), "discount": tuned.shared["discount"]}
    for name, value in wanted["agent"].items():
        if found["agent"].get(name) != value:
            return (
                f"for agents with {name} {found['agent'].get(name)!r:.300}; expected"
                f" {value!r:.300}, that of the evaluation (config.agent.{name})"
            )
    if found["discount"] != wanted["discount"]:
        return (
            f"for the discount {found['discount']!r:.50}; expected {wanted['discount']!r}, that of"
            " the evaluation (config.rule_discount)"
        )
    return ""


def _completed(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's settings with defaults for those that an older version did not know."""
    known = json.loads(json.dumps(dataclasses.asdict(AgentConfig())))
    network = agent.get("network")
    if isinstance(network, dict):
        agent = {**agent, "network": {**known["network"], **network}}
    return {**known, **agent}


def _settings(entry: Any) -> dict[str, float | int | bool]:
    settings = _of_type(entry, "settings", dict)
    for name, value in settings.items():
        if not isinstance(value, int | float) or value != value:
            raise ValueError(f"the setting {name!r:.50} is {value!r:.50}; expected a number.")
    return settings


def _of_type(entry: Any, name: str, kind: type) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise ValueError(f"it lacks {name!r}.")
    value, accepted = entry[name], (int, float) if kind is float else kind
    if not isinstance(value, accepted) or isinstance(value, bool) or value != value:
        raise ValueError(f"{name!r} is {value!r:.50}; expected {kind.__name__}.")
    return value


def find_tuned(
    file: str,
    workdir: str | os.PathLike,
    config: EvaluationConfig,
    tasks: Sequence[Environment],
    evaluated: Sequence[str],
) -> TunedSettings | None:
    """Return the tuned settings of an evaluation's contenders, or None if no contender has any.

    Args:
      file: of tuned settings, of `launch.tune`; `SHIPPED` for the copy in the workdir, or without
        one those that come with this package; empty for none.
      workdir: of the evaluation.
      config: of the evaluation.
      tasks: of the evaluation. There is a warning if the settings were tuned on one of them.
      evaluated: names of rules. There is a warning for each that was not tuned.

    Raises:
      OSError: if neither can be read.
      ValueError: naming the file, if it is damaged, or is for another budget or other agents, or
        lacks a baseline.
    """
    if not file:
        return None
    rules = fingerprints(rule_contenders(evaluated, config, copies_in(workdir)))
    path = pathlib.Path(os.path.expanduser(file))
    copy = pathlib.Path(workdir) / TUNED_FILE
    if os.path.lexists(copy) and (file == SHIPPED or not path.exists()):
        path = copy
    elif file == SHIPPED:
        return _shipped(config, tasks, rules)
    found = read(path)
    require_fit(found, path, config, rules)
    if file != SHIPPED:
        for name in sorted(set(rules) - set(found.contenders)):
            _log.warning("%s has no settings for the rule %s, which keeps its own.", path, name)
    return _of_contenders(found, path, tasks, {*config.tuned_baselines.values(), *rules})


def settings_by_contender(
    found: TunedSettings | None,
) -> dict[str, Settings]:
    """Return the settings of each contender that has tuned ones."""
    return {} if found is None else {name: x.settings for name, x in found.contenders.items()}


def _of_contenders(
    found: TunedSettings,
    path: pathlib.Path,
    tasks: Sequence[Environment],
    names: set[str],
) -> TunedSettings | None:
    """Return the settings of some contenders, with a warning if a task was tuned on."""
    contenders = {name: one for name, one in found.contenders.items() if name in names}
    if not contenders:
        return None
    _note_tasks_tuned_on(found, path, tasks)
    return dataclasses.replace(found, contenders=contenders)


def _note_tasks_tuned_on(
    found: TunedSettings, path: pathlib.Path, tasks: Sequence[Environment]
) -> None:
    if seen := [task.name for task in tasks if task.name in found.tasks]:
        _log.warning(
            "%s was tuned on %d of the %d tasks of this evaluation: %s%s.",
            path,
            len(seen),
            len(tasks),
            ", ".join(seen[:5]),
            ", ..." if len(seen) > 5 else "",
        )


def _shipped(
    config: EvaluationConfig, tasks: Sequence[Environment], rules: Mapping[str, str]
) -> TunedSettings | None:
    """Return the tuned settings that come with this package and fit an evaluation.

    Rules keep their own where the config sets any of these settings itself, or where none fit;
    there is a warning.

    Args:
      config: of the evaluation.
      tasks: of the evaluation.
      rules: fingerprints of the evaluated rules, by name.

    Raises:
      ValueError: if there are tuned baselines, which none fit.
    """
    path = SHIPPED_FILE
    found = read(path)
    kinds = set(config.tuned_baselines.values())
    is_same = {x for x, sha in rules.items() if _is_tuned(found, x, sha)}
    own = [x for x in _UNTUNED if getattr(config, x) != getattr(EvaluationConfig, x)]
    if own and is_same:
        _log.warning("Rules have the config's settings, not tuned ones: %s is set.", own[0])
        is_same = set()
    if not kinds and not is_same:
        return None
    if reason := misfit(found, config):
        if kinds:
            raise ValueError(
                f"baselines has {', '.join(config.tuned_baselines)}, and the tuned settings of this"
                f" package are {reason}. Expected others (launch.tune, --tuned=FILE), or baselines"
                f" with their literature's settings: {', '.join(sorted(kinds))}."
            )
        _log.warning("Rules have their own settings, as this package's tuned ones are %s.", reason)
        return None
    return _of_contenders(found, path, tasks, kinds | is_same)


def _is_tuned(found: TunedSettings, name: str, fingerprint: str) -> bool:
    """Return whether there are settings for a rule of this name with these parameters."""
    one = found.contenders.get(name)
    return one is not None and one.parameters_sha256 == fingerprint

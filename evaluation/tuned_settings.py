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
from evaluation.contenders import RuleContender, fingerprints

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
_TYPES = {"tasks": list, "budget": int, "agent": dict, "seed": int, "contenders": dict}
_TYPES_OF_EACH = {"settings": dict, "score": float, "at_the_edge": list, "trials": list}
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a search for one contender.

    Attributes:
      settings: of the best trial.
      score: of the best trial (`evaluation.studies.tuning`).
      at_the_edge: settings of the best trial that are at an end of their range.
      trials: `settings` and `score` of each trial.
      parameters_sha256: of a rule (`evaluation.rules.fingerprint`); None for a baseline.
    """

    settings: Settings
    score: float
    at_the_edge: list[str]
    trials: list[dict[str, Any]]
    parameters_sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class TunedSettings:
    """Tuned settings of several contenders, found by one search.

    Attributes:
      tasks: that the contenders were tuned on.
      budget: environment steps of a run.
      agent, discount: settings that all contenders shared (`common_settings`).
      seed: of the search.
      contenders: by the algorithm's or the rule's name.
    """

    tasks: list[str]
    budget: int
    agent: dict[str, Any]
    discount: float | None
    seed: int
    contenders: dict[str, Tuned]


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
    found = {"format": _FORMAT, **dataclasses.asdict(tuned)}
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def read(path: pathlib.Path) -> TunedSettings:
    """Read a file.

    Raises:
      OSError: if it cannot be read.
      ValueError: naming the file and what is wrong with it.
    """
    found = read_object(path)
    if (version := found.pop("format", None)) != _FORMAT:
        raise ValueError(
            f"{path} has format {version!r:.50}; expected {_FORMAT}, a file that this version's"
            " launch.tune wrote."
        )
    try:
        _require(found, _TYPES)
        for entry in found["contenders"].values():
            _require(entry, _TYPES_OF_EACH)
            for name, value in entry["settings"].items():
                if not isinstance(value, int | float) or value != value:
                    raise ValueError(f"the setting {name!r} is {value!r:.50}; expected a number.")
        contenders = {name: Tuned(**entry) for name, entry in found["contenders"].items()}
        return TunedSettings(**{"discount": None, **found, "contenders": contenders})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of tuned settings: {error}") from error


def _require(entry: Any, types: Mapping[str, type]) -> None:
    """Refuse an entry without values of some types."""
    for name, kind in types.items():
        if not isinstance(entry, dict) or name not in entry:
            raise ValueError(f"it lacks {name!r}.")
        value, accepted = entry[name], (int, float) if kind is float else kind
        if not isinstance(value, accepted) or isinstance(value, bool) or value != value:
            raise ValueError(f"{name!r} is {value!r:.50}; expected {kind.__name__}.")


def find_tuned(
    file: str,
    workdir: str | os.PathLike,
    config: EvaluationConfig,
    tasks: Sequence[Environment],
    rules: Sequence[RuleContender] = (),
) -> TunedSettings | None:
    """Return the tuned settings of an evaluation's contenders, or None if no contender has any.

    A rule keeps its own settings where the file lacks it or, of the settings that come with this
    package, where they do not fit or the config sets any of these settings itself.

    Args:
      file: of tuned settings, of `launch.tune`; `SHIPPED` for the copy in the workdir, or without
        one those that come with this package; empty for none.
      workdir: of the evaluation.
      config: of the evaluation.
      tasks: of the evaluation. There is a warning if the settings were tuned on one of them.
      rules: that are evaluated. There is a warning for each that was not tuned.

    Raises:
      OSError: if neither can be read.
      ValueError: naming the file, if it is damaged, or is for another budget, other agents or
        another rule, or lacks a baseline.
    """
    if not file:
        return None
    evaluated = fingerprints(rules)
    path, copy = pathlib.Path(os.path.expanduser(file)), pathlib.Path(workdir) / TUNED_FILE
    has_copy = os.path.lexists(copy)
    if has_copy and (file == SHIPPED or not path.exists()):
        path = copy
    elif file == SHIPPED:
        path = SHIPPED_FILE
    found = read(path)
    names = set(config.tuned_baselines.values())
    if file == SHIPPED and not has_copy:
        names |= _fitting_rules(found, config, evaluated, bool(names))
    elif reason := misfit(found, config, evaluated):
        raise ValueError(f"{path} is {reason}.")
    else:
        names |= set(evaluated)
        if file != SHIPPED:
            for name in sorted(set(evaluated) - set(found.contenders)):
                _log.warning("%s has no settings for the rule %s, which keeps its own.", path, name)
    if missing := sorted(names - set(found.contenders) - set(evaluated)):
        raise ValueError(
            f"{path} has no settings for {missing}; it has some for {sorted(found.contenders)}."
        )
    contenders = {name: one for name, one in found.contenders.items() if name in names}
    seen = [task.name for task in tasks if task.name in found.tasks]
    if contenders and seen:
        said = f"{', '.join(seen[:5])}{', ...' if len(seen) > 5 else ''}"
        of = f"{len(seen)} of the {len(tasks)}"
        _log.warning("%s was tuned on %s tasks of this evaluation: %s.", path, of, said)
    return dataclasses.replace(found, contenders=contenders) if contenders else None


def _fitting_rules(
    found: TunedSettings, config: EvaluationConfig, rules: Mapping[str, str], is_needed: bool
) -> set[str]:
    """Return the rules that have the settings that come with this package.

    `rules` has fingerprints of the evaluated rules, by name; `is_needed` says whether there are
    tuned baselines.

    Raises:
      ValueError: if there are tuned baselines, which the settings do not fit.
    """
    known = {name: one.parameters_sha256 for name, one in found.contenders.items()}
    same = {name for name, sha256 in rules.items() if known.get(name) == sha256}
    own = [x for x in _UNTUNED if getattr(config, x) != getattr(EvaluationConfig, x)]
    if same and own:
        _log.warning("Rules have the config's settings, not tuned ones: %s is set.", own[0])
        same = set()
    reason = misfit(found, config)
    if reason and is_needed:
        raise ValueError(
            f"baselines has {', '.join(config.tuned_baselines)}, and the tuned settings of this"
            f" package are {reason}. Expected others (launch.tune, --tuned=FILE), or baselines with"
            " their literature's settings."
        )
    if reason and same:
        _log.warning("Rules have their own settings, as this package's tuned ones are %s.", reason)
        same = set()
    return same


def misfit(
    tuned: TunedSettings, config: EvaluationConfig, rules: Mapping[str, str] | None = None
) -> str:
    """Return in what the evaluations differ that tuned settings are for; empty if in nothing.

    `rules` has fingerprints of the evaluated rules, by name.
    """

    def flat(budget: int, agent: Mapping[str, Any], discount: float | None) -> dict[str, Any]:
        of_agent = {f"agent.{name}": value for name, value in agent.items()}
        return {"budget": budget, **of_agent, "rule_discount": discount}

    found = flat(tuned.budget, _completed(tuned.agent), tuned.discount)
    for name, value in flat(config.num_steps, **common_settings(config)).items():
        if found.get(name) != value:
            return (
                f"for config.{name} {found.get(name)!r:.300}; expected {value!r:.300}, that of the"
                " evaluation"
            )
    for name, sha256 in (rules or {}).items():
        one = tuned.contenders.get(name)
        if one is not None and one.parameters_sha256 != sha256:
            return (
                f"for another rule {name!r} (parameters_sha256 {one.parameters_sha256!r:.70});"
                f" expected {sha256!r}"
            )
    return ""


def _completed(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's settings with defaults for those that an older version did not know."""
    known = json.loads(json.dumps(dataclasses.asdict(AgentConfig())))
    network = agent.get("network")
    if isinstance(network, dict):
        agent = {**agent, "network": {**known["network"], **network}}
    return {**known, **agent}


def settings_by_contender(found: TunedSettings | None) -> dict[str, Settings]:
    """Return the settings of each contender that has tuned ones."""
    return {} if found is None else {name: x.settings for name, x in found.contenders.items()}

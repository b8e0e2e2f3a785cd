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
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agents.rule_agent import RuleAgentConfig
from agents.search_space import Settings
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from environments import Environment
from evaluation.config import EvaluationConfig

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
      path: of the file that they were read from, which it does not hold.
    """

    tasks: list[str]
    budget: int
    agent: dict[str, Any]
    discount: float | None
    seed: int
    contenders: dict[str, Tuned]
    path: pathlib.Path = dataclasses.field(default=pathlib.Path(TUNED_FILE), compare=False)

    @property
    def is_shipped(self) -> bool:
        """Whether they come with this package, and rules that they do not fit keep their own."""
        return self.path == SHIPPED_FILE

    def chosen(self, config: EvaluationConfig, rules: Mapping[str, str]) -> dict[str, Settings]:
        """Return the settings of a config's tuned baselines, by algorithm, and of rules, by name.

        `rules` are the rules' fingerprints by name. A rule keeps its own settings, and is left out,
        if the file lacks it or, of the settings that come with this package, as they do not fit or
        the config sets any of these settings itself, of which there is a warning.

        Raises:
          ValueError: naming the file, if they are for another budget, other agents or another rule,
            or lack a baseline of the config.
        """
        baselines, reason = config.tuned_baselines, self._misfit(config)
        if baselines and reason and self.is_shipped:
            raise ValueError(
                f"baselines has {', '.join(baselines)}, and the tuned settings of this package are"
                f" {reason}. Expected others (launch.tune, --tuned=FILE), or baselines with their"
                " literature's settings."
            )
        if baselines and reason:
            raise ValueError(f"{self.path} is {reason}.")
        if missing := sorted(set(baselines.values()) - set(self.contenders)):
            has = sorted(self.contenders)
            raise ValueError(f"{self.path} has no settings for {missing}; it has some for {has}.")
        found = {name: self.contenders[name].settings for name in baselines.values()}
        of_rules = {name: self._of_rule(name, sha256, config) for name, sha256 in rules.items()}
        return found | {name: own for name, own in of_rules.items() if own is not None}

    def _of_rule(self, name: str, sha256: str, config: EvaluationConfig) -> Settings | None:
        """Return the settings of a rule of this name and fingerprint; None if it keeps its own."""
        one, reason = self.contenders.get(name), self._misfit(config)
        is_same = one is not None and one.parameters_sha256 == sha256
        if self.is_shipped:
            own = [x for x in _UNTUNED if getattr(config, x) != getattr(EvaluationConfig, x)]
            why = f"config.{own[0]} is set" if own else reason and f"they are {reason}"
            if is_same and why:
                said = "The rule %s keeps its settings, not this package's tuned ones: %s."
                _log.warning(said, name, why)
            return one.settings if one is not None and is_same and not why else None
        if one is not None and not is_same:
            reason = reason or (
                f"for another rule {name!r} (parameters_sha256 {one.parameters_sha256!r:.70});"
                f" expected {sha256!r}"
            )
        if reason:
            raise ValueError(f"{self.path} is {reason}.")
        return None if one is None else one.settings

    def used_by(self, names: Collection[str], tasks: Sequence[Environment]) -> "TunedSettings":
        """Return the settings of contenders of an evaluation; warn of tasks they were tuned on."""
        seen = [task.name for task in tasks if task.name in self.tasks]
        if names and seen:
            said = f"{', '.join(seen[:5])}{', ...' if len(seen) > 5 else ''}"
            of = f"{len(seen)} of the {len(tasks)}"
            _log.warning("%s was tuned on %s tasks of this evaluation: %s.", self.path, of, said)
        own = {name: one for name, one in self.contenders.items() if name in names}
        return dataclasses.replace(self, contenders=own)

    def _misfit(self, config: EvaluationConfig) -> str:
        """Return in what the evaluations differ that the settings are for; empty if in nothing."""

        def flat(budget: int, agent: Mapping[str, Any], discount: float | None) -> dict[str, Any]:
            of_agent = {f"agent.{name}": value for name, value in agent.items()}
            return {"budget": budget, **of_agent, "rule_discount": discount}

        found = flat(self.budget, _completed(self.agent), self.discount)
        for name, value in flat(config.num_steps, **common_settings(config)).items():
            if found.get(name) != value:
                return (
                    f"for config.{name} {found.get(name)!r:.300}; expected {value!r:.300}, that of"
                    " the evaluation"
                )
        return ""


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
    del found["path"]
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
        found = {"discount": None, **found, "contenders": contenders}
        return TunedSettings(**found, path=path)
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


def find(file: str, workdir: str | os.PathLike) -> TunedSettings | None:
    """Return the tuned settings of an evaluation; None for none.

    Args:
      file: of tuned settings, of `launch.tune`, or if it is gone the copy in the workdir; `SHIPPED`
        for that copy, or without one those that come with this package; empty for none.
      workdir: of the evaluation.

    Raises:
      OSError: if neither can be read.
      ValueError: naming the file, if it is damaged.
    """
    if not file:
        return None
    path, copy = pathlib.Path(os.path.expanduser(file)), pathlib.Path(workdir) / TUNED_FILE
    if os.path.lexists(copy) and (file == SHIPPED or not path.exists()):
        path = copy
    elif file == SHIPPED:
        path = SHIPPED_FILE
    return read(path)


def _completed(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's settings with defaults for those that an older version did not know."""
    known = json.loads(json.dumps(dataclasses.asdict(RuleAgentConfig())))
    network = agent.get("network")
    if isinstance(network, dict):
        agent = {**agent, "network": {**known["network"], **network}}
    return {**known, **agent}

"""The tuned settings (`launch.tune`) of an evaluation's contenders."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

from absl import logging

from environments import Environment
from evaluation import tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import DISCOVERED, RULE, Contender, copies_in, make_contenders

TUNED_FILE = "tuned.json"  # In a workdir, the tuned settings of its contenders.
SHIPPED = "shipped"  # Stands for the tuned settings that come with this package.
# Settings of the config that tuned ones would replace.
_UNTUNED = (
    "rule_learning_rate",
    "rule_replay_ratio",
    "rule_num_environments",
    "rule_lifetime",
    "rule_reward_scale",
)


def find_tuned(
    file: str,
    workdir: str | os.PathLike,
    config: EvaluationConfig,
    tasks: Sequence[Environment],
    evaluated: Sequence[str],
) -> tuned_settings.TunedSettings | None:
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
    without = dataclasses.replace(config, baselines=())
    rules = fingerprints(make_contenders(evaluated, without, copies=copies_in(workdir)))
    path = pathlib.Path(os.path.expanduser(file))
    copy = pathlib.Path(workdir) / TUNED_FILE
    if os.path.lexists(copy) and (file == SHIPPED or not path.exists()):
        path = copy
    elif file == SHIPPED:
        return _shipped(config, tasks, rules)
    found = tuned_settings.read(path)
    tuned_settings.require_fit(found, path, config, rules)
    if file != SHIPPED:
        for name in sorted(set(rules) - set(found.contenders)):
            logging.warning("%s has no settings for the rule %s, which keeps its own.", path, name)
    return _of_contenders(found, path, tasks, {*config.tuned_baselines.values(), *rules})


def settings_by_contender(
    found: tuned_settings.TunedSettings | None,
) -> dict[str, tuned_settings.Settings]:
    """Return the settings of each contender that has tuned ones."""
    return {} if found is None else {name: x.settings for name, x in found.contenders.items()}


def _of_contenders(
    found: tuned_settings.TunedSettings,
    path: pathlib.Path,
    tasks: Sequence[Environment],
    names: set[str],
) -> tuned_settings.TunedSettings | None:
    """Return the settings of some contenders, with a warning if a task was tuned on."""
    contenders = {name: one for name, one in found.contenders.items() if name in names}
    if not contenders:
        return None
    _note_tasks_tuned_on(found, path, tasks)
    return dataclasses.replace(found, contenders=contenders)


def _note_tasks_tuned_on(
    found: tuned_settings.TunedSettings, path: pathlib.Path, tasks: Sequence[Environment]
) -> None:
    if seen := [task.name for task in tasks if task.name in found.tasks]:
        logging.warning(
            "%s was tuned on %d of the %d tasks of this evaluation: %s%s.",
            path,
            len(seen),
            len(tasks),
            ", ".join(seen[:5]),
            ", ..." if len(seen) > 5 else "",
        )


def _shipped(
    config: EvaluationConfig, tasks: Sequence[Environment], rules: Mapping[str, str]
) -> tuned_settings.TunedSettings | None:
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
    path = tuned_settings.SHIPPED
    found = tuned_settings.read(path)
    kinds = set(config.tuned_baselines.values())
    is_same = {x for x, sha in rules.items() if _is_tuned(found, x, sha)}
    own = [x for x in _UNTUNED if getattr(config, x) != getattr(EvaluationConfig, x)]
    if own and is_same:
        logging.warning("Rules have the config's settings, not tuned ones: %s is set.", own[0])
        is_same = set()
    if not kinds and not is_same:
        return None
    if reason := tuned_settings.misfit(found, config):
        if kinds:
            raise ValueError(
                f"baselines has {', '.join(config.tuned_baselines)}, and the tuned settings of this"
                f" package are {reason}. Expected others (launch.tune, --tuned=FILE), or baselines"
                f" with their literature's settings: {', '.join(sorted(kinds))}."
            )
        logging.warning(
            "Rules have their own settings, as this package's tuned ones are %s.", reason
        )
        return None
    return _of_contenders(found, path, tasks, kinds | is_same)


def _is_tuned(found: tuned_settings.TunedSettings, name: str, fingerprint: str) -> bool:
    """Return whether there are settings for a rule of this name with these parameters."""
    one = found.contenders.get(name)
    return one is not None and one.parameters_sha256 == fingerprint


def fingerprints(contenders: Sequence[Contender]) -> dict[str, str]:
    """Return the fingerprints of the rules among contenders, by name."""
    return {
        x.name: x.source["parameters_sha256"] for x in contenders if x.kind in (DISCOVERED, RULE)
    }

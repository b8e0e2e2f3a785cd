"""Evaluated rules by name: the rule, its fingerprint, and the agent that its file recommends.

Other packages add rules by entry points of the group `disco.rules`: the entry point has the rule's
name, and is a function that returns the rule (`docs/extending.md`).
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import disco
from agents import registry
from agents.rule_agent import AgentConfig
from agents.search_space import RULE_RANGES, with_replay, with_settings
from disco import rule_sources
from disco_common import plugins
from disco_common.ranges import AT_LEAST_0, FRACTION, POSITIVE
from disco_common.terminal import require_printable
from evaluation import storage
from evaluation.config import EvaluationConfig, algorithm_of
from evaluation.studies import ablations

PLUGINS = plugins.define("disco.rules", disco.Rule)
FILE_SHA256 = "file_sha256"  # In a contender's source, the hash of its rule's file.
_FILE = "the rule file"  # Of a setting, where it comes from.
_RANGES = {
    "learning_rate": POSITIVE,
    "end_learning_rate": FRACTION,
    "replay_ratio": FRACTION,
    "reward_scale": POSITIVE,
    "lifetime": AT_LEAST_0,
    "network.model": AT_LEAST_0,
}

_log = logging.getLogger(__name__)


def copies_in(workdir: str | os.PathLike) -> pathlib.Path:
    """Return the folder in a workdir for copies of rule files, by the contenders' names."""
    return pathlib.Path(workdir) / "rules"


def copy_of_rule(copies: pathlib.Path, contender: str) -> pathlib.Path:
    """Return the path of the copy of a contender's rule file, in a folder of copies."""
    return copies / f"{storage.contender_folder(contender)}.npz"


def find_plugin(rule: str) -> Callable[..., disco.Rule] | None:
    """Return the function of another package that makes a rule; None if there is none.

    Raises:
      PluginError: (an `ImportError`) if it cannot be imported.
    """
    return None if rule.startswith(rule_sources.HUB) else plugins.find(PLUGINS, rule)


def load(
    name: str, rule: str, copy: pathlib.Path | None, discount: float | None
) -> tuple[disco.Rule, dict[str, Any], dict[str, str]]:
    """Return a rule, its file's header, and the file's hash for the contender's source.

    Args:
      name: the contender's.
      rule: a name of `disco.rule_sources`, or of a plugin, which has neither header nor hash.
      copy: of the file, to read if the file is gone; None for none.
      discount: in place of the rule's own; None for that.

    Raises:
      FileNotFoundError, disco.RuleFileError: if it cannot be read.
      ValueError: if it has no discount to set.
    """
    header, sha256 = {}, {}
    if plugin := find_plugin(rule):
        loaded = plugin()
    else:
        try:
            path = rule_sources.find(rule)
        except FileNotFoundError:
            if copy is None or not copy.is_file():
                raise
            path = copy
            _log.warning("Rule file %r does not exist. The rule's copy %s is used.", rule, copy)
        loaded, header = ablations.read(path)
        sha256 = {FILE_SHA256: rule_sources.sha256_of(path)}
    if discount is None:
        return loaded, header, sha256
    if not dataclasses.is_dataclass(loaded) or "discount" not in {
        field.name for field in dataclasses.fields(loaded)
    }:
        raise ValueError(
            f"rule_discount is {discount:g}, but the rule {name!r} has no discount to set; expected"
            " None."
        )
    return dataclasses.replace(loaded, discount=discount), header, sha256


def distinct_names(rules: Sequence[str]) -> list[str]:
    """Return the rules' names: file stems, prefixed by the folder's name where stems are equal."""
    found = [rule_sources.short_names(rule) for rule in rules]
    stems = [stem for stem, _ in found]
    names = [longer if stems.count(stem) > 1 else stem for stem, longer in found]
    for name, rule in zip(names, rules, strict=True):
        require_printable(f"--rule {rule!r}: the name", name)
        if names.count(name) > 1:
            raise ValueError(
                f"--rule names {rule!r} and another rule that would also be called {name!r};"
                " expected files of different names or in folders of different names."
            )
        known = plugins.names(registry.PLUGINS)
        if algorithm_of(name) in known:
            kept = ", ".join(known)
            raise ValueError(
                f"--rule {rule!r} would be called {name!r}, which is kept for other contenders;"
                f" expected another file name than {kept}."
            )
    return names


def fingerprint(rule: disco.Rule) -> str:
    """Return a hash of a rule's class, its parameters, and its settings that are not the default.

    A setting that a later version adds therefore does not change it. All forms of a discovered rule
    count as one class: they were one in older versions.

    Raises:
      ValueError: if its class is no dataclass.
    """
    if not dataclasses.is_dataclass(rule):
        raise ValueError(f"The rule is of {type(rule).__name__}; expected a dataclass.")
    name = type(rule).__name__
    if isinstance(rule, disco.DiscoveredRule):
        name = disco.DiscoveredRule.__name__
    digest = hashlib.sha256(name.encode())
    digest.update(json.dumps(_own_settings(rule), sort_keys=True).encode())
    for path, leaf in jax.tree.flatten_with_path(rule)[0]:
        digest.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _own_settings(rule: Any) -> dict[str, Any]:
    """Return the static fields that are not the default, also of nested dataclasses."""
    found = {}
    for field in dataclasses.fields(rule):
        value = getattr(rule, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = [type(value).__name__, _own_settings(value)]
        elif isinstance(value, bool | int | float | str | tuple | None) and value != field.default:
            found[field.name] = value
    return found


def agent_of(
    rule: str, header: dict[str, Any], config: EvaluationConfig
) -> tuple[AgentConfig, dict[str, str]]:
    """Return the agent of a rule, and the origin of each of `agents.search_space.RULE_RANGES`.

    It is the config's, with settings of the agents that the rule was discovered with where the
    config does not set them.

    Raises:
      disco.RuleFileError: if a setting in the file is not a number in its range.
    """
    agent, origins = config.agent, {}

    def chosen(name: str, is_used: Callable[[float], bool] = lambda found: True) -> float:
        """Return the config's setting for rules, or else the file's if used, or the agent's."""
        if (own := getattr(config, f"rule_{name}", None)) is not None:
            origins[name] = f"config.rule_{name}"
            return own
        found = _number_in_file(rule, header, name)
        if found is None or not is_used(found):
            origins[name] = f"config.agent.{name}"
            return getattr(agent, name)
        origins[name] = _FILE
        return found

    settings = {
        "learning_rate": chosen("learning_rate"),
        "end_learning_rate": chosen("end_learning_rate", lambda _: agent.end_learning_rate == 1.0),
        "replay_ratio": chosen(
            "replay_ratio", lambda found: 0.0 < found < 1.0 and not agent.replay_ratio
        ),
    }
    if origins["learning_rate"] == _FILE:
        settings["learning_rate"], origins["learning_rate"] = _for_width(
            rule, header, settings["learning_rate"], agent.network.torso
        )
    reward_scale = chosen("reward_scale", lambda _: agent.reward_scale == 1.0)
    if config.rule_num_environments is not None:
        agent = with_replay(agent, settings["replay_ratio"], config.rule_num_environments)
    network = agent.network
    if _number_in_file(rule, header, "network.model") == 0:
        network = dataclasses.replace(network, model=0)
    agent = with_settings(agent, settings)
    agent = dataclasses.replace(agent, network=network, reward_scale=reward_scale)
    if config.rule_lifetime is not None:
        agent = dataclasses.replace(agent, lifetime=config.rule_lifetime)
    elif origins["end_learning_rate"] == _FILE and not agent.lifetime:
        # A longer run goes on with the last learning rate, as a rule knows the agent's age, and the
        # learning rate that belongs to it. A shorter one has the whole fall.
        lifetime = min(int(_number_in_file(rule, header, "lifetime") or 0), config.budget)
        agent = dataclasses.replace(agent, lifetime=lifetime)
    return agent, {name: origins[name] for name in RULE_RANGES}


def _for_width(
    rule: str, header: dict[str, Any], learning_rate: float, torso: Sequence[int]
) -> tuple[float, str]:
    """Return a file's learning rate for agents of another width, and its origin.

    With a wider torso than the agents of the discovery had, theirs is divided by as much, with
    which Adam changes a layer's outputs alike at all widths (Yang et al. 2022, arXiv 2203.03466,
    table 3).

    Raises:
      disco.RuleFileError: if the file's torso is no list of positive numbers.
    """
    found, path = _in_file(rule, header, "network.torso")
    if not path or found == []:
        return learning_rate, _FILE
    if not isinstance(found, list) or not isinstance(found[-1], int) or found[-1] < 1:
        raise disco.RuleFileError(
            f"{rule}: the header's {path} is {found!r:.100}; expected positive numbers of units."
        )
    width = found[-1]
    if not torso or torso[-1] <= width:
        return learning_rate, _FILE
    said = f"{_FILE}'s, for {torso[-1]} units instead of {width}"
    return learning_rate * width / torso[-1], said


def _number_in_file(rule: str, header: dict[str, Any], name: str) -> float | None:
    """Return a setting of `_RANGES` of the discovery's agents; None if the file lacks it.

    Raises:
      disco.RuleFileError: if it is no number, or not an allowed one.
    """
    found, path = _in_file(rule, header, name)
    if not path:
        return None
    allowed, is_number = _RANGES[name], type(found) in (int, float)
    if not is_number or not math.isfinite(found) or not allowed.contains(found):
        raise disco.RuleFileError(
            f"{rule}: the header's {path} is {found!r:.100}; expected {allowed.expected}."
        )
    return float(found)


def _in_file(rule: str, header: dict[str, Any], name: str) -> tuple[Any, str]:
    """Return a setting of the discovery's agents as it is in the file, and its path there.

    The path is empty if the file lacks it.

    Raises:
      disco.RuleFileError: if it is a part of something that has no parts.
    """
    found, path = header.get("provenance", {}), "provenance"
    for part in ("agent", *name.split(".")):
        if not isinstance(found, dict):
            raise disco.RuleFileError(
                f"{rule}: the header's {path} is {found!r:.100}; expected names."
            )
        if part not in found:
            return None, ""
        found, path = found[part], f"{path}.{part}"
    return found, path

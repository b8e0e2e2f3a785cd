"""Evaluated rules by name: the rule, its fingerprint, and the agent that its file recommends.

Other packages add rules by entry points of the group `disco.rules`: the entry point has the rule's
name, and is a function that returns the rule (`docs/extending.md`).
"""

import dataclasses
import hashlib
import json
import logging
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import disco
from agents import registry
from agents.rule_agent import RuleAgentConfig
from agents.search_space import RULE_RANGES
from disco import rule_sources
from disco_common import plugins
from disco_common.ranges import AT_LEAST_0, FRACTION, POSITIVE, Range
from disco_common.terminal import require_printable
from evaluation import storage
from evaluation.config import EvaluationConfig, algorithm_of
from evaluation.studies import formula_rule

PLUGINS = plugins.define("disco.rules", disco.Rule)
FILE_SHA256 = "file_sha256"  # In a contender's source, the hash of its rule's file.
_FILE = "the rule file"  # Of a setting, where it comes from.
_WIDTH = "network.torso"
_ADAPTS = ("adapts_steps", "adapts_rewards")
_RANGES = {
    "learning_rate": POSITIVE,
    "end_learning_rate": FRACTION,
    "replay_ratio": FRACTION,
    "reward_scale": POSITIVE,
    "lifetime": AT_LEAST_0,
    "network.model": AT_LEAST_0,
    _WIDTH: Range("positive numbers of units", lambda x: x >= 1),
    **dict.fromkeys(_ADAPTS, Range("true or false", lambda x: x in (0, 1))),
}

_log = logging.getLogger(__name__)


def copy_of_rule(workdir: pathlib.Path, contender: str) -> pathlib.Path:
    """Return the path of the copy of a contender's rule file in an evaluation's workdir."""
    return workdir / "rules" / f"{storage.contender_folder(contender)}.npz"


def find_plugin(rule: str) -> Callable[..., disco.Rule] | None:
    """Return the function of another package that makes a rule; None if there is none.

    Raises:
      PluginError: (an `ImportError`) if it cannot be imported.
    """
    return None if rule.startswith(rule_sources.HUB) else plugins.find(PLUGINS, rule)


def read(
    rules: Sequence[str], config: EvaluationConfig, workdir: pathlib.Path | None = None
) -> Iterator[tuple[str, disco.Rule, RuleAgentConfig, dict[str, Any]]]:
    """Yield the name, the rule, its agent and its origin, JSON values, of each of some rules.

    Args:
      rules: names of rules (`disco.rule_sources`), or of other packages' rules.
      config: of the evaluation.
      workdir: with copies of rule files (`copy_of_rule`), which are read if the files no longer
        exist.

    Raises:
      FileNotFoundError, disco.RuleFileError: if a rule cannot be read.
      ValueError: if a rule has no discount to set, or its name is not its own.
    """
    for name, rule in zip(_distinct_names(rules), rules, strict=True):
        copy = None if workdir is None else copy_of_rule(workdir, name)
        loaded, header, sha256 = load(name, rule, copy, config.rule_discount)
        agent, origins = _agent_of(rule, header, config)
        source = {
            "file": rule,
            **sha256,
            "parameters_sha256": fingerprint(loaded),
            "header": header,
            **{f"{x}_from": origin for x, origin in origins.items()},
        }
        lifetime = agent.lifetime or config.budget
        yield name, loaded, dataclasses.replace(agent, lifetime=lifetime), source


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
        loaded, header = formula_rule.read(path)
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


def _distinct_names(rules: Sequence[str]) -> list[str]:
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


def _agent_of(
    rule: str, header: dict[str, Any], config: EvaluationConfig
) -> tuple[RuleAgentConfig, dict[str, str]]:
    """Return the agent of a rule, and the origin of each of `agents.search_space.RULE_RANGES`.

    It is the config's, with settings of the agents that the rule was discovered with where the
    config does not set them.

    Raises:
      disco.RuleFileError: if a setting in the file is not a number in its range.
    """
    own = {name: getattr(config, f"rule_{name}", None) for name in _RANGES}
    found = _of_discovery(rule, header, [name for name, x in own.items() if x is None])
    adapts = {name: True for name in _ADAPTS if found.get(name)}
    agent, origins = dataclasses.replace(config.agent, **adapts), {}

    def chosen(name: str, is_used: bool = True) -> float:
        """Return the config's setting for rules, or else the file's if used, or the agent's."""
        if (value := own[name]) is not None:
            origins[name] = f"config.rule_{name}"
            return value
        is_of_file = is_used and name in found
        origins[name] = _FILE if is_of_file else f"config.agent.{name}"
        return found[name] if is_of_file else getattr(agent, name)

    replays = 0.0 < found.get("replay_ratio", 0.0) < 1.0
    settings = {
        "learning_rate": chosen("learning_rate"),
        "end_learning_rate": chosen("end_learning_rate", agent.end_learning_rate == 1.0),
        "replay_ratio": chosen("replay_ratio", replays and not agent.replay_ratio),
    }
    width, torso = int(found.get(_WIDTH, 0)), agent.network.torso
    is_wider = width and torso and torso[-1] > width and not agent.adapts_steps
    if origins["learning_rate"] == _FILE and is_wider:
        # With a wider torso, the learning rate is divided by as much, with which Adam changes a
        # layer's outputs alike at all widths (Yang et al. 2022, arXiv 2203.03466, table 3).
        settings["learning_rate"] = settings["learning_rate"] * width / torso[-1]
        origins["learning_rate"] = f"{_FILE}'s, for {torso[-1]} units instead of {width}"
    reward_scale = chosen("reward_scale", agent.reward_scale == 1.0)
    if config.rule_num_environments is not None:
        agent = agent.with_replay(settings["replay_ratio"], config.rule_num_environments)
    network = agent.network
    if found.get("network.model") == 0:
        network = dataclasses.replace(network, model=0)
    agent = agent.with_settings(settings)
    agent = dataclasses.replace(agent, network=network, reward_scale=reward_scale)
    if config.rule_lifetime is not None:
        agent = dataclasses.replace(agent, lifetime=config.rule_lifetime)
    elif origins["end_learning_rate"] == _FILE and not agent.lifetime:
        # A longer run goes on with the last learning rate, as a rule knows the agent's age, and the
        # learning rate that belongs to it. A shorter one has the whole fall.
        lifetime = min(int(found.get("lifetime", 0)), config.budget)
        agent = dataclasses.replace(agent, lifetime=lifetime)
    return agent, {name: origins[name] for name in RULE_RANGES}


def _of_discovery(rule: str, header: dict[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return those of some settings of `_RANGES` of the discovery's agents that the file has.

    The torso's is the number of units of its last layer, if it has any.

    Raises:
      disco.RuleFileError: if one is no number, or not an allowed one, or a part of something that
        has no parts.
    """

    def refusal(path: str, found: Any, expected: str) -> disco.RuleFileError:
        return disco.RuleFileError(
            f"{rule}: the header's {path} is {found!r:.100}; expected {expected}."
        )

    whole, path, parts = header, "", []
    for part in ("provenance", "agent", "network"):
        whole, path = whole.get(part, {}), f"{path}.{part}".lstrip(".")
        if not isinstance(whole, dict):
            raise refusal(path, whole, "names")
        parts.append(whole)
    _, agent, network = parts
    entries, found = agent | {f"network.{x}": y for x, y in network.items()}, {}
    for name in names:
        if name not in entries or (name == _WIDTH and entries[name] == []):
            continue
        path, allowed = f"provenance.agent.{name}", _RANGES[name]
        value: Any = entries[name]
        if name == _WIDTH:
            value = value[-1] if isinstance(value, list) and type(value[-1]) is int else None
        is_number = type(value) in ((bool,) if name in _ADAPTS else (int, float))
        if not is_number or not math.isfinite(value) or not allowed.contains(value):
            raise refusal(path, entries[name], allowed.expected)
        found[name] = float(value)
    return found

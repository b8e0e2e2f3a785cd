"""The agent that an evaluated rule has: the config's, with settings from the rule's file."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import disco
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from agents.search_space import with_replay, with_settings
from disco_common.ranges import AT_LEAST_0, FRACTION, POSITIVE
from evaluation.config import EvaluationConfig

_FILE = "the rule file"  # Of a setting, where it comes from.


def agent_of(
    rule: str, header: dict[str, Any], config: EvaluationConfig
) -> tuple[AgentConfig, dict[str, str]]:
    """Return the agent of a rule, and the origin of each of `agents.search_space.RULE_RANGES`.

    Args:
      rule: the name that it was given by.
      header: of its file; empty for a rule without one.
      config: of the evaluation.

    Raises:
      disco.RuleFileError: if a setting in the file is not a number in its range.
    """
    settings = {
        "learning_rate": _learning_rate(rule, header, config),
        "end_learning_rate": _end_learning_rate(rule, header, config),
        "replay_ratio": _replay_ratio(rule, header, config),
    }
    values = {name: value for name, (value, _) in settings.items()}
    agent = config.agent
    if config.rule_num_environments is not None:
        number = config.rule_num_environments
        agent = with_replay(agent, values["replay_ratio"], number)
    agent = with_settings(agent, values)
    agent = dataclasses.replace(
        agent,
        network=_network(rule, header, config),
        reward_scale=_reward_scale(rule, header, config),
    )
    if config.rule_lifetime is not None:
        agent = dataclasses.replace(agent, lifetime=config.rule_lifetime)
    elif settings["end_learning_rate"][1] == _FILE and not agent.lifetime:
        agent = dataclasses.replace(agent, lifetime=_lifetime(rule, header, config))
    return agent, {name: origin for name, (_, origin) in settings.items()}


def _learning_rate(
    rule: str, header: dict[str, Any], config: EvaluationConfig
) -> tuple[float, str]:
    """Return the learning rate, and where it comes from.

    With a wider torso than the agents of the discovery had, theirs is divided by as much, with
    which Adam changes a layer's outputs alike at all widths (Yang et al. 2022, arXiv 2203.03466,
    table 3).
    """
    if config.rule_learning_rate is not None:
        return config.rule_learning_rate, "config.rule_learning_rate"
    found = _number_in_file(rule, header, "learning_rate", POSITIVE.contains, POSITIVE.expected)
    if found is None:
        return config.agent.learning_rate, "config.agent.learning_rate"
    torso = config.agent.network.torso
    width = _width_in_file(rule, header)
    if width is None or not torso or torso[-1] <= width:
        return found, _FILE
    return found * width / torso[-1], f"{_FILE}'s, for {torso[-1]} units instead of {int(width)}"


def _end_learning_rate(
    rule: str, header: dict[str, Any], config: EvaluationConfig
) -> tuple[float, str]:
    allowed = FRACTION.contains, FRACTION.expected
    found = _number_in_file(rule, header, "end_learning_rate", *allowed)
    if found is None or config.agent.end_learning_rate < 1.0:
        return config.agent.end_learning_rate, "config.agent.end_learning_rate"
    return found, _FILE


def _reward_scale(rule: str, header: dict[str, Any], config: EvaluationConfig) -> float:
    if config.rule_reward_scale is not None:
        return config.rule_reward_scale
    found = _number_in_file(rule, header, "reward_scale", POSITIVE.contains, POSITIVE.expected)
    if found is None or config.agent.reward_scale != 1.0:
        return config.agent.reward_scale
    return found


def _lifetime(rule: str, header: dict[str, Any], config: EvaluationConfig) -> int:
    """Return the environment steps in which the learning rate falls: those of the discovery.

    A longer run goes on with the last learning rate, as a rule knows the agent's age, and the
    learning rate that belongs to it. A shorter one has the whole fall.
    """
    found = _number_in_file(rule, header, "lifetime", AT_LEAST_0.contains, AT_LEAST_0.expected)
    return min(int(found), config.budget) if found else 0


def _replay_ratio(rule: str, header: dict[str, Any], config: EvaluationConfig) -> tuple[float, str]:
    if config.rule_replay_ratio is not None:
        return config.rule_replay_ratio, "config.rule_replay_ratio"
    found = _number_in_file(rule, header, "replay_ratio", FRACTION.contains, FRACTION.expected)
    if found and found < 1.0 and not config.agent.replay_ratio:
        return found, _FILE
    return config.agent.replay_ratio, "config.agent.replay_ratio"


def _network(rule: str, header: dict[str, Any], config: EvaluationConfig) -> NetworkConfig:
    """Return the network: without the action-conditional LSTM if the file's agents have none."""
    network = config.agent.network
    allowed = AT_LEAST_0.contains, AT_LEAST_0.expected
    if _number_in_file(rule, header, "network.model", *allowed) == 0:
        network = dataclasses.replace(network, model=0)
    return network


def _number_in_file(
    rule: str,
    header: dict[str, Any],
    name: str,
    is_allowed: Callable[[float], bool],
    expected: str,
) -> float | None:
    """Return a setting of the agents that a rule was discovered with; None if the file lacks it.

    Args:
      rule: the name that it was given by.
      header: of its file.
      name: of the setting, with a dot for a part of one.
      is_allowed: whether a number is in range.
      expected: the range, for messages.

    Raises:
      disco.RuleFileError: if it is no number, or not an allowed one.
    """
    found, path = _in_file(rule, header, name)
    if not path:
        return None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not math.isfinite(found) or not is_allowed(found):
        raise disco.RuleFileError(
            f"{rule}: the header's {path} is {found!r:.100}; expected {expected}."
        )
    return float(found)


def _width_in_file(rule: str, header: dict[str, Any]) -> float | None:
    """Return the units of the torso's last layer; None without a torso.

    Raises:
      disco.RuleFileError: if it is no list of positive numbers.
    """
    found, path = _in_file(rule, header, "network.torso")
    if not path or found == []:
        return None
    if not isinstance(found, list) or not isinstance(found[-1], int) or found[-1] < 1:
        raise disco.RuleFileError(
            f"{rule}: the header's {path} is {found!r:.100}; expected positive numbers of units."
        )
    return float(found[-1])


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

"""Settings of algorithms: parsed from text, replaced by name, and read from earlier versions."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from agents.rule_agent import AgentConfig
from disco_common.configuration import optional_type

_KINDS = {
    bool: "true or false",
    int: "a number without point",
    float: "a number",
    str: "a name",
}


def split(parameters: str) -> tuple[list[str], dict[str, str]]:
    """Return the words and the settings of `WORD,SETTING=VALUE,...`, in any order."""
    words = [word.strip() for word in parameters.split(",") if word.strip()]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    return [word for word in words if "=" not in word], settings


def with_overrides(agent: str, config: Any, settings: Mapping[str, str]) -> Any:
    """Return a config with some settings replaced, parsed from strings.

    Args:
      agent: its name, for messages.
      config: a dataclass; numbers, flags and names can be replaced, also of its parts.
      settings: by name, with dots for parts of a setting.

    Raises:
      ValueError: if there is no such setting, or its string cannot be parsed.
    """
    kinds, found = dict(_kinds(config)), {}
    for name, text in settings.items():
        if name not in kinds:
            raise ValueError(
                f"{agent} has no setting {name!r}; expected one of {', '.join(kinds)}."
            )
        kind, value = kinds[name]
        try:
            found[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ValueError(
                f"{agent}'s {name} is {text!r}; expected {_KINDS[kind]}, as {value!r}."
            ) from None
    return replaced(agent, config, found)


def _kinds(config: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings that text can replace: their names, types and values."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _kinds(value, f"{prefix}{field.name}.")
            continue
        kind = optional_type(config, field.name) if value is None else type(value)
        if kind in _KINDS:
            yield prefix + field.name, (kind, value)


def replaced(agent: str, config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a config with settings replaced by their names, with dots for parts of a setting."""
    parts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    known = {field.name for field in dataclasses.fields(config)}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if first not in known:
            raise ValueError(f"{agent} has no setting {name!r}; expected one of {sorted(known)}.")
        if rest:
            parts.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    for name, changed in parts.items():
        part = getattr(config, name)
        if not dataclasses.is_dataclass(part):
            raise ValueError(f"{agent}'s setting {name} is {part!r}, and has no {sorted(changed)}.")
        own[name] = replaced(agent, part, changed)
    return dataclasses.replace(config, **own)


def for_run(config: Any, num_steps: int) -> Any:
    """Return settings with the length of the run where they leave it open."""
    if getattr(config, "total_steps", 0) is None:
        return dataclasses.replace(config, total_steps=num_steps)
    agent = getattr(config, "agent", None)
    if isinstance(agent, AgentConfig):
        return dataclasses.replace(config, agent=for_run(agent, num_steps))
    if isinstance(config, AgentConfig) and config.end_learning_rate < 1.0 and not config.lifetime:
        return dataclasses.replace(config, lifetime=num_steps)
    return config


def present_settings(
    name: str, stored: Mapping[str, Any], config: Any, gone: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that an earlier version stored as today's.

    What an algorithm always has became constants, and the words of a name, which chose the others,
    still choose them: in these, today's settings of the same name are those of the run.

    Args:
      name: of the algorithm, for messages.
      stored: settings of an earlier version.
      config: today's of the same name, a dataclass.
      gone: values that settings which are gone must have, if they are stored.

    Raises:
      ValueError: if one of these has another value.
    """
    for setting, expected in gone.items():
        if stored.get(setting, expected) != expected:
            raise ValueError(
                f"{name} was trained by an older version, with {setting} {stored[setting]!r},"
                f" which is gone; expected {expected!r}."
            )
    present = json.loads(json.dumps(dataclasses.asdict(config)))
    return present | {x: value for x, value in stored.items() if x in present}

"""Settings of an agent from text: `horizon=10,free_bits=0.5`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from disco_common.configuration import from_json, optional_type

T = TypeVar("T")

_KINDS = {
    bool: "true or false",
    int: "a number without point",
    float: "a number",
    str: "a name",
}


def split_parameters(parameters: str) -> tuple[list[str], dict[str, str]]:
    """Return the words and the settings of `WORD,SETTING=VALUE,...`, in any order."""
    words = [word.strip() for word in parameters.split(",") if word.strip()]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    return [word for word in words if "=" not in word], settings


def with_overrides(agent: str, config: T, settings: Mapping[str, str]) -> T:
    """Return a config with some settings replaced, parsed from strings by name.

    Args:
      agent: its name, for messages.
      config: a dataclass; only numbers, flags and names can be replaced.
      settings: by name.

    Raises:
      ValueError: if there is no such setting, or its string cannot be parsed.
    """
    kinds = {}
    for field in dataclasses.fields(config):  # pyright: ignore[reportArgumentType]
        value = getattr(config, field.name)
        kind = optional_type(config, field.name) if value is None else type(value)
        if kind in _KINDS:
            kinds[field.name] = kind
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in kinds:
            raise ValueError(
                f"{agent} has no setting {name!r}; expected one of {', '.join(kinds)}."
            )
        kind = kinds[name]
        try:
            found[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ValueError(
                f"{agent}'s {name} is {text!r}; expected {_KINDS[kind]}, as"
                f" {getattr(config, name)!r}."
            ) from None
    return dataclasses.replace(config, **found)  # pyright: ignore[reportArgumentType]


def preset_with_overrides(agent: str, presets: Mapping[str, T], parameters: str) -> T:
    """Return the config of `PRESET,SETTING=VALUE,...`; without a preset, of the first one.

    Raises:
      ValueError: if there is no such preset or setting, or a value cannot be parsed.
    """
    words, settings = split_parameters(parameters)
    unknown = [word for word in words if word not in presets]
    if unknown or len(words) > 1:
        raise ValueError(
            f"{agent} has the parameters {parameters!r}; expected one preset of"
            f" {', '.join(presets)} and settings as NAME=VALUE."
        )
    chosen = words[0] if words else next(iter(presets))
    return with_overrides(agent, presets[chosen], settings)


def with_stored(factory: T, agent: str, settings: Mapping[str, Any]) -> T:
    """Return an agent's factory with a run's settings, as a preset may have changed since the run.

    A factory of another kind is returned as it is, and so is one of whose settings the agent's name
    says something else, or whose settings are out of range.

    Args:
      factory: a dataclass with a `config`, another dataclass, and perhaps such for some tasks.
      agent: its name, with parameters.
      settings: of the run, JSON values of the factory's `settings`.
    """
    made: Any = factory
    if not dataclasses.is_dataclass(getattr(made, "config", None)):
        return factory
    kind, own = type(made.config), dict(settings)
    optional = {x.name: own.pop(x.name, None) for x in dataclasses.fields(made) if x.name in _OWN}
    try:
        config = from_json(kind, own)
        changes = {name: _OWN[name](kind, value) for name, value in optional.items()}
    except (AttributeError, TypeError, ValueError):  # Damaged settings.
        return factory
    for name in split_parameters(agent.partition("/")[2])[1]:
        if getattr(config, name, None) != getattr(made.config, name, None):
            return factory
    return dataclasses.replace(made, config=config, **changes)


def _by_task(kind: type, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: from_json(kind, x) for name, x in (stored or {}).items()}


# What a factory has besides its config, and how it is read from a run's settings, or from None.
_OWN: Mapping[str, Callable[[type, Any], Any]] = {
    "of_family": _by_task,
    "of_game": _by_task,
    "images": lambda kind, stored: stored and tuple(stored),
    "for_images": lambda kind, stored: stored and from_json(kind, stored),
}

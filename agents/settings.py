"""Settings of an agent from text: `horizon=10,free_bits=0.5`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

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
    fields = dataclasses.fields(config)  # pyright: ignore[reportArgumentType]
    known = [x.name for x in fields if type(getattr(config, x.name)) in _KINDS]
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in known:
            raise ValueError(
                f"{agent} has no setting {name!r}; expected one of {', '.join(known)}."
            )
        kind = type(getattr(config, name))
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

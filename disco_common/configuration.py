"""Config files and flags: `--config=FILE`, and `--config.some.field=value` for any field.

A config file defines `get_config()`, which returns a dataclass, or an `ml_collections.ConfigDict`
that `to_config` has made of one. Commands convert it back by `from_config`. The flag parser refuses
unknown fields, the dataclasses refuse values out of range.
"""

import dataclasses
import json
import reprlib
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict, config_dict

from disco_common.ranges import LARGEST, is_finite

T = TypeVar("T")

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxtuple = 20


def to_config(settings: Any) -> ConfigDict:
    """Return a locked config made of a dataclass of plain values, tuples and dataclasses."""
    config = ConfigDict()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            config[field.name] = to_config(value)
        elif value is None:
            config[field.name] = config_dict.placeholder(optional_type(settings, field.name))
        else:
            config[field.name] = value
    return config.lock()


def from_config(cls: type[T], config: ConfigDict, path: str = "config") -> T:
    """Return the dataclass of which a config was made.

    Raises:
      ValueError: if a field is unknown, missing, not finite or out of range, naming it.
    """
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{path} is {_shown(config)}; expected fields.")
    types = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(f"{path} has no fields {unknown}; it has {known}.")
    values = {}
    for name in config:
        value: Any = config[name]
        if dataclasses.is_dataclass(types[name]):
            value = from_config(types[name], value, f"{path}.{name}")
        elif isinstance(value, list):
            value = tuple(value)
        if not _is_of_type(value, types[name]):
            expected = getattr(types[name], "__name__", None)
            expected = str(types[name]) if typing.get_args(types[name]) else expected
            raise ValueError(f"{path}.{name} is {_shown(value)}; expected {expected}.")
        # NaN and infinity are refused for all fields, so that no dataclass has to check them.
        for number in value if isinstance(value, tuple) else (value,):
            if expected := _bound_exceeded(number):
                raise ValueError(f"{path}.{name} is {_shown(value)}; expected {expected}.")
        values[name] = value
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def from_json(cls: type[T], values: dict[str, Any]) -> T:
    """Return the dataclass whose `dataclasses.asdict` was written as JSON.

    Raises:
      ValueError: as `from_config`.
    """
    if not isinstance(values, dict):
        raise ValueError(f"config is {_shown(values)}; expected fields.")
    return from_config(cls, ConfigDict(with_present_names(cls, values)))


def with_present_names(cls: type, values: Any) -> Any:
    """Return a dataclass's JSON values without fields that were removed, which `REMOVED` names."""
    if not isinstance(values, dict):
        return values
    removed, types = getattr(cls, "REMOVED", ()), typing.get_type_hints(cls)
    return {
        name: with_present_names(types[name], value)
        if dataclasses.is_dataclass(types.get(name))
        else value
        for name, value in values.items()
        if name not in removed
    }


def upgrade_settings(
    name: str, stored: Mapping[str, Any], config: Any, gone: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that an earlier version stored as today's.

    Settings that are `gone` must have these values (else ValueError), if they are stored; those
    that are new have the values of today's `config` of the same name.
    """
    for setting, expected in gone.items():
        if stored.get(setting, expected) != expected:
            raise ValueError(
                f"{name} was trained by an older version, with {setting} {stored[setting]!r},"
                f" which is gone; expected {expected!r}."
            )
    present = json.loads(json.dumps(dataclasses.asdict(config)))
    return present | {x: value for x, value in stored.items() if x in present}


def _shown(value: Any) -> str:
    """Return a value as text for a message, abbreviated if it is long."""
    return _REPR.repr(value.to_dict() if isinstance(value, ConfigDict) else value)


def _is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of a field's type: a plain type, `tuple[T, ...]` or `T | None`."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_of_type(x, arguments[0]) for x in value)
    if arguments:
        return any(_is_of_type(value, argument) for argument in arguments)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _bound_exceeded(value: Any) -> str:
    """Return the expected range if a number is not finite or too large, else an empty text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "an integer of at most 64 bits"
    if isinstance(value, float) and not is_finite(value):
        return f"a finite number, of at most {LARGEST:g} (float32's largest)"
    return ""


def optional_type(settings: Any, name: str) -> type:
    """Return the type of an optional field's values other than None."""
    hint = typing.get_type_hints(type(settings))[name]
    (kind,) = (t for t in typing.get_args(hint) if t is not type(None))
    return kind

"""The `--config` flag, whose unknown fields are refused by a sentence rather than a traceback.

_CONFIG = define_config(launch.configs.evaluate)
app.run(main, flags_parser=parse_flags)
"""

import os
import sys
import typing
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

_NAME = "config"
_known_fields: list[str] = []


def define_config(default: ModuleType, argument: str = "") -> flags.FlagHolder[Any]:
    """Defines `--config=FILE` and `--config.FIELD=value`.

    ml_collections reads overrides from the command line as soon as the flag is defined, so that
    an unknown field ends the program here, with status 2.

    Args:
      default: the config file to use by default, as a module.
      argument: of its `get_config`, if that has one.
    """
    arguments = [argument] if argument else []
    _known_fields[:] = _leaves(default.get_config(*arguments))
    try:
        return config_flags.DEFINE_config_file(
            _NAME,
            ":".join([str(default.__file__), *arguments]),
            "Config file, with :ARGUMENT if it takes one; --config.FIELD overrides a field.",
        )
    except AttributeError as error:
        _refuse(error)


def config_arguments() -> list[str]:
    """Flags that say the config of this command again: its file, and all overrides."""
    flag: Any = flags.FLAGS[_NAME]
    file = os.path.abspath(config_flags.get_config_filename(flag))
    overrides = config_flags.get_override_values(flag)
    return [f"--{_NAME}={file}"] + [f"--{_NAME}.{k}={value}" for k, value in overrides.items()]


def parse_config(arguments: Sequence[str]) -> ConfigDict:
    """The config that such flags say.

    Raises:
      ValueError: naming the flag, if a field is unknown or a value is not one of its.
    """
    values = flags.FlagValues()
    argv = [sys.argv[0], *arguments]
    try:
        config_flags.DEFINE_config_file(_NAME, flag_values=values, sys_argv=argv)
        values(argv)
    except AttributeError as error:
        raise ValueError(_no_field(error)) from error
    except flags.Error as error:
        raise ValueError(str(error).strip().splitlines()[-1]) from error
    return typing.cast(ConfigDict, values[_NAME].value)


def given(name: str) -> str:
    """The value of a flag on the command line, before flags are parsed; empty if it is not there.

    For a default config that depends on another flag.
    """
    arguments = sys.argv[1:]
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, separator, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if separator else following
    return ""


def parse_flags(argv: list[str]) -> list[str]:
    """Parses as absl does; returns the arguments that are not flags."""
    try:
        return flags.FLAGS(argv)
    except AttributeError as error:
        _refuse(error)
    except flags.Error as error:
        *_, last = str(error).strip().splitlines()
        kind, _, message = last.strip().partition(": ")
        if kind == "ValueError":  # At the end of the traceback of a config file that refuses.
            print(message, file=sys.stderr)
            sys.exit(2)
        # As absl's own `app.parse_flags_with_usage`, which would define overrides again.
        print(f"FATAL Flags parsing error: {error}", file=sys.stderr)
        print("Pass --helpshort or --helpfull to see help on flags.", file=sys.stderr)
        sys.exit(1)


def _refuse(error: AttributeError) -> NoReturn:
    given = [argument for argument in sys.argv if argument.lstrip("-").startswith(f"{_NAME}.")]
    print(f"{' '.join(given)}: {_no_field(error)}", file=sys.stderr)
    sys.exit(2)


def _no_field(error: AttributeError) -> str:
    field = str(error).strip("\"'")
    return f"the config has no field {field!r}; it has {', '.join(_known_fields)}."


def _leaves(config: ConfigDict, prefix: str = "") -> list[str]:
    """Dotted names of a config's fields."""
    names = []
    for name in config:
        value = config[name]
        is_config = isinstance(value, ConfigDict)
        names += _leaves(value, f"{prefix}{name}.") if is_config else [f"{prefix}{name}"]
    return names

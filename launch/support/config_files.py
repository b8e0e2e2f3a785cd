"""Config files: what `--config` names, and why one cannot be used."""

import difflib
import importlib.machinery
import inspect
import os
import stat
import sys
import traceback
import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from disco_common import files


class RefusedFlagError(Exception):
    """A flag's value cannot be used; the message names the flag and the reason.

    It is not a `ValueError`, which absl would convert to an error of its own.
    """


def get_config(file: str, arguments: Sequence[str]) -> ConfigDict:
    """Return the result of a config file's `get_config`.

    Raises:
      RefusedFlagError: without the flag's name, if there is no such function, or it fails.
    """
    get_config = getattr(_run(file), "get_config", None)
    if not callable(get_config):
        raise RefusedFlagError("The file has no function get_config().")
    try:
        inspect.signature(get_config).bind(*arguments)
    except (TypeError, ValueError) as error:
        expected = "none" if arguments else f"one, as in --config={file}:ARGUMENT"
        raise RefusedFlagError(
            f"Its get_config has another number of arguments ({error}); expected {expected}."
        ) from error
    try:
        config = get_config(*arguments)
    except (Exception, SystemExit) as error:
        raise RefusedFlagError(_reason(error, file)) from error
    if not isinstance(config, ConfigDict):
        raise RefusedFlagError(
            f"Its get_config returns {type(config).__name__}; expected a ConfigDict, as"
            " disco_common.configuration.to_config makes it."
        )
    return config


def _run(file: str) -> ModuleType:
    """Run a Python file; return it as a module.

    Raises:
      RefusedFlagError: if it is not a regular file, or cannot be run.
    """
    expected = "expected a Python file with a function get_config()."
    try:
        mode = os.stat(file).st_mode
    except OSError as error:
        raise RefusedFlagError(f"{error.strerror}; {expected}") from error
    if not stat.S_ISREG(mode):  # Opening a pipe might block.
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise RefusedFlagError(f"It is {kind}; {expected}")
    module = types.ModuleType("config_file")
    module.__file__ = file
    sys.modules[module.__name__] = module  # Dataclasses look up their module there.
    loader = importlib.machinery.SourceFileLoader(module.__name__, file)
    try:
        # Not from `__pycache__`, which can be stale after two changes within a second.
        source = files.read_bytes(file, files.MOST_TEXT)
        exec(loader.source_to_code(source, file), module.__dict__)
    except (Exception, SystemExit) as error:
        raise RefusedFlagError(_reason(error, file)) from error
    return module


def _reason(error: BaseException, file: str) -> str:
    """Return the message of an exception in a config file, with its line.

    The message of a ValueError is returned as it is: config files so refuse their argument.
    """
    if isinstance(error, ValueError):
        return str(error)
    lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == file]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}."


def problem_of(config: ConfigDict, name: str) -> str:
    """Return the reason why a dotted name is not a field of a config; empty if it is one."""
    found: Any = config
    for part in name.split("."):
        if not isinstance(found, ConfigDict) or part not in found:
            return f"the config has no field {name!r}{_alternatives(name, config)}"
        found = found[part]
    if isinstance(found, ConfigDict):  # Setting it would reset all of its other fields.
        return f"{name} has fields of its own; expected one of {', '.join(leaves(found))}."
    return ""


def _alternatives(name: str, config: ConfigDict) -> str:
    """Return the end of a sentence: the fields that are spelled like a name."""
    names = leaves(config)
    close = difflib.get_close_matches(name, names, n=3)
    last = name.rpartition(".")[2]
    close += [x for x in names if x.rpartition(".")[2] == last and x not in close]
    similar = f"; did you mean {' or '.join(close)}?" if close else "."
    return f"{similar} --print_config lists all."


def leaves(config: ConfigDict, prefix: str = "") -> list[str]:
    """Return the dotted names of a config's fields."""
    names = []
    for name in config:
        value = config[name]
        is_config = isinstance(value, ConfigDict)
        names += leaves(value, f"{prefix}{name}.") if is_config else [f"{prefix}{name}"]
    return names

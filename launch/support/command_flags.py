"""Flags that refuse wrong values in a sentence: `--config`, and flags for files and folders."""

import dataclasses
import difflib
import os
import pathlib
import re
import shlex
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from disco_common import configuration, files, plugins, terminal

flags.disclaim_key_flags()  # Flags are those of the command that has them defined.

_NAME = "config"
CONFIG_FOLDER = pathlib.Path(__file__).parent.parent / "configs"
CONFIGS = sorted(path.stem for path in CONFIG_FOLDER.glob("[a-z]*.py"))
_OVERRIDE = re.compile(rf"--?(?:no)?{_NAME}\.([^=]*)")


class RefusedFlagError(Exception):
    """A flag's value cannot be used; the message names the flag and the reason.

    It is not a `ValueError`, which absl would convert to an error of its own.
    """


# The command line, before flags are parsed.


def joined(arguments: Iterable[str]) -> list[str]:
    """Return the arguments with each `--flag value` as `--flag=value`."""
    found: list[str] = []
    for argument in arguments:
        if not argument.startswith("-") and found and "=" not in found[-1]:
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def flag_of(argument: str) -> str:
    """Return the flag's name of `--flag=value` or `--flag`."""
    return argument.lstrip("-").partition("=")[0]


def value_of(name: str) -> str:
    """Return the last value of a flag, `--flag=value` or `--flag value`; empty if not given."""
    given = [x.partition("=")[2] for x in joined(sys.argv[1:]) if flag_of(x) == name]
    return given[-1] if given else ""


def has_flag(*names: str) -> bool:
    """Return whether one of some Boolean flags is given, as `--flag` or `--flag=true`."""
    given = [x.lstrip("-").partition("=") for x in sys.argv[1:] if x.startswith("-")]
    return any(name in names and x.lower() not in ("false", "f", "0") for name, _, x in given)


def asks_for_help() -> bool:
    """Return whether the command line asks for the command's help."""
    return has_flag("help", "helpshort", "h", "?")


def only_prints_config() -> bool:
    """Return whether the command line has `--print_config`, which needs no other flag."""
    return has_flag("print_config")


def wants_tracebacks() -> bool:
    """Return whether the command line has `--verbosity=1` or more."""
    return max(value_of("verbosity"), value_of("v")) >= "1"  # As text, "-1" is less than "1".


# Configs.


def define_config(
    default: str,
    argument: Callable[[], str] = str,
    extend: Callable[[ConfigDict, Sequence[str]], None] = lambda config, names: None,
) -> None:
    """Define `--config=FILE` and `--config.FIELD=value`; nothing is read if help is asked for.

    Without `--config`, overrides are read here, and an unknown field ends the program.

    Args:
      default: file or name of the default config.
      argument: returns the argument of the default's `get_config`, empty for none.
      extend: adds fields to a config, given the names of all fields that flags override; raises
        ValueError or ImportError for names that it refuses.
    """
    text = (
        "Config: a file, or the name of one of launch/configs, with :ARGUMENT if it takes one."
        " --config.FIELD=VALUE changes a field."
    )
    flags.DEFINE_bool("print_config", False, "Print all fields of the config, and end.")
    if asks_for_help():
        flags.DEFINE_string(_NAME, default, text)
        return
    found = argument()
    try:
        config_flags.DEFINE_config_file(_NAME, help_string=text)
        flags.FLAGS[_NAME].parser = _ConfigFile(extend)
        flags.FLAGS.set_default(_NAME, f"{default}:{found}" if found else default)
    except (RefusedFlagError, flags.Error) as error:
        _end(error)


def config_arguments() -> list[str]:
    """Return flags that reproduce the config of this command: its file, and all overrides."""
    file = config_flags.get_config_filename(typing.cast(Any, flags.FLAGS[_NAME]))
    return [f"--{_NAME}={file}", *(f"--{_NAME}.{k}={x}" for k, x in config_overrides().items())]


def config_overrides() -> Mapping[str, Any]:
    """Return the values of the config's fields that flags of this command give."""
    return config_flags.get_override_values(typing.cast(Any, flags.FLAGS[_NAME]))


def parse_config(arguments: Sequence[str]) -> ConfigDict:
    """Return the config of flags from `config_arguments`, or of flags like them.

    Raises:
      ValueError: naming the flag, if a file cannot be used, a field is unknown, or a value is not
        of the field's type.
    """
    values = flags.FlagValues()
    argv = [sys.argv[0], *arguments]
    config_flags.DEFINE_config_file(_NAME, flag_values=values, sys_argv=argv)
    values[_NAME].parser = _ConfigFile(lambda config, names: None, arguments)
    try:
        values(argv)
    except RefusedFlagError as error:
        raise ValueError(str(error)) from error
    except (flags.Error, ValueError) as error:
        raise ValueError(str(error).strip().splitlines()[-1]) from error
    return typing.cast(ConfigDict, values[_NAME].value)


def print_config() -> None:
    """Print the fields of `--config` as flags, by sections; of those without a value the name."""
    for name, value in _leaves(typing.cast(ConfigDict, flags.FLAGS[_NAME].value)).items():
        flag = f"--{_NAME}.{name}"
        print(f"# {flag} is not set" if value is None else f"{flag}={shlex.quote(str(value))}")


class _ConfigFile(flags.ArgumentParser[ConfigDict]):
    """The parser of `FILE` or `FILE:ARGUMENT`; it also refuses overrides of unknown fields.

    ml_collections' own opens any kind of file, and its errors are tracebacks or come with the
    config's use.
    """

    def __init__(
        self,
        extend: Callable[[ConfigDict, Sequence[str]], None],
        arguments: Sequence[str] | None = None,
    ):
        """Store the arguments to read overrides from; by default those of the program."""
        self._extend, self._arguments = extend, arguments

    def parse(self, argument: str) -> ConfigDict:
        """Return the config, to which no fields can be added.

        Raises:
          RefusedFlagError: if the file cannot be used, or a field is unknown.
        """
        config = _config_of(argument)
        words = sys.argv if self._arguments is None else self._arguments
        read = flags.FLAGS.read_flags_from_files(list(words), force_gnu=False)
        overrides = [(x, match[1]) for x in read if (match := _OVERRIDE.match(x))]
        try:
            self._extend(config, [name for _, name in overrides])
        except (ImportError, ValueError) as error:
            raise RefusedFlagError(f"--{_NAME}: {error}") from error
        for override, name in overrides:
            _require_field(config, override, name)
        return config.lock()


def _config_of(argument: str) -> ConfigDict:
    """Return the result of `get_config` in a file: a config, or the settings that it is made of.

    A ValueError's message is that of the refusal: config files so refuse their argument.
    """
    file, *arguments = os.path.expanduser(argument).split(":", 1)
    if file in CONFIGS:
        file = str(CONFIG_FOLDER / f"{file}.py")
    module: Any = types.ModuleType("config_file")
    module.__file__ = file
    sys.modules[module.__name__] = module  # Dataclasses look up their module there.
    try:
        # Not from `__pycache__`, which can be stale after two changes within a second.
        exec(compile(files.read_bytes(file, files.MOST_TEXT), file, "exec"), module.__dict__)
        config = module.get_config(*arguments)
        if dataclasses.is_dataclass(config):
            return configuration.to_config(config)
        if not isinstance(config, ConfigDict):
            raise TypeError(f"get_config returns {type(config).__name__}")
        return config
    except ValueError as error:
        raise RefusedFlagError(f"--{_NAME}={argument}: {error}") from error
    except (Exception, SystemExit) as error:
        lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == file]
        where = f" (line {lines[-1]})" if lines else ""
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}{where}"
        raise RefusedFlagError(
            f"--{_NAME}={argument}: {reason}; expected a Python file with a function get_config(),"
            " which returns settings, a dataclass, or a ConfigDict."
        ) from error


def _require_field(config: ConfigDict, override: str, name: str) -> None:
    """Refuse a flag whose dotted name is not that of a value in a config."""
    names = list(_leaves(config))
    if name in names:
        return
    if below := [x.removeprefix(f"{name}.") for x in names if x.startswith(f"{name}.")]:
        # Setting it would reset all of its other fields.
        raise RefusedFlagError(
            f"{override}: {name} has fields of its own; expected one of {', '.join(below)}."
        )
    close = difflib.get_close_matches(name, names, n=3)
    last = name.rpartition(".")[2]
    close += [x for x in names if x.rpartition(".")[2] == last and x not in close]
    similar = f"; did you mean {' or '.join(close)}?" if close else "."
    raise RefusedFlagError(
        f"{override}: the config has no field {name!r}{similar} --print_config lists all."
    )


def _leaves(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Return the values of a config's fields by dotted names."""
    found = {}
    for name, value in config.items():
        below = isinstance(value, ConfigDict)
        found |= _leaves(value, f"{prefix}{name}.") if below else {f"{prefix}{name}": value}
    return found


# Files and folders, and other flags of several commands.


def split_values(values: str) -> list[str]:
    """Return the values of a list, split at commas outside of brackets and quotes."""
    part = r"""(?:\([^()]*\)|\[[^\[\]]*\]|'[^']*'|"[^"]*"|[^,])*"""
    return [value.strip() for value in re.findall(rf"(?:^|,)({part})", values)]


def listed_paths(values: Iterable[str]) -> list[str]:
    """Return the paths that a flag's values give, by commas or repetition; `~` is a home folder.

    A value that is there as a whole is one path: a path may have commas.
    """
    paths = []
    for value in map(os.path.expanduser, values):
        parts = [value] if os.path.lexists(value) else split_values(value)
        paths += [os.path.expanduser(part) for part in parts if part]
    return paths


def define_path(
    name: str,
    help_text: str,
    problem: Callable[[str], str] = lambda path: "",
    required: bool = True,
) -> None:
    """Define a flag for a file or a folder, which refuses an empty value; `~` is a home folder.

    An empty path is the current folder, and most likely an unset variable in `--workdir=$WORKDIR`.
    `problem` returns the reason to refuse a path, in a sentence, or an empty text.
    """

    class Path(flags.ArgumentParser[str]):
        def parse(self, argument: str) -> str:
            path = os.path.expanduser(argument)
            found = problem(path) if path.strip() else "It is empty; expected a path."
            if found:
                raise RefusedFlagError(f"--{name}={path}: {found}")
            return path

    def check(path: str | None) -> bool:
        if path is None and required and not only_prints_config():
            raise RefusedFlagError(f"--{name}=… is missing: {help_text}")
        return True

    flags.DEFINE(Path(), name, None, help_text)
    flags.register_validator(name, check)


def define_output_folder(name: str, help_text: str) -> None:
    """Define a flag for a folder, which need not exist, and refuses one that cannot be written."""
    define_path(name, help_text, _problem_of_folder)


def define_output_file(name: str, help_text: str, suffix: str = "", required: bool = True) -> None:
    """Define a flag for a file, with a suffix if any, which refuses one that cannot be written."""

    def problem(path: str) -> str:
        if pathlib.Path(path).suffix != suffix and suffix:
            return f"Expected the name of a file that ends in {suffix!r}."
        if os.path.isdir(path):
            return "It is a folder; expected a file."
        folder = pathlib.Path(path).absolute().parent
        if not os.path.lexists(folder):
            return f"There is no folder {str(folder)!r} to write it in."
        return _problem_of_folder(folder)

    define_path(name, help_text, problem, required)


def _problem_of_folder(path: str | os.PathLike[str]) -> str:
    """Return the reason why a folder, which need not exist, cannot be written; empty if it can."""
    folder = pathlib.Path(path).absolute()
    there = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    if not os.path.isdir(there):
        return f"{str(there)!r} is not a folder."
    if not os.access(there, os.W_OK | os.X_OK):
        return f"Nothing can be written in {str(there)!r}."
    return ""


def define_imports() -> None:
    """Define `--imports`, and import the modules that it names, here and in all workers.

    Must be called before flags whose defaults depend on an environment.

    Raises:
      PluginError: if a module cannot be imported.
    """
    flags.DEFINE_string(
        "imports",
        "",
        "Modules to import, which register environments, by commas. With or without any,"
        " launch.watch may import modules that the files of a run name, as of"
        " gymnasium/<module>:<id>; only for files that you trust.",
    )
    flags.FLAGS["imports"].boolean = True  # It needs no value, and then is "true".
    given = [x.partition("=")[2] for x in sys.argv if re.match(r"--?imports=", x)] or [""]
    named = split_values(given[-1])
    plugins.import_modules(x for x in named if x not in ("", "true", "false"))


def define_dry_run() -> None:
    """Define `--dry_run`."""
    flags.DEFINE_bool("dry_run", False, "Say what would run, and about how long, and end.")


def parse_flags(argv: list[str]) -> list[str]:
    """Parse flags as absl does; return the arguments that are not flags."""
    try:
        return flags.FLAGS(argv)
    except (RefusedFlagError, flags.Error, ValueError) as error:  # ValueError: --noFLAG=value.
        _end(error)


def _end(error: Exception) -> NoReturn:
    """End the program with an error's message; `--verbosity=1` shows the traceback, too."""
    if isinstance(error, RefusedFlagError):
        if wants_tracebacks():
            traceback.print_exception(error)
        print(terminal.message(error), file=sys.stderr)
        sys.exit(2)
    # As in absl's `app.parse_flags_with_usage`, which would define overrides again.
    print(f"FATAL Flags parsing error: {terminal.message(error)}", file=sys.stderr)
    print("Pass --helpshort or --helpfull to see help on flags.", file=sys.stderr)
    sys.exit(1)

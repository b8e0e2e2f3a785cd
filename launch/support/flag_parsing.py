"""Flags that refuse wrong values in a sentence: `--config`, and flags for files and folders.

define_config("evaluate")
define_output_folder("workdir", "Folder for all results.")
app.run(main, flags_parser=parse_flags)
"""

import os
import pathlib
import re
import shlex
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from disco_common import plugins, terminal
from launch.support import start
from launch.support.config_files import RefusedFlagError, get_config, leaves, problem_of

flags.disclaim_key_flags()  # Flags are those of the command that has them defined.

_NAME = "config"
_FOLDER = pathlib.Path(__file__).parent.parent / "configs"
_CONFIGS = sorted(path.stem for path in _FOLDER.glob("[a-z]*.py"))
_OVERRIDE = re.compile(rf"--?(?:no)?{_NAME}\.([^=]*)")


def define_config(
    default: str,
    argument: Callable[[], str] = str,
    extend: Callable[[ConfigDict, Sequence[str]], None] = lambda config, overridden: None,
) -> None:
    """Define `--config=FILE` and `--config.FIELD=value`; nothing is read if help is asked for.

    Without `--config`, ml_collections reads overrides from the command line as soon as the flag is
    defined, so that an unknown field ends the program here, with status 2.

    Args:
      default: the default config: a file, or the name of one of `launch/configs`.
      argument: returns the argument of its `get_config`; empty for none.
      extend: adds fields to the config, given the names of all fields that flags override. It
        raises `ValueError` or `ImportError` for names that it refuses.
    """
    text = (
        "Config: a file, or the name of one of launch/configs, with :ARGUMENT if it takes one."
        " --config.FIELD=VALUE changes a field."
    )
    flags.DEFINE_bool("print_config", False, "Print all fields of the config, and end.")
    if start.has_flag(sys.argv[1:], *start.HELP):
        flags.DEFINE_string(_NAME, default, text)
        return
    found = argument()
    file = str(_FOLDER / f"{default}.py") if default in _CONFIGS else default
    file += f":{found}" if found else ""
    try:
        config_flags.DEFINE_config_file(_NAME, help_string=text)
        flags.FLAGS[_NAME].parser = _ConfigFile(extend=extend)
        flags.FLAGS.set_default(_NAME, file)
    except (RefusedFlagError, flags.Error) as error:
        _end(error)


def config_arguments() -> list[str]:
    """Return flags that reproduce the config of this command: its file, and all overrides."""
    file = config_flags.get_config_filename(typing.cast(Any, flags.FLAGS[_NAME]))
    file = os.path.abspath(os.path.expanduser(file))
    changed = [f"--{_NAME}.{k}={value}" for k, value in config_overrides().items()]
    return [f"--{_NAME}={file}", *changed]


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
    values[_NAME].parser = _ConfigFile(arguments)
    try:
        values(argv)
    except RefusedFlagError as error:
        raise ValueError(str(error)) from error
    except (flags.Error, ValueError) as error:
        raise ValueError(str(error).strip().splitlines()[-1]) from error
    return typing.cast(ConfigDict, values[_NAME].value)


def given(name: str) -> str:
    """Return the value of a flag on the command line, before flags are parsed; empty if not given.

    For a default config that depends on another flag.
    """
    return start.value_of(name, sys.argv[1:])


def wants_tracebacks() -> bool:
    """Return whether `--verbosity=1` or more is on the command line, before flags are parsed."""
    return max(given("verbosity"), given("v")) >= "1"  # As text, "-1" is less than "1".


def split_values(values: str) -> list[str]:
    """Return the values of a list, split at commas outside of brackets and quotes."""
    part = r"""(?:\([^()]*\)|\[[^\[\]]*\]|'[^']*'|"[^"]*"|[^,])*"""
    return [value.strip() for value in re.findall(rf"(?:^|,)({part})", values)]


def define_path(
    name: str,
    help_text: str,
    problem: Callable[[str], str] = lambda path: "",
    required: bool = True,
) -> flags.FlagHolder[Any]:
    """Define a flag for a file or a folder, which refuses an empty value.

    An empty path is the current folder, and most likely an unset variable in `--workdir=$WORKDIR`.

    Args:
      name: of the flag.
      help_text: of the flag.
      problem: returns the reason to refuse a path, in a sentence; empty to accept it.
      required: whether the flag must be given.
    """
    holder = flags.DEFINE(_Path(), name, None, help_text)

    def check(path: str | None) -> bool:
        if path is None:
            if required and not only_prints_config():
                raise RefusedFlagError(f"--{name}=… is missing: {help_text}")
            return True
        found = problem(path) if path.strip() else "It is empty; expected a path."
        if found:
            raise RefusedFlagError(f"--{name}={path}: {found}")
        return True

    flags.register_validator(name, check)
    return holder


class _Path(flags.ArgumentParser[str]):
    """The parser of a path: `~` is a home folder."""

    def parse(self, argument: str) -> str:
        return os.path.expanduser(argument)

    def flag_type(self) -> str:
        return "string"


def listed_paths(values: Iterable[str]) -> list[str]:
    """Return the paths that a flag's values give, by commas or repetition; `~` is a home folder.

    A path may have commas: a value that is there as a whole is one path, and so is what is in
    quotes.
    """
    paths = []
    for value in map(os.path.expanduser, values):
        parts = [value] if os.path.lexists(value) else split_values(value)
        paths += [os.path.expanduser(_unquoted(part)) for part in parts if part.strip()]
    return paths


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def define_output_folder(name: str, help_text: str, required: bool = True) -> flags.FlagHolder[Any]:
    """Define a flag for a folder, which refuses one that cannot be written.

    The folder need not exist yet.
    """
    return define_path(name, help_text, _problem_of_folder, required)


def define_output_file(
    name: str, help_text: str, suffix: str = "", required: bool = True
) -> flags.FlagHolder[Any]:
    """Define a flag for a file, which refuses one that cannot be written.

    Args:
      name: of the flag.
      help_text: of the flag.
      suffix: that the file must have; empty for any.
      required: whether the flag must be given.
    """

    def problem(path: str) -> str:
        if pathlib.Path(path).suffix != suffix and suffix:
            return f"Expected the name of a file that ends in {suffix!r}."
        if os.path.isdir(path):
            return "It is a folder; expected a file."
        folder = pathlib.Path(path).absolute().parent
        if not os.path.lexists(folder):
            return f"There is no folder {str(folder)!r} to write it in."
        return _problem_of_folder(folder)

    return define_path(name, help_text, problem, required)


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
        "Modules to import, which register environments, by commas. With or without any, modules"
        " that a workdir's or run's files name may be imported, as of gymnasium/<module>:<id>; only"
        " for files that you trust.",
    )
    flags.FLAGS["imports"].boolean = True  # It needs no value, and then is "true".
    found = [x.partition("=")[2] for x in sys.argv if start.name_of(x) == "imports"]
    named = split_values(found[-1]) if found else []
    plugins.import_modules(x for x in named if x not in ("", "true", "false"))


def define_dry_run() -> None:
    """Define `--dry_run`."""
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Say what would run, how long (measured by its first steps, for about a minute) and how"
        " large, and end.",
    )


def only_prints_config() -> bool:
    """Return whether the command line has `--print_config`, which needs no other flag."""
    return start.has_flag(sys.argv[1:], "print_config")


def print_config() -> None:
    """Print the fields of `--config` as flags, by sections; of those without a value the name."""
    config, lines = typing.cast(ConfigDict, flags.FLAGS[_NAME].value), list[str]()
    for name in leaves(config):
        value: Any = config
        for part in name.split("."):
            value = value[part]
        flag = f"--{_NAME}.{name}"
        lines.append(
            f"# {flag} is not set" if value is None else f"{flag}={shlex.quote(str(value))}"
        )
    print("\n".join(lines))


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


class _ConfigFile(flags.ArgumentParser[ConfigDict]):
    """The parser of `FILE` or `FILE:ARGUMENT`; it also refuses overrides of unknown fields.

    It replaces the parser of ml_collections, which opens any kind of file, and whose errors are
    tracebacks or are raised only when the config is used.
    """

    def __init__(
        self,
        arguments: Iterable[str] | None = None,
        extend: Callable[[ConfigDict, Sequence[str]], None] = lambda config, overridden: None,
    ):
        """Store the arguments to read overrides from; by default those of the program.

        `extend` is that of `define_config`.
        """
        self._arguments, self._extend = arguments, extend

    def parse(self, argument: str) -> ConfigDict:
        """Return the config, locked: its fields can change, but none can be added.

        Raises:
          RefusedFlagError: if the file cannot be used, or a field is unknown.
        """
        file, *arguments = os.path.expanduser(argument).split(":", 1)
        if file in _CONFIGS:
            file = str(_FOLDER / f"{file}.py")
        try:
            config = get_config(file, arguments)
        except RefusedFlagError as error:
            raise RefusedFlagError(f"--{_NAME}={argument}: {error}") from error.__cause__
        words = sys.argv if self._arguments is None else self._arguments
        read = flags.FLAGS.read_flags_from_files(list(words), force_gnu=False)
        overrides = [(x, match[1]) for x in read if (match := _OVERRIDE.match(x))]
        try:
            self._extend(config, [name for _, name in overrides])
        except (ImportError, ValueError) as error:
            raise RefusedFlagError(f"--{_NAME}: {error}") from error
        for override, name in overrides:
            if problem := problem_of(config, name):
                raise RefusedFlagError(f"{override}: {problem}")
        return config.lock()

    def flag_type(self) -> str:
        return "config file"

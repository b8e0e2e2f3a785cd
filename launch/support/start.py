"""What a command does before it imports what is slow: the version, a first line, known arguments.

`launch.support.commands.run` calls `begin`.
"""

import functools
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

from disco_common import files
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from disco_common.terminal import message

ARGUMENTS = "arguments.json"  # In a workdir: the command that wrote in it last.
HELP = ("help", "helpshort", "h", "?")  # Flags that ask for a command's help.

_PREFIX = "launch."
_IMPORTS = "imports"  # A flag: modules that a file names are to be trusted.
_READ_ONLY = ("dry_run", "print_config")  # Flags with which a command writes nothing.
_CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Flags of one process, not of a run.
_OF_A_PROCESS = ("coordinator", "coordinator_timeout", "num_processes", "process_id")
# Flags that no file may give: what they name is run, written, or worked with on other machines.
_ONLY_TYPED = ("workdir", "flagfile", _IMPORTS, "ray_address", *_OF_A_PROCESS)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z]\w*(\.\w+)*)(=(?P<value>.*))?", re.DOTALL)
_WITH_COLONS = ("env_kwargs", "config.families")  # Whose values have colons, and name no module.
_RULES = ("rule", "config.rule.start")  # Which may be of the hub, `hf:owner/name`.


def begin(module: str, arguments: list[str]) -> None:
    """Answer `--version`, or say what the command is about to do.

    A command that has only `--workdir` continues with the other arguments that the workdir knows.

    Args:
      module: of the command, `launch.NAME`.
      arguments: `sys.argv`; may be extended.
    """
    name = module.removeprefix(_PREFIX)
    if module == name or has_flag(arguments, *HELP):
        return
    if has_flag(arguments, "version"):
        print_version()
        sys.exit(0)
    try:
        for file in _values_of("flagfile", arguments):  # Which absl opens, whatever it is.
            files.require_regular(pathlib.Path(os.path.expanduser(file)), files.MOST_TEXT)
    except OSError as error:
        print(f"{module}: --flagfile: {message(error)}.", file=sys.stderr)
        sys.exit(2)
    is_read_only = has_flag(arguments, *_READ_ONLY)
    workdir = os.path.expanduser(value_of("workdir", arguments))
    if workdir and name != "export":
        there = (pathlib.Path(workdir) / "config.json").exists()
        typed = _joined(arguments[1:])
        others = {name_of(x) for x in typed} - {"workdir"}
        if there and others <= {*_READ_ONLY, _IMPORTS}:
            given = [x.partition("=")[2] for x in typed if name_of(x) == _IMPORTS]
            trusts = given[-1:] not in ([], ["false"])
            known = _known_arguments(pathlib.Path(workdir), module, trusts)
            if given[-1:] not in ([], [""], ["true"]):  # Modules that replace those of the file.
                known = [x for x in known if name_of(x) != _IMPORTS]
            arguments += known
        what = "goes on in" if there else "begins in"
        if not is_read_only:
            print(message(f"{name} {version()} {what} {workdir}."), file=sys.stderr, flush=True)


def end_at_interrupts(module: str) -> None:
    """Have Ctrl-C end this program with a line, also within imports that would hide it.

    Args:
      module: of the command, `launch.NAME`; nothing changes for others.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if module.startswith(_PREFIX) and not is_ignored:
        signal.signal(signal.SIGINT, functools.partial(_end, module))


def raise_at_interrupts() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` again, after `end_at_interrupts`."""
    if isinstance(signal.getsignal(signal.SIGINT), functools.partial):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(module: str, number: int, frame: types.FrameType | None) -> NoReturn:
    del frame
    os.write(2, f"{module}: stopped by Ctrl-C.\n".encode())
    os._exit(128 + number)


def keep_own_arguments(folder: pathlib.Path) -> None:
    """Write the arguments of this process in a folder, if it is the workdir of its command."""
    spec = sys.modules["__main__"].__spec__
    workdir = pathlib.Path(os.path.expanduser(value_of("workdir", sys.argv)))
    if spec is None or not spec.name.startswith(_PREFIX) or workdir.absolute() != folder.absolute():
        return
    left_out = ("workdir", *_OF_A_PROCESS)
    others = [x for x in _joined(sys.argv[1:]) if name_of(x) not in left_out]
    keep_arguments(folder, spec.name, others)


def keep_arguments(folder: pathlib.Path, module: str, arguments: Sequence[str]) -> None:
    """Write the arguments with which a command continues in a folder."""
    content = {"command": module, "arguments": list(arguments)}
    write_atomically(folder / ARGUMENTS, json.dumps(content, indent=2) + "\n")


def _known_arguments(folder: pathlib.Path, module: str, imports: bool) -> list[str]:
    """Return the arguments, without the workdir, of the command that wrote in a folder last.

    Files are data: arguments that could have Python run are refused, with what to type. `imports`
    is whether they may name modules.
    """
    try:
        found = read_object(folder / ARGUMENTS)
        command, arguments = found["command"], _joined([str(x) for x in found["arguments"]])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(message(f"{module}: {folder / ARGUMENTS} is ignored: {error}"), file=sys.stderr)
        return []
    if command != module or not arguments:
        return []
    shown = shlex.join(arguments)
    if refused := [x for x in arguments if not _is_data(x, imports)]:
        said = (
            f"{module}: {folder / ARGUMENTS} has arguments that may run code or are not of a run:"
            f" {shlex.join(refused)}. If you trust them, repeat all: python -m {module}"
            f" --workdir={folder} {shown}"
        )
        print(message(said), file=sys.stderr)
        sys.exit(2)
    print(message(f"With the arguments in {folder / ARGUMENTS}: {shown}"), file=sys.stderr)
    return arguments


def _joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each `--flag value` as `--flag=value`."""
    joined: list[str] = []
    for argument in arguments:
        if not argument.startswith("-") and joined and "=" not in joined[-1]:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _is_data(argument: str, imports: bool = False) -> bool:
    """Return whether an argument cannot have Python run what a file names.

    What can: config files but those of `launch/configs`, files of flags, modules to import, and
    names in modules, which have a colon. With `imports` the last two may.
    """
    found = _FLAG.fullmatch(argument)
    if found is None:
        return False
    name, value = found["name"], found["value"] or ""
    if name in _ONLY_TYPED:
        return imports and name == _IMPORTS
    if name == "config":
        file = value.partition(":")[0]
        named = _CONFIGS / f"{file}.py" if re.fullmatch(r"\w+", file) else pathlib.Path(file)
        return named.is_file() and named.resolve().parent == _CONFIGS.resolve()
    if name in _RULES:
        value = ",".join(x.strip().removeprefix("hf:") for x in value.split(","))
    return imports or ":" not in value or name in _WITH_COLONS


def name_of(argument: str) -> str:
    """Return the name of the flag in `--flag` or `--flag=value`."""
    return argument.lstrip("-").partition("=")[0]


def value_of(flag: str, arguments: Sequence[str]) -> str:
    """Return the last value of a flag, `--flag=value` or `--flag value`; empty if not given."""
    return next(reversed(_values_of(flag, arguments)), "")


def _values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return all values of a flag, in order."""
    values = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, separator, its_own = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == flag:
            values.append(its_own if separator else following)
    return values


def has_flag(arguments: Sequence[str], *names: str) -> bool:
    """Return whether one of some flags without a value is among the arguments."""
    return any(x.startswith("-") and x.lstrip("-") in names for x in arguments)


def print_version() -> None:
    """Print what `--version` says."""
    print(f"disco-update-rules {version()}")


def version() -> str:
    """Return the version of the package `disco`, which is not imported."""
    spec = importlib.util.find_spec("disco")
    text = pathlib.Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return found[1] if found else "(unknown version)"

"""Workdirs: the folders of runs, with their lock and their settings.

Commands that write in a workdir open it by `opened`, which locks it. A workdir has

    config.json     the settings
    sources.json    the SHA-256 of files that a discovery's tasks are read from, if there are any
    version.txt     the version of the code
    arguments.json  the command line, but for --workdir, with which --workdir alone goes on
    .lock           locked by `flock`: the system releases it when the process that holds it ends
    .lock.json      that process; if it is there while `.lock` is free, the process was killed
"""

import contextlib
import dataclasses
import datetime
import errno
import functools
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from absl import logging
from filelock import FileLock, Timeout

import disco
from disco_common import files
from disco_common.configuration import with_present_names
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from disco_common.terminal import printable
from launch.support import commands, processes

CONFIG, SOURCES, VERSION = "config.json", "sources.json", "version.txt"
CHECKPOINTS = "checkpoints"  # Of a discovery, a folder.
_LOCK, _NOTE = ".lock", ".lock.json"

_LONGEST = 200  # Characters of what is found on disk that a message shows.
# Error numbers of file systems that cannot lock files.
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class WorkdirHeldError(OSError):
    """Another command holds the workdir's lock."""


@functools.cache
def code_version() -> str:
    """Return the package's version, with the commit if the code is in a git checkout."""
    version = disco.__version__
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}+{commit}"


@contextlib.contextmanager
def opened(
    workdir: str | os.PathLike,
    settings: Any,
    changeable: Sequence[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[pathlib.Path]:
    """Create or open a run's folder, hold its lock, compare and write its settings.

    Of several processes, only the first one writes. If another version of the code continues the
    run, there is a warning. Arguments and errors are those of `require_same_settings` and `locked`.
    """
    with locked(workdir) as folder:
        require_same_settings(folder, settings, changeable, sources)
        if processes.is_first():
            with _named(folder):
                _compare_versions(folder)
                contents = {CONFIG: settings} | ({SOURCES: dict(sources)} if sources else {})
                for name, content in contents.items():
                    write_atomically(folder / name, json.dumps(_as_json(content), indent=2) + "\n")
                write_atomically(folder / VERSION, f"{code_version()}\n")
                commands.keep_arguments(folder)
        yield folder


@contextlib.contextmanager
def locked(workdir: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Create a folder if it does not exist, and hold its lock.

    Of several processes of one run, only the first one holds it. Readers need no lock. If the last
    holder was killed, a warning names it. If the file system cannot lock files, there is a warning
    instead of a lock.

    Raises:
      WorkdirHeldError: naming the command that holds the lock.
      ValueError: if the folder cannot be used.
    """
    folder = pathlib.Path(workdir)
    with contextlib.ExitStack() as held:
        with _named(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _acquired(folder) if processes.is_first() else None
            if lock is not None:
                held.callback(lock.release)
                _take_over(folder / _NOTE)
                held.callback((folder / _NOTE).unlink, missing_ok=True)
        yield folder


@contextlib.contextmanager
def _named(folder: pathlib.Path) -> Iterator[None]:
    """Name a folder in errors of reading and writing in it."""
    try:
        yield
    except WorkdirHeldError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Workdir {str(folder)!r} cannot be used: {reason}.") from error


def _acquired(folder: pathlib.Path) -> FileLock | None:
    """Return the acquired lock; None if the file system cannot lock files."""
    # No soft lock, which is a file's existence: it stays when a process is killed.
    lock = FileLock(folder / _LOCK, fallback_to_soft=False)
    files.require_regular(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise WorkdirHeldError(
            f"Workdir {str(folder)!r} is held by {_holder(folder / _NOTE)}. Two commands that write"
            " in one workdir would corrupt its files; wait until that command has ended, or choose"
            " another workdir."
        ) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _CANNOT_LOCK:
            raise
        logging.warning(
            "The file system of %s cannot lock files (%s): make sure that no other command writes"
            " there at the same time.",
            folder,
            error,
        )
        return None
    return lock


def _take_over(note: pathlib.Path) -> None:
    """Describe this process in the note of who holds the lock."""
    if note.exists():
        logging.warning(
            "%s was held by %s, which has ended without releasing it; this command takes it over.",
            note.parent,
            _holder(note),
        )
    own = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": shlex.join(sys.orig_argv),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    write_atomically(note, json.dumps(own) + "\n")


def _holder(note: pathlib.Path) -> str:
    """Return the description of the process that wrote a note, as part of a sentence."""
    try:
        found = read_object(note)
        pid, host, since, command = (
            str(found[name])[:_LONGEST] for name in ("pid", "host", "since", "command")
        )
    except (OSError, ValueError, KeyError):
        return f"an unknown process ({note.name} is missing or damaged)"
    return printable(f"process {pid} on {host} since {since} ({command})")


def require_same_settings(
    workdir: str | os.PathLike,
    settings: Any,
    changeable: Sequence[str] = (),
    sources: Mapping[str, str] | None = None,
) -> None:
    """Refuse a folder of a run of other settings; it need not exist, and nothing is written.

    A field that the settings on disk lack, because an older version wrote them, has its default.

    Args:
      workdir: the folder.
      settings: a dataclass, or a dictionary, of JSON values and further dataclasses.
      changeable: dotted names of fields that may differ from those on disk.
      sources: the SHA-256 of files that tasks are read from, by the tasks' names; None where they
        are not compared.

    Raises:
      ValueError: if the folder belongs to a run of other settings, if a file of its tasks has
        changed, or if a file in it cannot be read, naming it.
    """
    folder = pathlib.Path(workdir)
    with _named(folder):
        found, files_found = (_read_if_there(folder / x) for x in (CONFIG, SOURCES))
    if found is not None:
        # Without this field, a falling learning rate would go on as a constant one.
        meta = found.get("meta")
        if steps := isinstance(meta, dict) and meta.get("learning_rate_decay_steps"):
            raise ValueError(
                f"Workdir {str(folder)!r} is of a discovery whose meta.learning_rate_decay_steps is"
                f" {_shown(steps)}, which this version cannot continue; expected 0. Choose another"
                " workdir, or continue it with the version in its version.txt."
            )
        found = _completed(found, settings)
        if different := _differences(found, _as_json(settings), changeable):
            raise ValueError(
                f"Workdir {str(folder)!r} is of a run with another config: {different}. Choose"
                " another workdir, or use those values."
            )
    if sources is None:
        return
    if different := _differences({**sources, **(files_found or {})}, dict(sources)):
        raise ValueError(
            f"The files that tasks of {str(folder)!r} are read from have changed since the run was"
            f" started (SHA-256): {different}. Choose another workdir, or restore the files."
        )


def _as_json(value: Any) -> Any:
    """Return a value with JSON's types, in which dataclasses are objects and tuples lists."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))


def _read_if_there(file: pathlib.Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        return read_object(file)


def _compare_versions(folder: pathlib.Path) -> None:
    """Warn if another version of the code has made the run so far."""
    try:
        theirs = files.read_text(folder / VERSION).strip()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        theirs = f"(unknown: {error})"
    if theirs != code_version():
        logging.warning(
            "%s was made by version %s of the code so far, and continues with %s.",
            folder,
            printable(theirs[:_LONGEST]),
            code_version(),
        )


def _completed(found: Any, settings: Any) -> Any:
    """Return settings on disk, with defaults for fields that they lack, without removed ones."""
    if isinstance(found, dict) and isinstance(settings, dict):
        return {name: _completed(x, settings.get(name)) for name, x in found.items()}
    if not isinstance(found, dict) or not dataclasses.is_dataclass(settings):
        return found
    found = with_present_names(type(settings), found)
    absent = [field for field in dataclasses.fields(settings) if field.name not in found]
    defaults = {
        x.name: x.default if x.default_factory is dataclasses.MISSING else x.default_factory()
        for x in absent
    }
    defaults = {name: x for name, x in defaults.items() if x is not dataclasses.MISSING}
    given = {name: _completed(x, getattr(settings, name, None)) for name, x in found.items()}
    return given | _as_json(defaults)


def _differences(found: Any, wanted: Any, changeable: Sequence[str] = (), name: str = "") -> str:
    """Return in which leaves two nested dictionaries differ, as part of a sentence."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        below = (
            _differences(found.get(x), wanted.get(x), changeable, f"{name}.{x}" if name else x)
            for x in sorted(set(found) | set(wanted))
        )
        return "; ".join(filter(None, below))
    if found == wanted or name in changeable or (found is None and wanted == {}):
        return ""
    return f"{printable(name)} is {_shown(found)} there and {_shown(wanted)} here"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # Some versions of Python parse such JSON.
        return "nested too deeply"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

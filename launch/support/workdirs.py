"""Workdirs: the folders of runs, with their settings and metrics.

Commands that write in a workdir open it by `opened`, which locks it. A workdir has

    config.json     the settings
    sources.json    the SHA-256 of files that a discovery's tasks are read from, if there are any
    version.txt     the version of the code
    arguments.json  the command line, but for --workdir, with which --workdir alone continues
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from disco_common import files
from disco_common.configuration import with_present_names
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from disco_common.terminal import printable
from launch.support import locks, processes, start
from launch.support.provenance import code_version

CONFIG, SOURCES, VERSION = "config.json", "sources.json", "version.txt"
CHECKPOINTS = "checkpoints"  # Of a discovery, a folder.

# Metadata of a field of settings: a workdir of an older version, which lacks it, takes its value
# from the command that continues the run.
_ADOPTED = "is_adopted"
ADOPTED = {_ADOPTED: True}

_LONGEST = 200  # Characters of what is found on disk that a message shows.


@contextlib.contextmanager
def opened(
    workdir: str | os.PathLike, settings: Any, changeable: Sequence[str] = ()
) -> Iterator[pathlib.Path]:
    """Create or open a run's folder, and hold its lock.

    Arguments are those of `open_workdir`.

    Raises:
      WorkdirHeldError: naming the command that holds the lock.
      ValueError: if the folder belongs to a run of other settings, or cannot be used.
    """
    with locked(workdir):
        yield open_workdir(workdir, settings, changeable)


@contextlib.contextmanager
def locked(workdir: str | os.PathLike) -> Iterator[None]:
    """Create a folder if it does not exist, and hold its lock.

    Raises:
      WorkdirHeldError: naming the command that holds the lock.
      ValueError: if the folder cannot be used.
    """
    folder = pathlib.Path(workdir)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locks.held(folder))
        except locks.WorkdirHeldError:
            raise
        except OSError as error:
            raise _unusable(folder, error) from error
        yield


def open_workdir(
    workdir: str | os.PathLike, settings: Any, changeable: Sequence[str] = ()
) -> pathlib.Path:
    """Create or open a run's folder; compare and write its settings.

    Of several processes, only the first one writes. A field that the settings on disk lack, because
    an older version wrote them, has its default. If another version of the code continues the run,
    there is a warning.

    Args:
      workdir: the folder.
      settings: a dataclass of JSON values and further dataclasses.
      changeable: dotted names of fields that may differ from those on disk.

    Raises:
      ValueError: if the folder belongs to a run of other settings, or cannot be used, naming the
        file that cannot be read.
    """
    folder = pathlib.Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    require_same_settings(folder, settings, changeable)
    if not processes.is_first():
        return folder
    _compare_versions(folder)
    try:
        write_atomically(folder / CONFIG, json.dumps(_as_json(settings), indent=2) + "\n")
        write_atomically(folder / VERSION, f"{code_version()}\n")
        start.keep_own_arguments(folder)
    except OSError as error:
        raise ValueError(f"Workdir {str(folder)!r} cannot be written: {error}.") from error
    return folder


def require_same_settings(
    workdir: str | os.PathLike, settings: Any, changeable: Sequence[str] = ()
) -> None:
    """Refuse a folder of a run of other settings; it need not exist, and nothing is written.

    Arguments and errors are those of `open_workdir`.
    """
    folder = pathlib.Path(workdir)
    found = _read_if_there(folder, CONFIG)
    if found is None:
        return
    found = _completed(with_present_names(type(settings), found), settings)
    different = _described(_differences(found, _as_json(settings)), changeable)
    if different:
        raise ValueError(
            f"Workdir {str(folder)!r} is of a run with another config: {different}. Choose"
            " another workdir, or use those values."
        )


def require_same_sources(workdir: str | os.PathLike, sources: Mapping[str, str]) -> dict[str, Any]:
    """Refuse changed files of tasks; return the checksums on record. Nothing is written.

    Arguments and errors are those of `keep_sources`; the folder need not exist.
    """
    folder = pathlib.Path(workdir)
    found = _read_if_there(folder, SOURCES) or {}
    different = _described(_differences({**sources, **found}, dict(sources)))
    if different:
        raise ValueError(
            f"The files that tasks of {str(folder)!r} are read from have changed since the run was"
            f" started (SHA-256): {different}. Choose another workdir, or restore the files."
        )
    return found


def keep_sources(folder: pathlib.Path, sources: Mapping[str, str]) -> None:
    """Record the checksums of files that a run's tasks are read from; refuse changed files.

    A run of an older version, which has no checksums, records the present ones.

    Args:
      folder: of the run, locked.
      sources: the files' SHA-256 by the tasks' names.

    Raises:
      ValueError: naming the tasks, if a file has changed since the run was started.
    """
    found = require_same_sources(folder, sources)
    if processes.is_first() and sources != found:
        write_atomically(folder / SOURCES, json.dumps(dict(sources), indent=2) + "\n")


def _as_json(settings: Any) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def _read_if_there(folder: pathlib.Path, name: str) -> dict[str, Any] | None:
    try:
        return read_object(folder / name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error


def _unusable(folder: pathlib.Path, error: Exception) -> ValueError:
    return ValueError(f"Workdir {str(folder)!r} cannot be used: {str(error).rstrip('.')}.")


def _compare_versions(folder: pathlib.Path) -> None:
    """Warn if another version of the code has made the run so far."""
    file, ours = folder / VERSION, code_version()
    try:
        theirs = files.read_text(file).strip()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        logging.warning(
            "%s cannot be read (%s): the version of the code that made the run is unknown.",
            file,
            error,
        )
        return
    if theirs != ours:
        logging.warning(
            "%s was made by version %s of the code so far, and continues with %s.",
            folder,
            printable(theirs[:_LONGEST]),
            ours,
        )


def _completed(found: Any, settings: Any) -> Any:
    """Return settings on disk, with defaults for the fields that they lack."""
    if not isinstance(found, dict) or not dataclasses.is_dataclass(settings):
        return found
    completed = dict(found)
    for field in dataclasses.fields(settings):
        if field.name in found:
            ours = getattr(settings, field.name)
            completed[field.name] = _completed(found[field.name], ours)
            is_mapping = isinstance(ours, Mapping) and isinstance(found[field.name], dict)
            if field.metadata.get(_ADOPTED) and is_mapping:
                completed[field.name] = {**ours, **found[field.name]}
            continue
        default = field.default
        if field.metadata.get(_ADOPTED):
            default = getattr(settings, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is not dataclasses.MISSING:
            if dataclasses.is_dataclass(default):
                default = dataclasses.asdict(default)  # pyright: ignore
            completed[field.name] = json.loads(json.dumps(default))
    return completed


def _differences(found: Any, wanted: Any, prefix: str = ""):
    """Yield name, found and wanted value of each leaf in which two nested dictionaries differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(set(found) | set(wanted)):
            yield from _differences(
                found.get(name), wanted.get(name), f"{prefix}.{name}" if prefix else name
            )
    elif found != wanted:
        yield prefix, found, wanted


def _described(differences: Iterable[tuple[str, Any, Any]], changeable: Sequence[str] = ()) -> str:
    """Return the forbidden differences, as part of a sentence; empty if there is none."""
    return "; ".join(
        f"{printable(name)} is {_shown(theirs)} there and {_shown(ours)} here"
        for name, theirs, ours in differences
        if name not in changeable
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # Some versions of Python parse such JSON.
        return "nested too deeply"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

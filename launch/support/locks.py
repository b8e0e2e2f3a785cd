"""Locks of workdirs: one command at a time writes in a folder.

`.lock` is locked by `flock`, so the system releases it when the process that holds it ends.
`.lock.json` describes that process. If it exists while `.lock` is free, the process was killed.
"""

import contextlib
import datetime
import errno
import json
import os
import pathlib
import shlex
import socket
import sys
from collections.abc import Iterator
from typing import Any

from absl import logging
from filelock import FileLock, Timeout

from disco_common import files
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from disco_common.terminal import printable
from launch.support import processes

_LOCK, _NOTE = ".lock", ".lock.json"
_LONGEST = 300  # Characters of a command in messages.
# Error numbers of file systems that cannot lock files.
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class WorkdirHeldError(OSError):
    """Another command holds the workdir's lock."""


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
    """Hold a folder's lock; of several processes of one run, only the first one holds it.

    Readers need no lock. If the last holder was killed, a warning names it. If the file system
    cannot lock files, there is a warning instead of a lock.

    Args:
      folder: an existing one.

    Raises:
      WorkdirHeldError: if another command holds it, naming that one.
      OSError: if the lock or the note cannot be written.
    """
    lock = _acquired(folder) if processes.is_first() else None
    if lock is None:
        yield
        return
    note = folder / _NOTE
    try:
        if note.exists():
            logging.warning(
                "%s was held by %s, which has ended without releasing it; this command takes it"
                " over.",
                folder,
                _holder(note),
            )
        write_atomically(note, json.dumps(_own()) + "\n")
        yield
    finally:
        with contextlib.suppress(OSError):  # The note is only for messages.
            note.unlink()
        lock.release()


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


def _own() -> dict[str, Any]:
    """Return the description of this process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": shlex.join(sys.orig_argv),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _holder(note: pathlib.Path) -> str:
    """Return the description of the process that wrote a note, as part of a sentence."""
    try:
        found = read_object(note)
        pid, host, since = (str(found[name])[:_LONGEST] for name in ("pid", "host", "since"))
        command = str(found["command"])[:_LONGEST]
    except (OSError, ValueError, KeyError):
        return f"an unknown process ({note.name} is missing or damaged)"
    return printable(f"process {pid} on {host} since {since} ({command})")

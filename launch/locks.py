"""One command at a time writes in a folder: a lock, and a note that says who holds it.

`.lock` is locked by `flock`, which ends with the process that holds it, however it ends.
`.lock.json` names that process while it lives; where it is left behind, the process was killed.
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

from disco_common.atomic import write_atomically
from disco_common.terminal import printable
from launch import processes

_LOCK, _NOTE = ".lock", ".lock.json"
_LONGEST = 300  # Characters of a command that are shown.
# What file systems that cannot lock files say.
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class WorkdirHeldError(OSError):
    """Another command writes in the workdir; this one can once that one has ended."""


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
    """Holds a folder's lock; of several processes of one run, the first one does for all.

    Readers need no lock. A process that is killed leaves its note, and the next holder a warning
    that says whose. Where the file system cannot lock files, a warning says so.

    Args:
      folder: that exists.

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
        with contextlib.suppress(OSError):  # The lock is what counts.
            note.unlink()
        lock.release()


def _acquired(folder: pathlib.Path) -> FileLock | None:
    """The lock; None where there can be none."""
    # Not their lock by a file's mere existence, which a process that is killed keeps for ever.
    lock = FileLock(folder / _LOCK, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise WorkdirHeldError(
            f"Workdir {str(folder)!r} is held by {_holder(folder / _NOTE)}. Two commands that write"
            " in one workdir would spoil both results; wait until that one has ended, or choose"
            " another workdir."
        ) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _CANNOT_LOCK:
            raise
        logging.warning(
            "The file system of %s cannot lock files (%s): see to it that no other command writes"
            " there at the same time.",
            folder,
            error,
        )
        return None
    return lock


def _own() -> dict[str, Any]:
    """Who this process is."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": shlex.join(sys.orig_argv),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _holder(note: pathlib.Path) -> str:
    """Who wrote a note, as part of a sentence."""
    try:
        found = json.loads(note.read_text("utf-8"))
        pid, host, since = (str(found[name])[:_LONGEST] for name in ("pid", "host", "since"))
        command = str(found["command"])[:_LONGEST]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "a process that left no note of who it is"
    return printable(f"process {pid} on {host} since {since} ({command})")

"""Files that must not be read, and a limit of time for what reads them."""

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def at_once(seconds: int = 60) -> Iterator[None]:
    """Fails what waits: the longest takes a few seconds, to compile."""

    def fail(*_: object) -> None:
        raise AssertionError(f"It takes more than {seconds} s.")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def misplaced(path: pathlib.Path, kind: str) -> pathlib.Path:
    """Puts a pipe, a folder, a huge file or a link to a device in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 41)
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name(f"{path.name}.pipe"))
        path.symlink_to(path.with_name(f"{path.name}.pipe"))
    else:
        path.symlink_to(path if kind == "loop" else kind)
    return path

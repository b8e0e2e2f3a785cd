"""Reading files that may be anything: regular files only, up to a size that their kind can have.

Opening a pipe waits for a writer, and a device can be read without end.
"""

import contextlib
import io
import os
import pathlib
import stat
from collections.abc import Iterator

# Bytes of files of a kind.
MOST_TEXT = 1 << 20  # Text for people, Python, an id.
MOST_OBJECT = 1 << 25  # A JSON object.
MOST_DATA = 1 << 30  # JSON lines, levels, rules, pictures, films.
MOST_ARRAYS = 1 << 40  # Arrays of agents and of checkpoints.

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], most: int) -> Iterator[io.BufferedReader]:
    """Open a regular file, or a link to one, for reading; never wait for it.

    Args:
      path: of the file.
      most: bytes that it can have.

    Raises:
      OSError: naming the file, if it cannot be opened, is not a regular file, or is too large.
    """
    with open(path, "rb", opener=_at_once) as file:
        _require(path, os.fstat(file.fileno()), most)
        yield file


def appending(path: str | os.PathLike[str]) -> io.BufferedWriter:
    """Open a file to append to it; never wait for a reader.

    Raises:
      OSError: naming the file, if it cannot be opened.
    """
    return open(path, "ab", opener=_at_once)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE, 0o666)


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file; arguments and errors are those of `opened`."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8.

    Raises:
      OSError: as `opened`.
      UnicodeDecodeError: if `errors` is `"strict"` and the file is not UTF-8.
    """
    return read_bytes(path, most).decode(errors=errors)


def require_regular(path: pathlib.Path, most: int = MOST_ARRAYS) -> None:
    """Refuse what `opened` refuses, for libraries that open a file; it need not exist.

    Raises:
      OSError: naming the file, if it is not a regular file, or is too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    _require(path, status, most)


def require_regular_within(folder: pathlib.Path) -> None:
    """Refuse a folder of checkpoints that holds anything but folders and regular files.

    Arrays are in folders `d`; all other files are small.

    Raises:
      OSError: naming the first one, or the folder if it cannot be read.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():  # A link to a folder is not entered.
            require_regular(path, MOST_ARRAYS if path.parent.name == "d" else MOST_DATA)


def _require(path: str | os.PathLike[str], status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "of another kind")
        raise OSError(f"{os.fspath(path)} is {kind}; expected a regular file")
    if status.st_size > most:
        raise OSError(
            f"{os.fspath(path)} has {status.st_size} bytes; expected a file of at most {most}"
        )

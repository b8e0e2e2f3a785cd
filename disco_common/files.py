"""Files: read only if they are regular and not too large, written completely or not at all.

Opening a pipe waits for a writer, and a device can be read without end. Each `OSError` names the
file.
"""

import contextlib
import io
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator

# Bytes of files of a kind.
MOST_TEXT = 1 << 20  # Text for people, Python, an id.
MOST_OBJECT = 1 << 25  # A JSON object.
MOST_DATA = 1 << 30  # JSON lines, levels, rules, pictures, films.
MOST_ARRAYS = 1 << 40  # Arrays of agents and of checkpoints.

CACHE_VARIABLE = "DISCO_CACHE_DIR"

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
    """Open a regular file of at most `most` bytes, or a link to one, for reading.

    Raises:
      OSError: if it cannot be opened, is not a regular file, or is too large.
    """
    with open(path, "rb", opener=_at_once) as file:
        _require(path, os.fstat(file.fileno()), most)
        yield file


def appending(path: str | os.PathLike[str]) -> io.BufferedWriter:
    """Open a file to append to it; never wait for a reader."""
    return open(path, "ab", opener=_at_once)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE, 0o666)


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file; arguments and errors are those of `opened`."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8; arguments and errors are those of `opened`.

    Raises:
      UnicodeDecodeError: if `errors` is `"strict"` and the file is not UTF-8.
    """
    return read_bytes(path, most).decode(errors=errors)


def require_regular(path: pathlib.Path, most: int = MOST_ARRAYS) -> None:
    """Raise `opened`'s errors, for libraries that open a file; it need not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    _require(path, status, most)


def require_regular_within(folder: pathlib.Path) -> None:
    """Raise an `OSError` if a folder of checkpoints has anything but folders and regular files.

    Arrays are in folders `d`; all other files are small.
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


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Write a file, in an existing folder, completely or not at all.

    An existing file is replaced only by a complete one, and keeps its permissions. A new file has
    the permissions that the umask allows. Text becomes UTF-8, and a surrogate in it (from a file
    name that is not UTF-8) a backslash escape.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with naming(path):
        permissions = None
        with contextlib.suppress(FileNotFoundError):
            permissions = stat.S_IMODE(path.stat().st_mode) & 0o777
        # Never with more permissions than the file has.
        created = 0o666 if permissions is None else permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, created)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if permissions is not None:
                    os.fchmod(descriptor, permissions)  # The umask may have removed some.
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # The first error is the one to raise.
                temporary.unlink()
            raise


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Add a file's name to each `OSError` raised in the context, as of writing; its class stays."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def user_cache() -> pathlib.Path:
    """Return the user's cache folder of this project, which need not exist.

    DISCO_CACHE_DIR names it; by default it is `disco` in `$XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
      RuntimeError: if neither variable is set and the user has no home folder.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return pathlib.Path(named).expanduser()
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "disco"

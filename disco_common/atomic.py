"""Atomic writes: a file on disk is always complete."""

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Write a file completely or not at all.

    An existing file is replaced only by a complete one, and keeps its permissions. A new file has
    the permissions that the umask allows.

    Args:
      path: of the file, in an existing folder.
      content: bytes, or text to encode as UTF-8. A surrogate (from a file name that is not UTF-8)
        becomes a backslash escape.

    Raises:
      OSError: naming the file, if it cannot be written.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with naming(path):
        try:
            with os.fdopen(_create(temporary, _permissions(path)), "wb") as file:
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
    """Add a file's name to each `OSError` raised in the context.

    Errors of opening a file name it already; errors of writing do not.

    Raises:
      OSError: of the same number and class, with the file in its message.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _permissions(path: pathlib.Path) -> int | None:
    """Return the permissions of a file; None if it does not exist."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _create(path: pathlib.Path, permissions: int | None) -> int:
    """Open a new file for writing, never with more permissions than given; return a descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    if permissions is None:
        return os.open(path, flags, 0o666)
    descriptor = os.open(path, flags, permissions)
    try:
        os.fchmod(descriptor, permissions)  # The umask may have removed some.
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

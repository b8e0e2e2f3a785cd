"""Files that are complete whenever they are there."""

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all; an existing one is replaced only by a complete one.

    A new file has the permissions that the umask leaves; an existing one keeps its own.

    Args:
      path: of the file, in a folder that exists.
      content: bytes, or text for UTF-8, in which a character that UTF-8 does not have (a byte of a
        file's name that is not UTF-8) becomes a backslash escape.

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
            with contextlib.suppress(OSError):  # The first error is the one to tell.
                temporary.unlink()
            raise


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Makes each `OSError` within name a file: those of opening do already, those of writing not.

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
    """Of a file; None if it does not exist."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _create(path: pathlib.Path, permissions: int | None) -> int:
    """Opens a new file for writing, never with more permissions than these; its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    if permissions is None:
        return os.open(path, flags, 0o666)
    descriptor = os.open(path, flags, permissions)
    try:
        os.fchmod(descriptor, permissions)  # Of which the umask may have taken some.
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Reading npz archives that may be damaged or hostile.

`numpy.load` trusts an archive: it allocates the size that a member claims, reads the last of two
members of one name, and raises the errors of four libraries. This module checks all claims against
each other and against the file before it allocates memory.
"""

import math
import pathlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from disco_common import files

_MAX_BYTES = 1 << 28  # Of all arrays together, unless the file is at least 1/16 of their size.
_MAX_HEADER = 2048  # Characters that NumPy parses; undamaged headers have about a hundred.
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

# Errors of `zipfile`, `zlib` and NumPy for damaged data. Memory or the stack can be exhausted only
# by parsing at most `_MAX_HEADER` characters of hostile text.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError, TypeError),
    *(EOFError, LookupError, ArithmeticError, MemoryError, RuntimeError, OSError, ValueError),
)


class ArchiveError(ValueError):
    """An archive cannot be read. The message is a predicate of the file's name, with the reason."""


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Return the arrays of numbers or text of an npz archive, by name.

    Raises:
      ArchiveError: if the file is not an npz archive, a member is not an array, occurs twice, is
        damaged or holds pickled objects, or the members claim more than the file can hold.
      OSError: if the file cannot be opened, or is no regular file.
    """
    with files.opened(path, files.MOST_ARRAYS) as file:
        num_bytes = path.stat().st_size
        if not zipfile.is_zipfile(file):
            raise ArchiveError(
                f"is not an npz archive ({num_bytes} bytes): of another kind, or truncated."
            )
        try:
            with zipfile.ZipFile(file) as archive:
                members = _checked(archive.infolist(), num_bytes)
                return {name: _array(archive, name, x) for name, x in members.items()}
        except ArchiveError:
            raise
        except _DAMAGE as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise ArchiveError(f"is damaged: {reason[:200]}.") from error


def _checked(found: Iterable[zipfile.ZipInfo], num_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive of a size on disk, by the names of their arrays."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in found:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise ArchiveError(
                f"holds {name!r}, which is not an array; expected names that end in '.npy'."
            )
        if name in members:
            raise ArchiveError(f"holds two arrays {name!r}; expected each once.")
        if member.flag_bits & 1:
            raise ArchiveError(f"holds the encrypted array {name!r}; expected plain ones.")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveError(
                f"holds the array {name!r} by compression method {member.compress_type}; expected"
                " stored or deflated ones."
            )
        members[name] = member
    claimed = sum(member.file_size for member in members.values())
    most = max(_MAX_BYTES, 16 * num_bytes)
    if claimed > most:
        raise ArchiveError(
            f"claims {claimed} bytes of arrays in a file of {num_bytes} bytes; expected at most"
            f" {most}."
        )
    return members


def _array(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> np.ndarray:
    member: Any
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADER_READERS:
            raise ArchiveError(f"holds the array {name!r} in npy format {version}.")
        shape, is_fortran, dtype = _HEADER_READERS[version](member, max_header_size=_MAX_HEADER)
        if dtype.hasobject:
            raise ArchiveError(
                f"holds something other than plain arrays ({name!r} has objects); rule files hold"
                " float arrays, and pickled objects are never loaded."
            )
        if any(isinstance(length, bool) or length < 0 for length in shape):
            raise ArchiveError(f"is damaged: array {name!r} claims the shape {shape}.")
        size = dtype.itemsize * math.prod(shape)  # Python's integers do not overflow.
        found = info.file_size - member.tell()
        if size != found:
            raise ArchiveError(
                f"is damaged: array {name!r} claims {size} bytes ({dtype}, {shape}), and has"
                f" {found}."
            )
        data = member.read(size + 1)  # Reading to the end compares the checksum.
        if len(data) != size:
            raise ArchiveError(f"is damaged: array {name!r} ends early.")
        return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")

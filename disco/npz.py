"""Reading npz archives that may be damaged or hostile.

`numpy.load` trusts an archive: it allocates the size that a member claims, reads the last of two
members of one name, and raises the errors of four libraries. This module checks all claims against
each other and against the file before it allocates memory.
"""

import contextlib
import pathlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np

from disco_common import files

_SUFFIX = ".npy"
_MAX_BYTES = 1 << 28  # Of all arrays together, unless the file is at least 1/16 of their size.
_MAX_COMPRESSION = 16
_MAX_HEADER = 2048  # Characters that NumPy parses; undamaged headers have about a hundred.
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_ENCRYPTED = 0x1

# Errors of `zipfile`, `zlib` and NumPy for damaged data. Memory or the stack can be exhausted only
# by parsing at most `_MAX_HEADER` characters of hostile text.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    IndexError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    ValueError,
)


class ArchiveError(ValueError):
    """An archive cannot be read. The message is a predicate of the file's name, with the reason."""


class Description(NamedTuple):
    """The dtype and the shape in an array's header."""

    dtype: np.dtype
    shape: tuple[int, ...]


class Archive:
    """The arrays of an open npz archive.

    Attributes:
      names: of the arrays.
    """

    def __init__(self, file: zipfile.ZipFile, num_bytes: int):
        """Check the archive's directory.

        Raises:
          ArchiveError: if a member is not an array, cannot be read, or occurs twice, or if the
            members claim a larger size than the file can hold.
        """
        self._file = file
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in file.infolist():
            name = member.filename.removesuffix(_SUFFIX)
            if name == member.filename:
                raise ArchiveError(
                    f"holds {member.filename!r}, which is not an array; expected names that end in"
                    f" {_SUFFIX!r}."
                )
            if name in self._members:
                raise ArchiveError(f"holds two arrays {name!r}; expected each once.")
            if member.flag_bits & _ENCRYPTED:
                raise ArchiveError(f"holds the encrypted array {name!r}; expected plain ones.")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(
                    f"holds the array {name!r} by compression method {member.compress_type};"
                    " expected stored or deflated ones."
                )
            self._members[name] = member
        claimed = sum(member.file_size for member in self._members.values())
        most = max(_MAX_BYTES, _MAX_COMPRESSION * num_bytes)
        if claimed > most:
            raise ArchiveError(
                f"claims {claimed} bytes of arrays in a file of {num_bytes} bytes; expected at most"
                f" {most}."
            )
        self.names = tuple(self._members)

    def describe(self, name: str) -> Description:
        """Return the dtype and the shape of an array, without reading it.

        Raises:
          ArchiveError: if its header is malformed or does not fit its size.
        """
        with self._open(name) as member:
            return self._read_header(name, member)[0]

    def read(self, name: str) -> np.ndarray:
        """Return an array of numbers or text. Pickled objects are refused.

        Raises:
          ArchiveError: as `describe`, or if the array is damaged.
        """
        with self._open(name) as member:
            (dtype, shape), is_fortran, size = self._read_header(name, member)
            data = member.read(size + 1)  # Reading to the end compares the checksum.
            if len(data) != size:
                raise ArchiveError(f"is damaged: array {name!r} ends early.")
            return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[zipfile.ZipExtFile]:
        with _damage_explained(), self._file.open(self._members[name]) as member:
            yield cast(zipfile.ZipExtFile, member)

    def _read_header(self, name: str, member: zipfile.ZipExtFile) -> tuple[Description, bool, int]:
        """Return the description, whether columns come first, and the number of bytes."""
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
        size = dtype.itemsize
        for length in shape:  # Python's integers do not overflow.
            size *= length
        found = self._members[name].file_size - member.tell()
        if size != found:
            raise ArchiveError(
                f"is damaged: array {name!r} claims {size} bytes ({dtype}, {shape}), and has"
                f" {found}."
            )
        return Description(dtype, shape), is_fortran, size


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Archive]:
    """Open an npz archive.

    Raises:
      ArchiveError: if the file is not an npz archive, or refused by `Archive`.
      OSError: if the file cannot be opened, or is no regular file.
    """
    with files.opened(path, files.MOST_ARRAYS) as file:
        num_bytes = path.stat().st_size
        if not zipfile.is_zipfile(file):
            raise ArchiveError(
                f"is not an npz archive ({num_bytes} bytes): of another kind, or truncated."
            )
        with _damage_explained():
            archive = zipfile.ZipFile(file)
        with archive:
            yield Archive(archive, num_bytes)


@contextlib.contextmanager
def _damage_explained() -> Iterator[None]:
    try:
        yield
    except ArchiveError:
        raise
    except _DAMAGE as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ArchiveError(f"is damaged: {reason[:200]}.") from error

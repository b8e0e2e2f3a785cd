"""Reading npz archives that may be damaged or hostile.

`numpy.load` trusts an archive: it allocates what the members claim, reads the last of two members
of one name, leaves bytes unread, and raises the errors of four libraries.
"""

import pathlib
import zipfile

import numpy as np

from disco_common import files

_MAX_BYTES = 1 << 28  # Of all arrays together, unless the file is at least 1/16 of their size.
_MAX_HEADER = 2048  # Characters that NumPy parses; undamaged headers have about a hundred.


class ArchiveError(ValueError):
    """An archive cannot be read. The message is a predicate of the file's name, with the reason."""


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Return the arrays of numbers or text of an npz archive, by name.

    Raises:
      ArchiveError: if the file is not an npz archive, a member is not an array, occurs twice, is
        damaged or holds pickled objects, or the members claim more than the file can hold.
      OSError: if the file cannot be opened, or is no regular file.
    """
    arrays: dict[str, np.ndarray] = {}
    with files.opened(path, files.MOST_ARRAYS) as file:
        num_bytes, name = path.stat().st_size, ""
        if not zipfile.is_zipfile(file):
            raise ArchiveError(
                f"is not an npz archive ({num_bytes} bytes): of another kind, or truncated."
            )
        try:
            with zipfile.ZipFile(file) as archive:
                for name, member in _checked(archive.infolist(), num_bytes).items():
                    arrays[name] = _array(archive, member)
        except ArchiveError:
            raise
        except Exception as error:  # Damage has many kinds in `zipfile`, its codecs and NumPy.
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            where = f"array {name!r}: " if name else ""
            raise ArchiveError(f"is damaged: {where}{reason[:200]}.") from error
    return arrays


def _checked(found: list[zipfile.ZipInfo], num_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive of a size on disk, by the names of their arrays."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in found:
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ArchiveError(f"holds two arrays {name!r}; expected each once.")
        members[name] = member
    claimed = sum(member.file_size for member in found)
    most = max(_MAX_BYTES, 16 * num_bytes)
    if claimed > most:
        raise ArchiveError(
            f"claims {claimed} bytes of arrays in a file of {num_bytes} bytes; expected at most"
            f" {most}."
        )
    return members


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False, max_header_size=_MAX_HEADER)
        if member.read(1):  # Reading to the end compares the checksum.
            raise ValueError("it has more bytes than its header claims")
        return array

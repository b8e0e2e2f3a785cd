"""JSON on disk: checksums, and logs with one object per line."""

import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from disco_common import files
from disco_common.files import naming, write_atomically

_LONGEST_EXCERPT = 60  # Bytes of a damaged line that a message shows.
_MOST_DIGITS = 20  # Of integers in int64, with the sign.


def plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays as lists, numbers that are not finite as None.

    JSON has no NaN and no infinity, which Python's writer would write all the same.
    """
    if isinstance(value, Mapping):
        return {key: plain(x) for key, x in value.items()}
    if hasattr(value, "tolist"):  # An array, or a number of NumPy's.
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dumps(value: Any, **options: Any) -> str:
    """Return the JSON text of a value (`plain`), by options of `json.dumps`.

    Raises:
      TypeError: if it holds something else than JSON values and arrays.
    """
    return json.dumps(plain(value), allow_nan=False, **options)


def crc32(value: Any) -> int:
    """Return the CRC-32 of a JSON value; the order of its objects' names does not matter."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text; integers that int64 cannot hold are floats.

    Python's reader makes integers of any length, which fail where they become a float or an array's
    element. Bare NaN and infinities, in files of older versions, are read.

    Raises:
      ValueError: if it is not JSON.
      RecursionError: if it is nested too deeply.
    """
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | float:
    if len(digits) <= _MOST_DIGITS and -(2**63) <= int(digits) < 2**63:
        return int(digits)
    return float(digits)


def read_object(file: pathlib.Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
      OSError: if the file cannot be read, is no regular file, or is too large.
      ValueError: naming the file, if it does not hold a JSON object.
    """
    try:
        found = loads(files.read_text(file, files.MOST_OBJECT))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        if isinstance(error, UnicodeDecodeError):  # Its own message quotes the whole file.
            reason = f"byte {error.start} is not UTF-8"
        raise ValueError(f"{file} is damaged: {reason}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} is damaged: it has a {type(found).__name__}; expected an object.")
    return found


class JsonLines:
    """A file of JSON objects, one per line, which need not exist; an `OSError` names it."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Append objects to the file."""
        lines = [dumps(item) + "\n" for item in objects]
        with naming(self.path), files.appending(self.path) as file:
            file.writelines(line.encode() for line in lines)

    def sync(self) -> None:
        """Wait until the file's content is on the disk."""
        if self.path.exists():
            with naming(self.path), files.appending(self.path) as file:
                os.fsync(file.fileno())

    def keep(self, name: str, most: float) -> None:
        """Keep the lines whose number under `name` is at most `most`; drop others, damaged too."""
        lines = self._lines()
        kept = [line for line in lines if _number(line, name) <= most]
        if kept != lines:
            write_atomically(self.path, b"".join(kept))

    def read(self) -> list[dict[str, Any]]:
        """Return all objects; none if there is no file.

        Raises:
          ValueError: naming file and line, if a line is not an object.
        """
        objects, problems = self.read_undamaged()
        if problems:
            raise ValueError(problems[0])
        return list(objects.values())

    def read_undamaged(self) -> tuple[dict[int, dict[str, Any]], list[str]]:
        """Return the objects by line number, and a sentence on each damaged line."""
        objects, problems = {}, []
        for number, line in enumerate(self._lines(), 1):
            value = _parse(line)
            if isinstance(value, dict):
                objects[number] = value
            else:
                problems.append(self.problem(number, f"a JSON object, found {_excerpt(line)}"))
        return objects, problems

    def problem(self, number: int, expected: str) -> str:
        """Return a sentence on a damaged line."""
        return f"Line {number} of {self.path} is damaged: expected {expected}."

    def _lines(self) -> list[bytes]:
        try:
            with naming(self.path):
                return files.read_bytes(self.path, files.MOST_DATA).splitlines(keepends=True)
        except FileNotFoundError:
            return []


def _number(line: bytes, name: str) -> float:
    """Return the number under `name`; infinity if the line is damaged or incomplete."""
    value = _parse(line) if line.endswith(b"\n") else None
    number = value.get(name) if isinstance(value, dict) else None
    return number if isinstance(number, int | float) else float("inf")


def _parse(line: bytes) -> Any:
    """Return a line's JSON value; None if it is not JSON."""
    try:
        return loads(line)
    except (ValueError, RecursionError):
        return None


def _excerpt(line: bytes) -> str:
    text = line.rstrip(b"\n")[:_LONGEST_EXCERPT].decode(errors="backslashreplace")
    return repr(text) + ("..." if len(line) > _LONGEST_EXCERPT + 1 else "")

"""JSON on disk: checksums, and logs of an object per line that can be continued."""

import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from disco_common.atomic import naming, write_atomically

_LONGEST_EXCERPT = 60  # Bytes of a damaged line that a message shows.


def crc32(value: Any) -> int:
    """Of a JSON value, whatever the order of its objects' names."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def read_object(file: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      OSError: if the file cannot be read.
      ValueError: in a sentence that names the file, if there is something else in it.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        # Its own message has all of the file.
        reason = f"byte {error.start} is not UTF-8"
        raise ValueError(f"{file} is damaged: {reason}.") from error
    except RecursionError as error:
        raise ValueError(f"{file} is damaged: it is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} is damaged: it has a {type(found).__name__}; expected an object.")
    return found


class JsonLines:
    """A file of JSON objects, one per line.

    Attributes:
      path: of the file, which need not exist yet.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Adds objects at the end.

        Raises:
          OSError: naming the file, if they cannot be written.
        """
        lines = [json.dumps(dict(item)) + "\n" for item in objects]
        with naming(self.path), self.path.open("a") as file:
            file.writelines(lines)

    def sync(self) -> None:
        """Wait until what was added is on the disk.

        Raises:
          OSError: naming the file, if it cannot be written.
        """
        if self.path.exists():
            with naming(self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    def keep(self, name: str, most: float) -> None:
        """Drops what was logged with a number under `name` above `most`, and damaged lines.

        Raises:
          OSError: naming the file, if it cannot be read or written.
        """
        lines = self._lines()
        kept = [line for line in lines if _number(line, name) <= most]
        if kept != lines:
            write_atomically(self.path, b"".join(kept))

    def read(self) -> list[dict[str, Any]]:
        """All objects; none if there is no file.

        Raises:
          OSError: naming the file, if it cannot be read.
          ValueError: naming file and line, if a line is not an object.
        """
        objects, problems = self.read_undamaged()
        if problems:
            raise ValueError(problems[0])
        return list(objects.values())

    def read_undamaged(self) -> tuple[dict[int, dict[str, Any]], list[str]]:
        """The objects by the numbers of their lines, and a sentence on each line that is none.

        Raises:
          OSError: naming the file, if it cannot be read.
        """
        objects, problems = {}, []
        for number, line in enumerate(self._lines(), 1):
            value = _parsed(line)
            if isinstance(value, dict):
                objects[number] = value
            else:
                problems.append(self.problem(number, f"a JSON object, found {_excerpt(line)}"))
        return objects, problems

    def problem(self, number: int, expected: str) -> str:
        """Returns a sentence on a damaged line."""
        return f"Line {number} of {self.path} is damaged: expected {expected}."

    def _lines(self) -> list[bytes]:
        with naming(self.path):
            return self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []


def _number(line: bytes, name: str) -> float:
    """A line's number; infinite for a line that is damaged, or was cut off while it was written."""
    value = _parsed(line) if line.endswith(b"\n") else None
    number = value.get(name) if isinstance(value, dict) else None
    return number if isinstance(number, int | float) else float("inf")


def _parsed(line: bytes) -> Any:
    """A line's JSON value; None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _excerpt(line: bytes) -> str:
    text = line.rstrip(b"\n")[:_LONGEST_EXCERPT].decode(errors="backslashreplace")
    return repr(text) + ("..." if len(line) > _LONGEST_EXCERPT + 1 else "")

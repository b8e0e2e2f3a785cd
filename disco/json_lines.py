"""JSON on disk: checksums, and logs of an object per line that can be continued."""

import json
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from disco.atomic import write_atomically


def crc32(value: Any) -> int:
    """Of a JSON value, whatever the order of its objects' names."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


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
          OSError: if they cannot be written.
        """
        with self.path.open("a") as file:
            file.writelines(json.dumps(dict(item)) + "\n" for item in objects)

    def keep(self, name: str, most: float) -> None:
        """Drops what was logged with a number under `name` above `most`, and broken lines.

        Raises:
          OSError: if the file cannot be written.
        """
        if not self.path.exists():
            return
        lines = self.path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if _number(line, name) <= most]
        if kept != lines:
            write_atomically(self.path, "".join(kept))

    def read(self) -> list[dict[str, Any]]:
        """All objects; none if there is no file."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def _number(line: str, name: str) -> float:
    """A line's number; infinite for a line that was cut off while it was written."""
    if not line.endswith("\n"):
        return float("inf")
    try:
        return json.loads(line)[name]
    except (json.JSONDecodeError, KeyError):
        return float("inf")

"""Sokoban levels, and text files of them in Boxoban's format.

A level is uint8 `[10, 10]`, in each cell a sum of `WALL`, `TARGET`, `BOX` and `PLAYER`.

*Files* are as in https://github.com/google-deepmind/boxoban-levels: a line that begins with `;`
announces a level, 10 rows of 10 characters follow. `#` is a wall, ` ` floor, `.` a target, `$` a
box, `@` the player, `*` a box on a target, `+` the player on a target.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from disco_common import files

Level = UInt8[np.ndarray, "10 10"]
Levels = UInt8[np.ndarray, "number 10 10"]

SIZE = 10
WALL, TARGET, BOX, PLAYER = 1, 2, 4, 8

_CHARACTERS = {
    "#": WALL,
    " ": 0,
    ".": TARGET,
    "$": BOX,
    "@": PLAYER,
    "*": BOX | TARGET,
    "+": PLAYER | TARGET,
}


def read(path: str | Path) -> Levels:
    """Read a Boxoban text file. Boxoban's levels have 4 boxes; here any number is allowed.

    Raises:
      ValueError: if it is malformed, naming the file, the line and the column, what was found
        there and what was expected.
      OSError: if it cannot be read.
    """
    return parse(files.read_bytes(path, files.MOST_DATA), path)


def parse(content: bytes, path: str | Path) -> Levels:
    """Parse the content of a Boxoban text file. Raises ValueError as `read` does."""
    # In Latin-1 each byte is a character, so that a wrong one has a line and a column.
    text = content.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    levels = []
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.startswith(";"):
            rows = lines[number : number + SIZE + 1]
            rows = list(itertools.takewhile(lambda row: row and row[0] != ";", rows))
            levels.append(_parse_level(rows, _Position(path, number)))
            number += SIZE
        elif line:
            raise _Position(path, number).malformed(repr(line[0]), "';', which begins a level")
    if not levels:
        raise _Position(path, 1).malformed("no level", "at least one")
    return np.stack(levels)


def to_text(levels: Levels) -> str:
    """Format levels as a Boxoban text file, numbered from 0."""
    characters = {code: character for character, code in _CHARACTERS.items()}
    blocks = []
    for number, level in enumerate(levels.tolist()):
        rows = ("".join(characters[code] for code in row) for row in level)
        blocks.append("\n".join([f"; {number}", *rows, ""]))
    return "\n".join(blocks)


class _Position(NamedTuple):
    """A position in a text file, counted from 1."""

    path: str | Path
    line: int
    column: int = 1

    def at(self, row: int, column: int) -> "_Position":
        """Return the position of a cell, where this is that of the line before its level."""
        return self._replace(line=self.line + 1 + row, column=1 + column)

    def malformed(self, found: str, expected: str) -> ValueError:
        return ValueError(
            f"{self.path}, line {self.line}, column {self.column}:"
            f" found {found}, expected {expected}."
        )


def _parse_level(rows: list[str], head: _Position) -> Level:
    """Parse the rows of a level; `head` is the position of the line before them."""
    for i, row in enumerate(rows):
        for j, character in enumerate(row):
            if character not in _CHARACTERS:
                known = " ".join(map(repr, _CHARACTERS))
                raise head.at(i, j).malformed(repr(character), f"one of {known}")
        if len(row) != SIZE:
            raise head.at(i, min(len(row), SIZE)).malformed(
                f"a row of {len(row)} characters", f"{SIZE}"
            )
    if len(rows) != SIZE:
        found = f"{len(rows)} rows" if len(rows) < SIZE else f"more than {SIZE} rows"
        raise head.at(min(len(rows), SIZE), 0).malformed(found, f"{SIZE}")
    level = np.array([[_CHARACTERS[character] for character in row] for row in rows], np.uint8)
    border = np.ones_like(level, bool)
    border[1:-1, 1:-1] = False
    for i, j in np.argwhere(border & (level != WALL)).tolist():
        raise head.at(i, j).malformed(repr(rows[i][j]), "'#', as a level's border is wall")
    _check_contents(level, head)
    return level


def _check_contents(level: Level, head: _Position) -> None:
    """Refuse a level without exactly one player, or without a box to push onto a target."""
    players = np.argwhere(level & PLAYER).tolist()
    if len(players) != 1:
        position = head.at(*players[1]) if len(players) else head
        raise position.malformed("a second player" if len(players) else "no player", "one")
    boxes, targets = np.count_nonzero(level & BOX), np.count_nonzero(level & TARGET)
    if boxes != targets:
        raise head.malformed(f"{boxes} boxes and {targets} targets", "as many of both")
    if not np.any(level & (BOX | TARGET) == BOX):
        found = "every box on a target" if boxes else "no box"
        raise head.malformed(found, "at least one box that is not on a target")

"""Sokoban levels, and text files of them in Boxoban's format.

A level is uint8 `[10, 10]`, in each cell a sum of `WALL`, `TARGET`, `BOX` and `PLAYER`.

*Files* are as in https://github.com/google-deepmind/boxoban-levels: a line that begins with `;`
announces a level, 10 rows of 10 characters follow. `#` is a wall, ` ` floor, `.` a target, `$` a
box, `@` the player, `*` a box on a target, `+` the player on a target.
"""

import itertools
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from environments.errors import require

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


def parse(content: bytes, path: str | Path) -> Levels:
    """Parse a Boxoban text file. Boxoban's levels have 4 boxes; here any number is allowed.

    Raises:
      ValueError: if it is malformed, naming the file and the line of the level, what was found
        there and what was expected.
    """
    # In Latin-1 each byte is a character.
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
            try:
                levels.append(_parse_level(rows))
            except ValueError as error:
                raise ValueError(f"{path}, level of line {number}: {error}") from None
            number += SIZE
        elif line:
            raise ValueError(
                f"{path}, line {number}: found {line[0]!r}, expected ';', which begins a level."
            )
    if not levels:
        raise ValueError(f"{path}: found no level, expected at least one.")
    return np.stack(levels)


def _parse_level(rows: list[str]) -> Level:
    """Parse the rows of a level, counted from 1 in messages."""
    for i, row in enumerate(rows, 1):
        for character in row:
            known = " ".join(map(repr, _CHARACTERS))
            require(character in _CHARACTERS, f"row {i}: found {character!r}, expected {known}.")
        found = f"a row of {len(row)} characters"
        require(len(row) == SIZE, f"row {i}: found {found}, expected {SIZE}.")
    found = f"{len(rows)} rows" if len(rows) <= SIZE else f"more than {SIZE} rows"
    require(len(rows) == SIZE, f"found {found}, expected {SIZE}.")
    level = np.array([[_CHARACTERS[character] for character in row] for row in rows], np.uint8)
    border = np.ones_like(level, bool)
    border[1:-1, 1:-1] = False
    require(bool(np.all(level[border] == WALL)), "found a gap in its border, expected '#'.")
    players, boxes, targets = (int(np.count_nonzero(level & x)) for x in (PLAYER, BOX, TARGET))
    require(players == 1, f"found {players} players, expected one.")
    require(boxes == targets, f"found {boxes} boxes and {targets} targets, expected as many.")
    free = np.any(level & (BOX | TARGET) == BOX)
    require(bool(free), "found no box that is not on a target, expected at least one.")
    return level

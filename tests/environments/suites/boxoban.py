"""Text files of Sokoban levels, written and read."""

import pathlib

import numpy as np

import environments
from environments.suites.sokoban.levels import BOX, PLAYER, TARGET, WALL, Levels

CHARACTERS = {
    WALL: "#",
    0: " ",
    TARGET: ".",
    BOX: "$",
    PLAYER: "@",
    BOX | TARGET: "*",
    PLAYER | TARGET: "+",
}


def to_text(levels: Levels) -> str:
    """The levels as a Boxoban text file, numbered from 0."""
    blocks = []
    for number, level in enumerate(levels.tolist()):
        rows = ("".join(CHARACTERS[code] for code in row) for row in level)
        blocks.append("\n".join([f"; {number}", *rows, ""]))
    return "\n".join(blocks)


def read(path: pathlib.Path) -> np.ndarray:
    """The levels of a file, `[number, 10, 10]`, as an environment has them."""
    task = environments.make(f"sokoban/file:{path}").params
    return np.asarray(task.levels[: int(task.number)])

"""Cells, moves between them, and mazes: True at walls; all free cells are connected."""

import functools
from collections import deque

import numpy as np
from jaxtyping import Bool, Int, Int32

from environments.errors import require

Cell = tuple[int, int]
"""Row and column."""

ORTHOGONAL = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))  # Stay, up, right, down, left.
DIAGONAL = ((-1, 1), (1, 1), (1, -1), (-1, -1))
MOVES = {"orthogonal": ORTHOGONAL, "king": ORTHOGONAL + DIAGONAL}


@functools.cache
def neighbour_table(
    height: int, width: int, moves: tuple[Cell, ...]
) -> Int32[np.ndarray, "cells moves"]:
    """Return the cell that each move leads to from each cell.

    Cells are numbered row by row. A move that leaves the grid leads to the cell itself.

    Args:
      height: of the grid.
      width: of the grid.
      moves: rows down and columns to the right, of each move.
    """
    row, column = np.divmod(np.arange(height * width), width)
    table = []
    for down, right in moves:
        to_row, to_column = row + down, column + right
        inside = (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
        table.append(np.where(inside, to_row * width + to_column, row * width + column))
    return np.stack(table, axis=-1).astype(np.int32)


Maze = Bool[np.ndarray, "height width"]


def parse(text: str) -> Maze:
    """Parse a drawing of a maze: one row per line, `#` is a wall, anything else is free.

    Raises:
      ValueError: if the lines differ in length.
    """
    rows = text.split()
    widths = {len(row) for row in rows}
    require(len(widths) == 1, f"A maze's rows must be equally long, found {sorted(widths)}.")
    return np.array([[cell == "#" for cell in row] for row in rows])


def find(text: str, mark: str) -> list[Cell]:
    """Return the cells that `mark` occupies in the drawing of a maze."""
    rows = text.split()
    return [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == mark]


def mask(text: str, mark: str) -> Maze:
    """Return True where `mark` is in the drawing of a maze."""
    cells = np.zeros_like(parse(text))
    for cell in find(text, mark):
        cells[cell] = True
    return cells


def room(height: int, width: int) -> Maze:
    """Make a maze without inner walls."""
    return np.zeros((height, width), bool)


def bars(rng: np.random.Generator, height: int, width: int) -> Maze:
    """Make a room with straight walls that touch neither each other nor the border.

    No single object can block the way to a part of such a maze.
    """
    maze = room(height, width)
    for _ in range(8):
        length = int(rng.integers(1, 4))
        h, w = (length, 1) if rng.random() < 0.5 else (1, length)
        if h > height - 2 or w > width - 2:
            continue
        row = int(rng.integers(1, height - h))
        column = int(rng.integers(1, width - w))
        if not maze[row - 1 : row + h + 1, column - 1 : column + w + 1].any():
            maze[row : row + h, column : column + w] = True
    return maze


def four_rooms(rng: np.random.Generator, height: int, width: int) -> Maze:
    """Make two crossing walls, with one gap in each half of a wall (Sutton et al. 1999)."""
    maze = room(height, width)
    row, column = height // 2, width // 2
    maze[row, :] = maze[:, column] = True
    maze[row, rng.integers(0, column)] = False
    maze[row, rng.integers(column + 1, width)] = False
    maze[rng.integers(0, row), column] = False
    maze[rng.integers(row + 1, height), column] = False
    return maze


def corridors(rng: np.random.Generator, height: int, width: int) -> Maze:
    """Make corridors that join the cells of even row and column.

    They are a random spanning tree, grown depth first, and three more gaps, which make loops.

    Raises:
      ValueError: if a size is even.
    """
    require(
        height % 2 == 1 and width % 2 == 1,
        f"Corridors need odd sizes, found {height}x{width}.",
    )
    maze = np.ones((height, width), bool)
    maze[0, 0] = False
    path = [(0, 0)]
    while path:
        row, column = path[-1]
        unvisited = [
            (row + 2 * down, column + 2 * right)
            for down, right in ORTHOGONAL[1:]
            if 0 <= row + 2 * down < height
            and 0 <= column + 2 * right < width
            and maze[row + 2 * down, column + 2 * right]
        ]
        if not unvisited:
            path.pop()
            continue
        to_row, to_column = unvisited[rng.integers(len(unvisited))]
        maze[to_row, to_column] = maze[(row + to_row) // 2, (column + to_column) // 2] = False
        path.append((to_row, to_column))
    # A wall between two corridor cells has exactly one even coordinate.
    between = [(r, c) for r, c in zip(*np.nonzero(maze), strict=True) if (r + c) % 2 == 1]
    for i in rng.permutation(len(between))[:3]:
        maze[between[i]] = False
    return maze


def distances(maze: Maze, start: Cell) -> Int[np.ndarray, "height width"]:
    """Return the steps from `start` to every cell by orthogonal moves; -1 if there is no way."""
    steps = np.full(maze.shape, -1)
    steps[start] = 0
    queue = deque([start])
    while queue:
        row, column = queue.popleft()
        for down, right in ORTHOGONAL[1:]:
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < maze.shape[0] and 0 <= cell[1] < maze.shape[1]
            if inside and not maze[cell] and steps[cell] < 0:
                steps[cell] = steps[row, column] + 1
                queue.append(cell)
    return steps


def place(
    rng: np.random.Generator, maze: Maze, goods: int, hazards: int
) -> tuple[Cell, list[Cell], list[Cell]]:
    """Draw distinct cells for the start, the goods and the hazards.

    Every good can be reached from the start around the hazards, and is at least two steps
    from it.

    Raises:
      ValueError: if no such placement is found.
    """
    free = [(int(r), int(c)) for r, c in np.argwhere(~maze)]
    needed = 1 + goods + hazards
    require(len(free) >= needed, f"Expected at least {needed} free cells, found {len(free)}.")
    for _ in range(1000):
        cells = [free[i] for i in rng.permutation(len(free))[:needed]]
        start, good, bad = cells[0], cells[1 : 1 + goods], cells[1 + goods :]
        blocked = maze.copy()
        for cell in bad:
            blocked[cell] = True
        steps = distances(blocked, start)
        if all(steps[cell] >= 2 for cell in good):
            return start, good, bad
    raise ValueError(f"Found no placement of {goods} goods and {hazards} hazards in the maze.")

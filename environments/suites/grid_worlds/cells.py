"""Cells of a grid, and the moves between them."""

import functools

import numpy as np
from jaxtyping import Int32

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

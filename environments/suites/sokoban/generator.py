"""A generator of Sokoban levels (see `levels`).

The levels are "unfiltered" ones, by the procedure of Weber et al. 2017,
"Imagination-augmented agents for deep reinforcement learning" (appendix on Sokoban):

1. A random walk of 30 steps (1.5 times width plus height), from a random cell, clears a room: a
   small random pattern around every cell that it visits. It draws a new direction with probability
   0.35 per step. Here it also draws one where it faces the border. The patterns are ours: lines and
   corners of three cells, and a square.
2. Four targets and the player are put on random floor, and a box on every target.
3. The player pulls the boxes: the game in reverse. The configuration with the highest score is
   the level: the number of box swaps (the player leaves a box and pulls another) times the boxes'
   displacement (the sum of Manhattan distances to their first cells); 0 while the player or a box
   is on a target. A room without a score above 0 is rejected.

So levels can be solved, and no box or player starts on a target. The paper searches depth first,
through up to a million configurations of up to 300 actions. Here 16 plays per level make 80 random
pulls each, of any box that the player can reach: of two drawn, the one that displaces boxes more.
After every 20, all 16 continue from the best configuration so far. On the same rooms, such a
depth-first search finds levels that take about a tenth more pushes to solve.

A level depends on its split and index only: rooms are made in numbered batches, and no two splits
share a batch's seed.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int8, Int32, UInt64

from environments.suites.sokoban.levels import BOX, PLAYER, SIZE, TARGET, WALL, Levels

NUM_BOXES = 4
POOL_SIZES = {"train": 10_000, "valid": 1_000, "test": 1_000}
SPLITS = tuple(POOL_SIZES)

# A change of any of these changes the levels.
_BATCH = 1000
_WALK_STEPS = 30
_TURN_PROBABILITY = 0.35
_PATTERNS = (  # Lines, corners and a square, (down, right) of the cell visited.
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((-1, 0), (0, 0), (0, 1)),
    ((0, 1), (0, 0), (1, 0)),
    ((1, 0), (0, 0), (0, -1)),
    ((0, -1), (0, 0), (-1, 0)),
    ((0, 0), (0, 1), (1, 0), (1, 1)),
)
_PLAYS, _ROUNDS, _PULLS = 16, 4, 20

# Within the border a room has 8x8 cells, numbered row by row, so that a set of them is 64 bits.
_INNER = SIZE - 2
_DOWN, _RIGHT = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # Up, right, down, left.
_STEP = (_INNER * _DOWN + _RIGHT).astype(np.int8)
_LEFTMOST = np.uint64(0x0101010101010101)
_RIGHTMOST = np.uint64(0x8080808080808080)

_Sets = UInt64[np.ndarray, "*n"]  # Sets of cells.


def generate(split: str, number: int) -> Levels:
    """Generate the first `number` levels of a split, one of `SPLITS`."""
    levels = np.empty((0, SIZE, SIZE), np.uint8)
    for batch in itertools.count():
        if len(levels) >= number:
            break
        rng = np.random.default_rng((SPLITS.index(split), batch))
        levels = np.concatenate([levels, _generate_batch(rng)])
    return levels[:number]


def _generate_batch(rng: np.random.Generator) -> Levels:
    floor = _clear_rooms(rng, _BATCH)
    floor = floor[np.bitwise_count(floor) > NUM_BOXES]
    targets, player = _place(rng, floor)
    boxes, player, score = _play_in_reverse(rng, floor, targets, player)
    inner = np.where(_members(floor), 0, WALL).astype(np.uint8)
    level = np.arange(len(floor))
    for cells, what in ((targets, TARGET), (boxes, BOX), (player[None], PLAYER)):
        inner[level, cells] |= what
    levels = np.full((len(floor), SIZE, SIZE), WALL, np.uint8)
    levels[:, 1:-1, 1:-1] = inner.reshape(-1, _INNER, _INNER)
    return levels[score > 0]


def _clear_rooms(rng: np.random.Generator, rooms: int) -> UInt64[np.ndarray, "rooms"]:
    """Return the floor of rooms, cleared by random walks."""
    patterns = _pattern_table()
    row, column = rng.integers(_INNER, size=(2, rooms))
    direction = rng.integers(4, size=rooms)
    floor = np.zeros(rooms, np.uint64)
    for _ in range(_WALK_STEPS):
        stopped = ~_inside(row + _DOWN[direction], column + _RIGHT[direction])
        turns = stopped | (rng.random(rooms) < _TURN_PROBABILITY)
        direction = np.where(turns, rng.integers(4, size=rooms), direction)
        row = np.clip(row + _DOWN[direction], 0, _INNER - 1)
        column = np.clip(column + _RIGHT[direction], 0, _INNER - 1)
        pattern = rng.integers(len(_PATTERNS), size=rooms)
        floor |= patterns[pattern, _INNER * row + column]
    return floor


def _pattern_table() -> UInt64[np.ndarray, "patterns cells"]:
    """Return the cells that each pattern clears around each cell."""
    row, column = np.divmod(np.arange(_INNER**2), _INNER)
    table = np.zeros((len(_PATTERNS), _INNER**2), np.uint64)
    for pattern, offsets in zip(table, _PATTERNS, strict=True):
        for down, right in offsets:
            inside = _inside(row + down, column + right)
            cell = np.where(inside, _INNER * (row + down) + column + right, 0)
            pattern |= np.where(inside, _set_of(cell), 0)
    return table


def _inside(row: Int[np.ndarray, "*n"], column: Int[np.ndarray, "*n"]) -> Bool[np.ndarray, "*n"]:
    return (row >= 0) & (row < _INNER) & (column >= 0) & (column < _INNER)


def _place(
    rng: np.random.Generator, floor: UInt64[np.ndarray, "n"]
) -> tuple[Int8[np.ndarray, "boxes n"], Int8[np.ndarray, "n"]]:
    """Draw distinct cells of the floor for the targets and the player."""
    order = np.where(_members(floor), rng.random((len(floor), _INNER**2)), 1.0)
    cells = order.argsort(axis=1)[:, : NUM_BOXES + 1].T.astype(np.int8)
    return cells[:NUM_BOXES], cells[NUM_BOXES]


class _Play(NamedTuple):
    """Plays in reverse, a batch of them.

    Attributes:
      boxes: the cells of the boxes.
      player: the cell of the player.
      last: the cell of the box pulled last, -1 for none.
      swaps: changes of the box that is pulled.
      displacement: of the boxes from their targets, summed.
    """

    boxes: Int8[np.ndarray, "boxes plays"]
    player: Int8[np.ndarray, "plays"]
    last: Int8[np.ndarray, "plays"]
    swaps: Int32[np.ndarray, "plays"]
    displacement: Int32[np.ndarray, "plays"]

    def where(self, condition: Bool[np.ndarray, "plays"], other: "_Play") -> "_Play":
        """Select these plays where `condition`, others elsewhere."""
        return _Play(*(np.where(condition, a, b) for a, b in zip(self, other, strict=True)))

    def take(self, index: Int[np.ndarray, "n"]) -> "_Play":
        """Return the plays of these indices."""
        return _Play(*(field[..., index] for field in self))


def _play_in_reverse(
    rng: np.random.Generator,
    floor: UInt64[np.ndarray, "n"],
    targets: Int8[np.ndarray, "boxes n"],
    player: Int8[np.ndarray, "n"],
) -> tuple[Int8[np.ndarray, "boxes n"], Int8[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Return the best configuration found of each level: boxes, player, score."""
    levels = len(floor)
    floor, targets, player = (np.repeat(x, _PLAYS, axis=-1) for x in (floor, targets, player))
    target_set = _union(targets)
    zero = np.zeros(len(player), np.int32)
    play = best = _Play(targets, player, np.full_like(player, -1), zero, zero)
    best_score = zero
    for _ in range(_ROUNDS):
        for _ in range(_PULLS):
            play = _pull(rng, floor, targets, play)
            on_target = (_union(play.boxes) | _set_of(play.player)) & target_set
            score = np.where(on_target, 0, play.swaps * play.displacement)
            best = play.where(score > best_score, best)
            best_score = np.maximum(score, best_score)
        winner = best_score.reshape(levels, _PLAYS).argmax(axis=1) + _PLAYS * np.arange(levels)
        source = np.repeat(winner, _PLAYS)
        best, best_score = best.take(source), best_score[source]
        play = best.where(best_score > 0, play)
    return best.boxes[:, ::_PLAYS], best.player[::_PLAYS], best_score[::_PLAYS]


def _pull(
    rng: np.random.Generator,
    floor: UInt64[np.ndarray, "plays"],
    targets: Int8[np.ndarray, "boxes plays"],
    play: _Play,
) -> _Play:
    """Pull one box; none where no pull is possible."""
    box_set = _union(play.boxes)
    reach = _reach(_set_of(play.player), floor & ~box_set)
    # The player needs two cells on one side of a box: one to stand on, one to step back to.
    pullable = np.empty((4, len(floor)), np.uint64)
    for direction in range(4):
        beside = _moved(reach, (direction + 2) % 4)
        pullable[direction] = box_set & beside & _moved(beside, (direction + 2) % 4)
    count = np.bitwise_count(pullable).cumsum(axis=0, dtype=np.int8)
    one, other = (_pull_one_of(rng, pullable, count, targets, play) for _ in range(2))
    return other.where(other.displacement > one.displacement, one)


def _pull_one_of(
    rng: np.random.Generator,
    pullable: UInt64[np.ndarray, "directions plays"],
    count: Int8[np.ndarray, "directions plays"],
    targets: Int8[np.ndarray, "boxes plays"],
    play: _Play,
) -> _Play:
    """Draw one of the possible pulls, whose running count over directions is `count`."""
    drawn = (rng.random(count.shape[1]) * count[-1]).astype(np.int8)
    direction = (count[:-1] <= drawn).sum(axis=0, dtype=np.int8)
    rank = drawn - np.choose(direction, (np.zeros_like(drawn), *count[:-1]))
    box = _member(np.choose(direction, pullable), rank)
    step = _STEP[direction]
    boxes = np.where(play.boxes == box, play.boxes + step, play.boxes)
    pulled = _Play(
        boxes=boxes,
        player=box + 2 * step,
        last=box + step,
        swaps=play.swaps + ((play.last >= 0) & (play.last != box)),
        displacement=_displacement(boxes, targets),
    )
    return pulled.where(count[-1] > 0, play)


def _displacement(
    boxes: Int8[np.ndarray, "boxes n"], targets: Int8[np.ndarray, "boxes n"]
) -> Int32[np.ndarray, "n"]:
    down = boxes // _INNER - targets // _INNER
    right = boxes % _INNER - targets % _INNER
    return (abs(down) + abs(right)).sum(axis=0, dtype=np.int32)


def _reach(start: _Sets, free: _Sets) -> _Sets:
    """Return the cells that can be reached on foot."""
    reach, before = start, None
    while before is None or not np.array_equal(reach, before):
        before = reach
        for direction in range(4):
            reach = reach | (_moved(reach, direction) & free)
    return reach


def _moved(cells: _Sets, direction: int) -> _Sets:
    """Move each cell of the sets by one; drop those that leave the room."""
    if direction % 2 == 0:
        return cells >> _INNER if direction == 0 else cells << _INNER
    return (cells & ~_RIGHTMOST) << 1 if direction == 1 else (cells & ~_LEFTMOST) >> 1


def _set_of(cell: Int[np.ndarray, "*n"]) -> _Sets:
    return np.uint64(1) << cell.astype(np.uint64)


def _union(cells: Int8[np.ndarray, "k n"]) -> UInt64[np.ndarray, "n"]:
    return np.bitwise_or.reduce(_set_of(cells), axis=0)


def _member(cells: UInt64[np.ndarray, "n"], rank: Int8[np.ndarray, "n"]) -> Int8[np.ndarray, "n"]:
    """Return the cell of each set that has `rank` smaller ones in it, below `NUM_BOXES`."""
    for removed in range(NUM_BOXES - 1):
        cells = np.where(rank > removed, cells & (cells - 1), cells)
    return np.bitwise_count(~cells & (cells - 1)).astype(np.int8)


def _members(cells: UInt64[np.ndarray, "n"]) -> Bool[np.ndarray, "n cells"]:
    return (cells[:, None] >> np.arange(_INNER**2, dtype=np.uint64)) & 1 > 0

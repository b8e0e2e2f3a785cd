"""Sokoban levels: a generator, and a reader and a writer of Boxoban text files.

A level is uint8 `[10, 10]`, in each cell a sum of `WALL`, `TARGET`, `BOX` and `PLAYER`.

*Generated* levels are "unfiltered" ones, by the procedure of Weber et al. 2017,
"Imagination-augmented agents for deep reinforcement learning" (appendix on Sokoban):

1. A walk of 30 steps (1.5 times width plus height), from a random cell, digs a room: it clears a
   random small pattern around every cell that it visits, and draws a direction with probability
   0.35 per step. Here it also draws one where it faces the border. The patterns are ours: lines and
   corners of three cells, and a square.
2. Four targets and the player are put on random floor, and a box on every target.
3. The player pulls boxes about: the game in reverse. The configuration with the highest score is
   the level: the number of box swaps (the player leaves a box and pulls another) times the boxes'
   displacement (the sum of Manhattan distances to where they began); 0 while the player or a box
   is on a target. A try without any score above 0 is rejected.

So levels can be solved, and nothing begins on a target. The paper searches depth first, through up
to a million configurations of up to 300 actions. Here 16 plays per level make 80 random pulls each,
of whatever the player can reach: of two drawn, the one that displaces boxes more. After every 20,
all 16 go on from the best configuration so far. On the same rooms, such a depth-first search finds
levels that take about a tenth more pushes to solve.

A level depends on its split and index only: tries are made in numbered batches, whose seeds no two
splits share.

*Files* are as in https://github.com/google-deepmind/boxoban-levels: a line that begins with `;`
announces a level, 10 rows of 10 characters follow. `#` is a wall, ` ` floor, `.` a target, `$` a
box, `@` the player, `*` a box on a target, `+` the player on a target.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int8, Int32, UInt8, UInt64

SIZE = 10
NUM_BOXES = 4  # Of generated levels.
WALL, TARGET, BOX, PLAYER = 1, 2, 4, 8
SPLITS = ("train", "valid", "test")

_CHARACTERS = {
    "#": WALL,
    " ": 0,
    ".": TARGET,
    "$": BOX,
    "@": PLAYER,
    "*": BOX | TARGET,
    "+": PLAYER | TARGET,
}

# Each of these decides which levels there are.
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

_Sets = UInt64[np.ndarray, "*n"]


def generate(split: str, number: int) -> UInt8[np.ndarray, "number 10 10"]:
    """The first levels of a split, one of `SPLITS`."""
    levels = np.empty((0, SIZE, SIZE), np.uint8)
    for batch in itertools.count():
        if len(levels) >= number:
            break
        rng = np.random.default_rng((SPLITS.index(split), batch))
        levels = np.concatenate([levels, _generate_batch(rng)])
    return levels[:number]


def read(path: str | Path) -> UInt8[np.ndarray, "number 10 10"]:
    """The levels of a Boxoban text file. Theirs have 4 boxes; here there may be any number.

    Raises:
      ValueError: if it is malformed, naming the file, the line and the column, what was found
        there and what was expected.
      OSError: if it cannot be read.
    """
    return parse(Path(path).read_bytes(), path)


def parse(content: bytes, path: str | Path) -> UInt8[np.ndarray, "number 10 10"]:
    """The levels of a Boxoban text file of this content. Raises ValueError as `read` does."""
    # Of Latin-1 every byte is a character, so that a wrong one has a line and a column.
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
            levels.append(_level(rows, _Position(path, number)))
            number += SIZE
        elif line:
            raise _Position(path, number).malformed(repr(line[0]), "';', which begins a level")
    if not levels:
        raise _Position(path, 1).malformed("no level", "at least one")
    return np.stack(levels)


def to_text(levels: UInt8[np.ndarray, "number 10 10"]) -> str:
    """Levels as in a Boxoban text file, numbered from 0."""
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
        """That of a cell, from that of the line before its level."""
        return self._replace(line=self.line + 1 + row, column=1 + column)

    def malformed(self, found: str, expected: str) -> ValueError:
        return ValueError(
            f"{self.path}, line {self.line}, column {self.column}:"
            f" found {found}, expected {expected}."
        )


def _level(rows: list[str], head: _Position) -> UInt8[np.ndarray, "10 10"]:
    """Reads a level, of which `head` is the position of the line before its rows."""
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
    for i, j in np.argwhere(border & (level != WALL)):
        raise head.at(i, j).malformed(repr(rows[i][j]), "'#', as a level's border is wall")
    players = np.argwhere(level & PLAYER)
    if len(players) != 1:
        position = head.at(*players[1]) if len(players) else head
        raise position.malformed("a second player" if len(players) else "no player", "one")
    boxes, targets = np.count_nonzero(level & BOX), np.count_nonzero(level & TARGET)
    if boxes != targets:
        raise head.malformed(f"{boxes} boxes and {targets} targets", "as many of both")
    if not np.any(level & (BOX | TARGET) == BOX):
        found = "every box on a target" if boxes else "no box"
        raise head.malformed(found, "at least one box that is not on a target")
    return level


def _generate_batch(rng: np.random.Generator) -> UInt8[np.ndarray, "accepted 10 10"]:
    floor = _dig(rng, _BATCH)
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


def _dig(rng: np.random.Generator, rooms: int) -> UInt64[np.ndarray, "rooms"]:
    """The floor of rooms."""
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
    """What each pattern clears around each cell."""
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
    """Draws distinct cells of the floor for the targets and the player."""
    order = np.where(_members(floor), rng.random((len(floor), _INNER**2)), 1.0)
    cells = order.argsort(axis=1)[:, : NUM_BOXES + 1].T.astype(np.int8)
    return cells[:NUM_BOXES], cells[NUM_BOXES]


class _Play(NamedTuple):
    """Reverse plays.

    Attributes:
      boxes: their cells.
      player: its cell.
      last: the cell of the box pulled last, -1 for none.
      swaps: so far.
      displacement: of the boxes from their targets, summed.
    """

    boxes: Int8[np.ndarray, "boxes plays"]
    player: Int8[np.ndarray, "plays"]
    last: Int8[np.ndarray, "plays"]
    swaps: Int32[np.ndarray, "plays"]
    displacement: Int32[np.ndarray, "plays"]

    def where(self, condition: Bool[np.ndarray, "plays"], other: "_Play") -> "_Play":
        """These plays where `condition`, others elsewhere."""
        return _Play(*(np.where(condition, a, b) for a, b in zip(self, other, strict=True)))

    def take(self, index: Int[np.ndarray, "n"]) -> "_Play":
        """The plays of these indices."""
        return _Play(*(field[..., index] for field in self))


def _play_in_reverse(
    rng: np.random.Generator,
    floor: UInt64[np.ndarray, "n"],
    targets: Int8[np.ndarray, "boxes n"],
    player: Int8[np.ndarray, "n"],
) -> tuple[Int8[np.ndarray, "boxes n"], Int8[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """The best configuration found of each level: boxes, player, score."""
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
    """One pull; none where none is possible."""
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
    """Draws one of the pulls that are possible, of which `count` is the running number."""
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
    """The cells that can be walked to."""
    reach, before = start, None
    while before is None or not np.array_equal(reach, before):
        before = reach
        for direction in range(4):
            reach = reach | (_moved(reach, direction) & free)
    return reach


def _moved(cells: _Sets, direction: int) -> _Sets:
    """Sets of which every cell is moved by one, or dropped where that leaves the room."""
    if direction % 2 == 0:
        return cells >> _INNER if direction == 0 else cells << _INNER
    return (cells & ~_RIGHTMOST) << 1 if direction == 1 else (cells & ~_LEFTMOST) >> 1


def _set_of(cell: Int[np.ndarray, "*n"]) -> _Sets:
    return np.uint64(1) << cell.astype(np.uint64)


def _union(cells: Int8[np.ndarray, "k n"]) -> UInt64[np.ndarray, "n"]:
    return np.bitwise_or.reduce(_set_of(cells), axis=0)


def _member(cells: UInt64[np.ndarray, "n"], rank: Int8[np.ndarray, "n"]) -> Int8[np.ndarray, "n"]:
    """The cell of each set with this many smaller ones in it, less than `NUM_BOXES`."""
    for removed in range(NUM_BOXES - 1):
        cells = np.where(rank > removed, cells & (cells - 1), cells)
    return np.bitwise_count(~cells & (cells - 1)).astype(np.int8)


def _members(cells: UInt64[np.ndarray, "n"]) -> Bool[np.ndarray, "n cells"]:
    return (cells[:, None] >> np.arange(_INNER**2, dtype=np.uint64)) & 1 > 0

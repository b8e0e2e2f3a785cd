"""A grid-world as a finite Markov decision process.

A second description of the dynamics of `environments.suites.grid_worlds`, in NumPy, whose outcomes
have probabilities instead of draws. A state is the agent's cell, whether it holds the key, and each
object's place: one of the cells that it can be in, or none.
"""

import dataclasses
import math

import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from environments.errors import require
from environments.exact_returns import FiniteMDP
from environments.suites.grid_worlds import GridWorld, GridWorldTask
from environments.suites.grid_worlds.mazes import MOVES, ORTHOGONAL, neighbour_table

MAX_STATES = 300_000
_ABSENT = -1


@dataclasses.dataclass(frozen=True, eq=False)
class _Outcomes:
    """Possible outcomes of actions, a row each.

    Attributes:
      start: `state * moves + move`.
      agent: the agent's cell after its move.
      cells: the objects' cells before the step; `_ABSENT` where they are absent.
      proposed: the cells where objects would be after the step; `_ABSENT` for those that stay
        absent or were touched.
      walks: the objects that walk.
      respawns: the objects that would respawn.
      probability: of the row, given its start.
    """

    start: Int[np.ndarray, "rows"]
    agent: Int[np.ndarray, "rows"]
    cells: Int[np.ndarray, "rows objects"]
    proposed: Int[np.ndarray, "rows objects"]
    walks: Bool[np.ndarray, "rows objects"]
    respawns: Bool[np.ndarray, "rows objects"]
    probability: Float[np.ndarray, "rows"]

    @property
    def touched(self) -> Bool[np.ndarray, "rows objects"]:
        """The objects in the cell that the agent moves to."""
        return self.cells == self.agent[:, None]

    def chosen(self, rows: Bool[np.ndarray, "rows"]) -> "_Outcomes":
        """Return some of the rows."""
        return _Outcomes(**{x.name: getattr(self, x.name)[rows] for x in dataclasses.fields(self)})


class _Model:
    """A task's arrays without the unused objects, and the numbering of its states."""

    def __init__(self, dynamics: GridWorld, task: GridWorldTask):
        found = {x.name: np.asarray(getattr(task, x.name)) for x in dataclasses.fields(task)}
        used = found["used"]
        per_object = "random cell reward termination respawn walk key".split()
        self.random, self.cell, self.reward, self.termination, self.respawn, self.walk, self.key = (
            found[name][used] for name in per_object
        )
        self.task, self.num_objects = task, int(used.sum())
        self.has_doors = dynamics.doors and bool(self.key.any())
        self.walls, self.doors = found["walls"], found["doors"]
        self.spawn = found["spawn_cells"][: int(task.num_spawn_cells)]
        self.moves = neighbour_table(dynamics.height, dynamics.width, MOVES[dynamics.moves])
        self.walk_moves = neighbour_table(dynamics.height, dynamics.width, ORTHOGONAL[1:])
        self.places = [self._places(i) for i in range(self.num_objects)]
        # The number of each cell among an object's places; that of `_ABSENT` is the last entry.
        self.place_of = [np.zeros(len(self.walls) + 1, int) for _ in self.places]
        for numbers, places in zip(self.place_of, self.places, strict=True):
            numbers[places] = np.arange(len(places))
        self.free = np.flatnonzero(~self.walls)
        sizes = (len(self.free), 1 + self.has_doors, *(len(x) for x in self.places))
        require(
            math.prod(sizes) <= MAX_STATES,
            f"The grid-world has {math.prod(sizes):,} states; expected at most {MAX_STATES:,}.",
        )
        self.sizes = sizes
        self.num_states = math.prod(sizes)

    def _places(self, i: int) -> Int[np.ndarray, "places"]:
        """Return the cells that an object can be in, and `_ABSENT`."""
        if self.walk[i] > 0.0:
            cells = np.flatnonzero(~self.walls & ~self.doors)
        elif self.random[i]:
            cells = self.spawn
        else:
            cells = self.cell[i : i + 1]
        return np.array([_ABSENT, *cells])

    def states(
        self,
    ) -> tuple[Int[np.ndarray, "states"], Int[np.ndarray, "states"], Int[np.ndarray, "states n"]]:
        """Return all states: the agent's cell, whether it has the key, and the objects' cells."""
        agent, has_key, *places = np.unravel_index(np.arange(self.num_states), self.sizes)
        cells = [x[place] for x, place in zip(self.places, places, strict=True)]
        empty = np.zeros((self.num_states, 0), int)
        return self.free[agent], has_key, np.stack(cells, -1) if cells else empty

    def number(
        self,
        agent: Int[np.ndarray, "rows"],
        has_key: Int[np.ndarray, "rows"],
        cells: Int[np.ndarray, "rows n"],
    ) -> Int[np.ndarray, "rows"]:
        """Return the numbers of states."""
        places = (x[cells[:, i]] for i, x in enumerate(self.place_of))
        of_agent = np.searchsorted(self.free, agent)
        return np.ravel_multi_index((of_agent, has_key, *places), self.sizes)

    def is_possible(
        self, agent: Int[np.ndarray, "states"], cells: Int[np.ndarray, "states n"]
    ) -> Bool[np.ndarray, "states"]:
        """Return whether agent and objects all are in different cells."""
        rows = np.sort(np.concatenate([agent[:, None], cells], axis=1), axis=1)
        equal = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] != _ABSENT)
        return ~equal.any(axis=1)


def grid_world(dynamics: GridWorld, task: GridWorldTask) -> FiniteMDP:
    """Return a grid-world as a finite Markov decision process.

    Raises:
      ValueError: if it has more than `MAX_STATES` states.
    """
    model = _Model(dynamics, task)
    agent, has_key, cells = model.states()
    possible = model.is_possible(agent, cells)
    outcomes = _moved(model, agent, has_key, cells, possible)
    for i in range(model.num_objects):
        outcomes = _with_object(model, outcomes, i)
    num_moves = model.moves.shape[1]
    transitions, rewards = _matrices(model, outcomes, has_key, num_moves)
    slip = float(task.slip)
    move_of_action = (1.0 - slip) * np.eye(num_moves) + slip / num_moves
    every_state = scipy.sparse.eye_array(model.num_states)
    return FiniteMDP(
        transitions=csr_array(scipy.sparse.kron(every_state, move_of_action) @ transitions),
        rewards=rewards @ move_of_action.T + float(task.step_reward),
        initial=_initial(model, agent, has_key, cells, possible),
        horizon=int(task.horizon),
    )


def _moved(
    model: _Model,
    agent: Int[np.ndarray, "states"],
    has_key: Int[np.ndarray, "states"],
    cells: Int[np.ndarray, "states n"],
    possible: Bool[np.ndarray, "states"],
) -> _Outcomes:
    """Return a row for each possible state and move, before the objects' turn."""
    num_moves = model.moves.shape[1]
    start = np.flatnonzero(np.repeat(possible, num_moves))
    state, move = np.divmod(start, num_moves)
    target = model.moves[agent[state], move]
    closed = model.walls[target] | (model.doors[target] & (has_key[state] == 0))
    shape = (len(start), model.num_objects)
    return _Outcomes(
        start=start,
        agent=np.where(closed, agent[state], target),
        cells=cells[state],
        proposed=np.full(shape, _ABSENT),
        walks=np.zeros(shape, bool),
        respawns=np.zeros(shape, bool),
        probability=np.ones(len(start)),
    )


def _with_object(model: _Model, outcomes: _Outcomes, i: int) -> _Outcomes:
    """Return rows for each thing that an object may do, before conflicts are resolved."""
    cell = outcomes.cells[:, i]
    remains, absent = (cell != _ABSENT) & ~outcomes.touched[:, i], cell == _ABSENT
    walk, respawn = float(model.walk[i]), float(model.respawn[i])
    stays = np.where(remains, 1.0 - walk, np.where(absent, 1.0 - respawn, 1.0))
    parts = [_proposing(outcomes, i, np.where(remains, cell, _ABSENT), stays)]
    for move in range(4 if walk > 0.0 else 0):
        target = model.walk_moves[cell, move]
        blocked = model.walls[target] | model.doors[target]
        parts.append(
            _proposing(
                outcomes, i, np.where(blocked, cell, target), remains * walk / 4, walks=remains
            )
        )
    cells = model.spawn if model.random[i] else model.cell[i : i + 1]
    for target in cells if respawn > 0.0 else ():
        chance = absent * respawn / len(cells)
        parts.append(_proposing(outcomes, i, np.full_like(cell, target), chance, respawns=absent))
    names = [field.name for field in dataclasses.fields(_Outcomes)]
    return _Outcomes(**{x: np.concatenate([getattr(y, x) for y in parts]) for x in names})


def _proposing(
    outcomes: _Outcomes,
    i: int,
    proposed: Int[np.ndarray, "rows"],
    probability: Float[np.ndarray, "rows"],
    walks: Bool[np.ndarray, "rows"] | bool = False,
    respawns: Bool[np.ndarray, "rows"] | bool = False,
) -> _Outcomes:
    """Return the rows in which an object does one thing, if that is possible."""

    def replaced(array: np.ndarray, column: np.ndarray | bool) -> np.ndarray:
        array = array.copy()
        array[:, i] = column
        return array

    found = dataclasses.replace(
        outcomes,
        proposed=replaced(outcomes.proposed, proposed),
        walks=replaced(outcomes.walks, walks),
        respawns=replaced(outcomes.respawns, respawns),
        probability=outcomes.probability * probability,
    )
    return found.chosen(found.probability > 0.0)


def _matrices(
    model: _Model, outcomes: _Outcomes, has_key: Int[np.ndarray, "states"], num_moves: int
) -> tuple[csr_array, Float[np.ndarray, "states moves"]]:
    """Return transitions and rewards, conflicts of objects resolved as in `GridWorld`."""
    touched, remaining = outcomes.touched, (outcomes.cells != _ABSENT) & ~outcomes.touched
    now = np.where(remaining, outcomes.cells, _ABSENT)
    conflicts = np.zeros_like(touched)
    for i in range(model.num_objects):
        others = np.arange(model.num_objects) != i
        place = outcomes.proposed[:, i : i + 1]
        same = (outcomes.proposed == place) | (now == place)
        conflicts[:, i] = (same & others).any(axis=1) & (place[:, 0] != _ABSENT)
    respawns = outcomes.respawns & ~conflicts & (outcomes.proposed != outcomes.agent[:, None])
    moved = np.where(outcomes.walks & ~conflicts, outcomes.proposed, now)
    walked_into = remaining & (moved == outcomes.agent[:, None])
    cells = np.where(respawns, outcomes.proposed, np.where(walked_into, _ABSENT, moved))
    contact = touched | walked_into
    survival = np.prod(np.where(contact, 1.0 - model.termination, 1.0), axis=1)
    holds = has_key[outcomes.start // num_moves]
    if model.has_doors:
        holds = np.maximum(holds, (contact & model.key).any(axis=1))
    size = model.num_states * num_moves
    rewards = np.bincount(
        outcomes.start, outcomes.probability * (contact @ model.reward), minlength=size
    )
    place = (outcomes.start, model.number(outcomes.agent, holds, cells))
    transitions = scipy.sparse.coo_array(
        (outcomes.probability * survival, place), shape=(size, model.num_states)
    ).tocsr()
    return transitions, rewards.reshape(model.num_states, num_moves)


def _initial(
    model: _Model,
    agent: Int[np.ndarray, "states"],
    has_key: Int[np.ndarray, "states"],
    cells: Int[np.ndarray, "states n"],
    possible: Bool[np.ndarray, "states"],
) -> Float[np.ndarray, "states"]:
    """Return the probability of each state at an episode's start: all in spawn cells."""
    task = model.task
    starts = model.spawn if bool(task.random_start) else np.asarray(task.start)
    is_initial = possible & (has_key == 0) & np.isin(agent, starts)
    for i in range(model.num_objects):
        starts = model.spawn if model.random[i] else model.cell[i]
        is_initial &= np.isin(cells[:, i], starts)
    return is_initial / is_initial.sum()

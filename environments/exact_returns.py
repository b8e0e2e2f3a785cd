"""Exact expected returns of tasks with few states, by dynamic programming."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Float, Int, PyTree

from environments.base import Environment, num_actions
from environments.encodings import Encoded
from environments.errors import require
from environments.noise import NoisyRewards
from environments.suites.grid_worlds import Draws, GridWorld, GridWorldState, GridWorldTask
from environments.suites.grid_worlds.mazes import MOVES
from environments.suites.mdp_generated import NUM_ACTIONS, NUM_STATES, REACH, Ring, RingTask
from environments.suites.small_tasks import (
    Catch,
    CatchState,
    DeepSea,
    DeepSeaState,
    DelayedChain,
    DelayedChainState,
)
from environments.suites.varied.contexts import Contexts, ContextsTask
from environments.suites.varied.views import View

MAX_STATES = 300_000
ABSENT = -1  # The cell of an object that is not there.
_ROWS = 2**16  # Of one call of a compiled function.


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A Markov decision process whose episodes have at most `horizon` steps.

    Attributes:
      transitions: `[states * actions, states]`, the probability of each next state after an action
        (row `state * actions + action`). A row's sum is less than 1 by the probability that the
        episode terminates.
      rewards: expected reward of each action.
      initial: probability of each initial state.
      horizon: steps after which an episode ends.
    """

    transitions: scipy.sparse.csr_array
    rewards: Float[np.ndarray, "states actions"]
    initial: Float[np.ndarray, "states"]
    horizon: int

    @property
    def num_states(self) -> int:
        return len(self.initial)


class ExpectedReturns(NamedTuple):
    """Expected undiscounted returns of an episode.

    Attributes:
      random: of the uniformly random policy.
      optimal: of the best policy. It knows the state and the step, which an agent may not observe.
      num_states: of the process, as it is modelled.
    """

    random: float
    optimal: float
    num_states: int


def expected_returns(mdp: FiniteMDP) -> ExpectedReturns:
    """Return the random and the optimal policy's expected returns, by backward induction.

    See Puterman (1994), "Markov decision processes", section 4.5.
    """
    random = optimal = np.zeros(mdp.num_states)
    for _ in range(mdp.horizon):
        random = np.mean(_action_values(mdp, random), axis=-1)
        optimal = np.max(_action_values(mdp, optimal), axis=-1)
    return ExpectedReturns(
        random=float(mdp.initial @ random),
        optimal=float(mdp.initial @ optimal),
        num_states=mdp.num_states,
    )


def _action_values(
    mdp: FiniteMDP, values: Float[np.ndarray, "states"]
) -> Float[np.ndarray, "states actions"]:
    return mdp.rewards + (mdp.transitions @ values).reshape(mdp.rewards.shape)


def finite_mdp(environment: Environment) -> FiniteMDP:
    """Return a task as a finite Markov decision process.

    Grid-worlds, Catch, DeepSea, delayed chains with few states, random processes and contextual
    bandits have one, in any encoding. Noise of rewards, whose mean is 0, is left out.

    Raises:
      ValueError: if the task is none of these, or has too many states.
    """
    dynamics, task = environment.dynamics, environment.params
    if isinstance(dynamics, NoisyRewards | Encoded | View):
        own = task if isinstance(dynamics, View) else task.task
        plain = dataclasses.replace(environment, dynamics=dynamics.dynamics, params=own)
        mdp = finite_mdp(plain)
        scale = float(task.reward_scale) if isinstance(dynamics, Encoded) else 1.0
        return dataclasses.replace(mdp, rewards=scale * mdp.rewards)
    if isinstance(dynamics, GridWorld):
        return _grid_world(dynamics, task)
    if isinstance(dynamics, Ring):
        return _ring(task)
    if isinstance(dynamics, Contexts):
        return _contexts(task)
    zeros = jnp.zeros(1, jnp.int32)
    if isinstance(dynamics, Catch) and not dynamics.recall:
        columns = jnp.arange(dynamics.columns, dtype=jnp.int32)
        middle = jnp.full_like(columns, dynamics.columns // 2)
        states = CatchState(ball_row=0 * columns, ball_column=columns, paddle_column=middle)
        uniform = np.full(dynamics.columns, 1.0 / dynamics.columns)
        return enumerated(environment, states, uniform, dynamics.rows - 1)
    if isinstance(dynamics, DeepSea):
        states = DeepSeaState(row=zeros, column=zeros)
        return enumerated(environment, states, np.ones(1), int(task.size))
    if isinstance(dynamics, DelayedChain):
        quiet = dataclasses.replace(environment, params=task.replace(noise=jnp.float32(0.0)))
        states = DelayedChainState(time=zeros, branch=zeros)
        return enumerated(quiet, states, np.ones(1), int(task.length))
    raise ValueError(
        f"{environment.name} has no description as a finite Markov decision process; known are"
        " grid-worlds, Catch without recall, DeepSea, delayed chains, random processes and"
        " contextual bandits."
    )


def _contexts(task: ContextsTask) -> FiniteMDP:
    """Return a contextual bandit, whose next context is drawn at random, as such a process."""
    rewards = np.asarray(task.probability, float)
    number, actions = rewards.shape
    return FiniteMDP(
        transitions=scipy.sparse.csr_array(np.full((number * actions, number), 1.0 / number)),
        rewards=rewards,
        initial=np.full(number, 1.0 / number),
        horizon=int(task.horizon),
    )


def _ring(task: RingTask) -> FiniteMDP:
    """Return a random process of `mdp_generated` as a finite Markov decision process."""
    rows = np.arange(NUM_STATES * NUM_ACTIONS)
    reached = np.zeros((len(rows), NUM_STATES))
    reached[rows, np.asarray(task.next_state).ravel()] = 1.0 - float(task.slip)
    offsets = np.arange(-REACH, REACH + 1)
    for offset in offsets:
        anywhere = np.repeat((np.arange(NUM_STATES) + offset) % NUM_STATES, NUM_ACTIONS)
        reached[rows, anywhere] += float(task.slip) / len(offsets)
    rewards = float(task.living) + reached @ np.asarray(task.arrival, float)
    first = np.asarray(task.is_first, float)
    return FiniteMDP(
        transitions=scipy.sparse.csr_array(reached * ~np.asarray(task.is_last)),
        rewards=rewards.reshape(NUM_STATES, NUM_ACTIONS),
        initial=first / first.sum(),
        horizon=int(task.horizon),
    )


def enumerated(
    environment: Environment,
    initial: PyTree[Array],
    probability: Float[np.ndarray, "initial"],
    horizon: int,
) -> FiniteMDP:
    """Return an environment as a finite Markov decision process.

    Args:
      environment: whose steps do not depend on the random key.
      initial: the states that `reset` can return, on a leading axis.
      probability: of each.
      horizon: an upper bound of an episode's steps.

    Raises:
      ValueError: if there are too many states.
    """
    actions = num_actions(environment.dynamics)
    step = jax.jit(jax.vmap(jax.vmap(_step(environment), (None, 0)), (0, None)))
    numbers: dict[bytes, int] = {}
    frontier = initial
    rewards: list[np.ndarray] = []
    rows, columns = list[np.ndarray](), list[np.ndarray]()
    _number(initial, numbers)
    while jax.tree.leaves(frontier)[0].shape[0]:
        following, reward, terminated = jax.device_get(step(frontier, jnp.arange(actions)))
        continues = np.flatnonzero(~terminated.ravel())
        flat = jax.tree.map(lambda x, rows=continues: x.reshape(-1, *x.shape[2:])[rows], following)
        known = len(numbers)
        found = _number(flat, numbers)
        rows.append(len(rewards) * actions + continues)
        columns.append(found)
        rewards.extend(reward)
        require(
            len(numbers) <= MAX_STATES,
            f"{environment.name} has more than {MAX_STATES:,} states.",
        )
        _, first = np.unique(found, return_index=True)
        new = first[found[first] >= known]
        frontier = jax.tree.map(lambda x, rows=new: x[rows], flat)
    size = len(numbers)
    place = (np.concatenate(rows), np.concatenate(columns))
    ones = np.ones(len(place[0]))
    transitions = scipy.sparse.coo_array((ones, place), (size * actions, size))
    every = np.zeros(size)
    every[: len(probability)] = probability
    return FiniteMDP(
        transitions=transitions.tocsr(),
        rewards=np.stack(rewards).astype(float),
        initial=every,
        horizon=horizon,
    )


def _step(environment: Environment) -> Any:
    """Return a function from state and action to next state, reward and termination."""
    dynamics: Any = environment.dynamics

    def step(state: Any, action: Array) -> Any:
        key = jax.random.key(0)
        after, timestep = dynamics.step(environment.params, state, action, key)
        return after, timestep.reward, timestep.discount == 0.0

    return step


def _number(states: PyTree[Array | np.ndarray], numbers: dict[bytes, int]) -> np.ndarray:
    """Return the number of each state; new states get the next numbers, in order."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(states)]
    keys = [b"".join(x[i].tobytes() for x in leaves) for i in range(len(leaves[0]))]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _grid_world(dynamics: GridWorld, task: GridWorldTask) -> FiniteMDP:
    """Return a grid-world as a finite Markov decision process.

    Each state and move is stepped with all that objects may do, in place of their draws.

    Raises:
      ValueError: if it has more than `MAX_STATES` states.
    """
    task = jax.device_get(task)
    starts, num_moves = _starts(task), len(MOVES[dynamics.moves])
    values = grid_world_values(dynamics, task)
    number = math.prod(len(x) for x in values)
    require(
        number <= MAX_STATES,
        f"The grid-world has {number:,} states; expected at most {MAX_STATES:,}.",
    )
    states = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(number, -1)
    occupied = np.sort(np.delete(states, 1, axis=1), axis=1)
    shared = (occupied[:, 1:] == occupied[:, :-1]) & (occupied[:, 1:] != ABSENT)
    possible = ~shared.any(axis=1)
    start = np.flatnonzero(np.repeat(possible, num_moves))
    row, event, choice, probability = _possible_draws(task, states[start // num_moves, 2:])
    start = start[row]
    after, contact = _advanced(dynamics, task, states, start, event, choice)
    survival = np.prod(np.where(contact, 1.0 - task.termination.astype(float), 1.0), axis=1)
    transitions = scipy.sparse.coo_array(
        (probability * survival, (start, grid_world_number(values, after))),
        shape=(number * num_moves, number),
    )
    rewards = np.bincount(
        start, probability * (contact @ task.reward), minlength=number * num_moves
    ).reshape(number, num_moves)
    slip = float(task.slip)
    move_of_action = (1.0 - slip) * np.eye(num_moves) + slip / num_moves
    slips = scipy.sparse.kron(scipy.sparse.eye_array(number), move_of_action)
    within = [np.isin(states[:, i], cells) for i, cells in enumerate(starts)]
    is_initial = np.all([possible, *within], axis=0)
    return FiniteMDP(
        transitions=scipy.sparse.csr_array(slips @ transitions.tocsr()),
        rewards=rewards @ move_of_action.T + float(task.step_reward),
        initial=is_initial / is_initial.sum(),
        horizon=int(task.horizon),
    )


def _starts(task: GridWorldTask) -> list[np.ndarray]:
    """Return the agent's first cells, [0] for the missing key, and the cells objects appear in."""
    spawn = task.spawn_cells[: task.num_spawn_cells]
    objects = range(int(task.used.sum()))
    agent = spawn if task.random_start else task.start[None]
    cells = (spawn if task.random[i] else task.cell[i : i + 1] for i in objects)
    return [np.asarray(x) for x in (agent, [0], *cells)]


def grid_world_values(dynamics: GridWorld, task: GridWorldTask) -> list[np.ndarray]:
    """Return the agent's possible cells, whether it may have a key, and objects' possible cells.

    Of the task's NumPy arrays. Each list is sorted; an object may be `ABSENT`.
    """
    walkable = np.flatnonzero(~(task.walls | task.doors))
    cells = (walkable if task.walk[i] > 0.0 else x for i, x in enumerate(_starts(task)[2:]))
    keys = np.arange(1 + (dynamics.doors and bool(task.key.any())))
    return [np.flatnonzero(~task.walls), keys, *(np.append(ABSENT, x) for x in cells)]


def grid_world_number(values: list[np.ndarray], state: GridWorldState) -> Int[np.ndarray, "rows"]:
    """Return the numbers of states, given a task's `grid_world_values`."""
    cells = np.where(state.present, state.cell, ABSENT)[:, : len(values) - 2]
    columns = (state.agent, state.has_key, *cells.T)
    places = [np.searchsorted(x, column) for x, column in zip(values, columns, strict=True)]
    return np.ravel_multi_index(places, [len(x) for x in values])


def _possible_draws(task: GridWorldTask, cells: Int[np.ndarray, "starts objects"]) -> tuple:
    """Return all that objects in some cells may do.

    Returns:
      The number of the start, the draws that decide whether each object walks or respawns, those
      that decide where, and the probability; a row for each outcome.
    """
    row, probability = np.arange(len(cells)), np.ones(len(cells))
    event, choice = np.zeros((2, len(cells), len(task.used)), np.float32)
    for i, appears in enumerate(_starts(task)[2:]):
        absent, parts = cells[row, i] == ABSENT, []
        for those, chance, number in (
            (~absent, float(task.walk[i]), 4),
            (absent, float(task.respawn[i]), len(appears)),
        ):
            weights = np.array([1.0 - chance, *[chance / number] * number])
            draws = np.maximum(np.arange(number + 1) - 0.5, 0.0) / number
            option = np.flatnonzero(weights)  # 0: nothing happens.
            of = np.repeat(np.flatnonzero(those), len(option))
            option = np.resize(option, len(of))
            parts.append((of, option == 0, draws[option], weights[option]))
        of, stays, drawn, weight = (np.concatenate(x) for x in zip(*parts, strict=True))
        row, probability, event, choice = row[of], probability[of] * weight, event[of], choice[of]
        event[:, i], choice[:, i] = stays, drawn
    return row, event, choice, probability


def _advanced(
    dynamics: GridWorld,
    task: GridWorldTask,
    states: Int[np.ndarray, "states values"],
    start: Int[np.ndarray, "rows"],
    event: Float[np.ndarray, "rows objects"],
    choice: Float[np.ndarray, "rows objects"],
) -> tuple[GridWorldState, Bool[np.ndarray, "rows objects"]]:
    """Return the next state of each row, and which objects are touched."""
    parts = []
    for first in range(0, len(start), _ROWS):
        rows = np.arange(first, first + _ROWS) % len(start)  # Always as many: compiled once.
        number, move = np.divmod(start[rows], len(MOVES[dynamics.moves]))
        agent, has_key, *cells = states[number].T.astype(np.int32)
        cell = np.full((_ROWS, dynamics.max_objects), ABSENT, np.int32)
        cell[:, : len(cells)] = np.stack(cells, axis=-1)
        of_rows = agent, has_key, cell, move.astype(np.int32), event[rows], choice[rows]
        parts.append(jax.device_get(_advance(dynamics, task, *of_rows)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(start)], *parts)


@functools.partial(jax.jit, static_argnums=0)
def _advance(dynamics: GridWorld, task: GridWorldTask, *of_rows):
    def one(agent, has_key, cell, move, event, choice):
        state = GridWorldState(
            agent=agent,
            cell=cell,
            present=cell != ABSENT,
            has_key=has_key > 0,
            time=jnp.zeros_like(agent),
        )
        never, any_ = jnp.float32(1.0), jnp.float32(0.0)
        draws = Draws(event=event, choice=choice, slip=never, slip_action=any_, end=any_)
        return dynamics.advance(task, state, move, draws)

    return jax.vmap(one)(*of_rows)

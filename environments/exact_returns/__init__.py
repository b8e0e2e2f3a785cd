"""Exact expected returns of tasks with few states, by dynamic programming."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PyTree

from environments.base import Environment, num_actions
from environments.errors import require
from environments.noise import NoisyRewards
from environments.suites.grid_worlds import GridWorld
from environments.suites.mdp_generated import NUM_ACTIONS, NUM_STATES, REACH, Ring, RingTask
from environments.suites.small_tasks import (
    Catch,
    CatchState,
    DeepSea,
    DeepSeaState,
    DelayedChain,
    DelayedChainState,
)


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


def optimal_policy(mdp: FiniteMDP) -> np.ndarray:
    """Return the best action `[horizon, states]` in each state after each number of steps."""
    actions, values = [], np.zeros(mdp.num_states)
    for _ in range(mdp.horizon):
        action_values = _action_values(mdp, values)
        actions.append(np.argmax(action_values, axis=-1))
        values = np.max(action_values, axis=-1)
    return np.stack(actions[::-1])


def _action_values(
    mdp: FiniteMDP, values: Float[np.ndarray, "states"]
) -> Float[np.ndarray, "states actions"]:
    return mdp.rewards + (mdp.transitions @ values).reshape(mdp.rewards.shape)


def finite_mdp(environment: Environment) -> FiniteMDP:
    """Return a task as a finite Markov decision process.

    Grid-worlds, Catch, DeepSea, delayed chains with few states, and random processes have one.
    Noise of rewards, whose mean is 0, is left out.

    Raises:
      ValueError: if the task is none of these, or has too many states.
    """
    dynamics, task = environment.dynamics, environment.params
    if isinstance(dynamics, NoisyRewards):
        return finite_mdp(
            dataclasses.replace(environment, dynamics=dynamics.dynamics, params=task.task)
        )
    if isinstance(dynamics, GridWorld):
        from environments.exact_returns.grid_world_model import grid_world  # It imports this one.

        return grid_world(dynamics, task)
    if isinstance(dynamics, Ring):
        return _ring(task)
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
        " grid-worlds, Catch without recall, DeepSea, delayed chains and random processes."
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


MAX_STATES = 100_000


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


class Optimum(NamedTuple):
    """The best policy's expected return, at most.

    Attributes:
      value: undiscounted.
      reason: why it is that.
    """

    value: float
    reason: str


OPTIMA = {
    "gymnax/CartPole-v1": Optimum(500.0, "1 for each of 500 steps"),
    "gymnax/Catch-bsuite": Optimum(1.0, "1 for the ball"),
    "gymnax/DeepSea-bsuite": Optimum(0.99, "1 for the treasure, 0.01 for the way there"),
    "gymnax/MemoryChain-bsuite": Optimum(1.0, "1 for the bit of the start"),
    "gymnax/UmbrellaChain-bsuite": Optimum(1.0, "1 for the right choice, 0 on average before"),
    "gymnax/DiscountingChain-bsuite": Optimum(1.1, "the largest of the rewards, 1 and 1.1"),
    "gymnax/FourRooms-misc": Optimum(1.0, "1 for the goal, which 500 steps suffice for"),
}
"""By the task's name."""

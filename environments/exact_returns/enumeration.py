"""Deterministic JAX environments as finite Markov decision processes, by stepping them.

A state has one number for each value that its arrays have. All states that can be reached are found
by every action in each of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PyTree

from environments.base import Environment, num_actions
from environments.errors import require
from environments.exact_returns.mdp import FiniteMDP

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

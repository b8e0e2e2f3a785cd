"""Exact expected returns of tasks with few states, by dynamic programming."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from environments.base import Environment
from environments.exact_returns.enumeration import enumerated
from environments.exact_returns.grid_world_model import grid_world
from environments.exact_returns.mdp import (
    ExpectedReturns,
    FiniteMDP,
    expected_returns,
    optimal_policy,
)
from environments.noise import NoisyRewards
from environments.suites.catch import Catch, CatchState
from environments.suites.deep_sea import DeepSea, DeepSeaState
from environments.suites.delayed_chain import DelayedChain, DelayedChainState
from environments.suites.grid_worlds import GridWorld
from environments.suites.mdp_generated import NUM_ACTIONS, NUM_STATES, REACH, Ring, RingTask

__all__ = ["ExpectedReturns", "FiniteMDP", "expected_returns", "finite_mdp", "optimal_policy"]


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

"""The random processes of `mdp_generated` as finite Markov decision processes."""

import numpy as np
import scipy.sparse

from environments.exact_returns.mdp import FiniteMDP
from environments.suites.mdp_generated import REACH, Ring, RingTask


def ring(dynamics: Ring, task: RingTask) -> FiniteMDP:
    """Return a task as a finite Markov decision process."""
    number, actions = dynamics.num_states, dynamics.num_actions
    rows = np.arange(number * actions)
    reached = np.zeros((number * actions, number))
    reached[rows, np.asarray(task.next_state).ravel()] = 1.0 - float(task.slip)
    offsets = np.arange(-REACH, REACH + 1)
    for offset in offsets:
        anywhere = np.repeat((np.arange(number) + offset) % number, actions)
        reached[rows, anywhere] += float(task.slip) / len(offsets)
    rewards = float(task.living) + reached @ np.asarray(task.arrival, float)
    goes_on = ~np.asarray(task.is_last)
    first = np.asarray(task.is_first, float)
    return FiniteMDP(
        transitions=scipy.sparse.csr_array(reached * goes_on),
        rewards=rewards.reshape(number, actions),
        initial=first / first.sum(),
        horizon=int(task.horizon),
    )

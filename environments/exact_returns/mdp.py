"""Finite-horizon Markov decision processes as matrices, and their exact expected returns."""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float


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

"""Optimal returns of tasks of other packages that follow from their rules.

Read from gymnax 0.0.9 and 1.0. No optimum is known for gymnax' other tasks: some have bandits whose
arms are drawn anew for each episode, some are continuous.
"""

from typing import NamedTuple


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

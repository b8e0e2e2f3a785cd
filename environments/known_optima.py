"""Optimal returns of tasks that are too large to solve, known by other means."""

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
    # Four means over instances, by `tests/environments/suites/test_jumanji_optima.py`.
    "jumanji/GraphColoring-v1": Optimum(-9.48, "the fewest colours, mean of 1,000 graphs"),
    "jumanji/Knapsack-v1": Optimum(20.10, "the best set, mean of 2,000 instances"),
    "jumanji/Maze-v0": Optimum(1.0, "1 for the target, which 100 steps suffice for"),
    "jumanji/SlidingTilePuzzle-v0": Optimum(20.87, "25 tiles less 4.13 in place at the start"),
    "jumanji/TSP-v1": Optimum(-3.82, "the shortest tour, mean of 500 instances"),
    "jumanji/CVRP-v1": Optimum(-6.10, "the shortest routes, by Gurobi (arXiv 1803.08475, table 1)"),
}
"""By the task's name."""

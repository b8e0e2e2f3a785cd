"""Optima of Jumanji's tasks whose mean over instances can only be measured.

`environments.known_optima.OPTIMA` has them of as many instances as it says, and of 20,000 sliding
puzzles, with standard errors of 0.03 (colours), 0.04 (knapsack), 0.013 (tour) and 0.016 (tiles).
"""

import itertools

import jax
import numpy as np
import pytest
from scipy import optimize

import environments
from environments.known_optima import OPTIMA
from tests.environments.streams import dynamics_of

pytest.importorskip("jumanji", reason="Jumanji is not installed.")
pytestmark = pytest.mark.thorough

INSTANCES = 200


def starts(name, number):
    """The states in which episodes start, and the observations."""
    dynamics = dynamics_of(environments.make(f"jumanji/{name}"))
    keys = jax.random.split(jax.random.key(7), number)
    reset = jax.jit(jax.vmap(lambda key: dynamics.reset((), key)[0]))
    return jax.device_get(reset(keys))


def integer_optimum(cost, matrix, low, high):
    constraint = optimize.LinearConstraint(matrix, low, high)
    return optimize.milp(
        cost, constraints=constraint, integrality=np.ones(len(cost)), bounds=optimize.Bounds(0, 1)
    )


def knapsack(number):
    states = starts("Knapsack-v1", number)
    found = []
    for weights, values in zip(states.weights, states.values, strict=True):
        found.append(-integer_optimum(-values.astype(float), weights[None], -np.inf, 12.5).fun)
    return found


def shortest_tour(cities):
    """Length of a tour, without the subtours that solutions have had so far."""
    number = len(cities)
    edges = np.array(list(itertools.combinations(range(number), 2)))
    cost = np.linalg.norm(cities[edges[:, 0]] - cities[edges[:, 1]], axis=1)
    rows = [(edges == city).any(axis=1) for city in range(number)]
    low, high = [2.0] * number, [2.0] * number
    while True:
        solution = integer_optimum(cost, np.array(rows, float), low, high)
        neighbours = {city: set[int]() for city in range(number)}
        for a, b in edges[solution.x > 0.5]:
            neighbours[a].add(b)
            neighbours[b].add(a)
        parts, left = [], set(range(number))
        while left:
            part, new = set[int](), {left.pop()}
            while new:
                part |= new
                new = set.union(*(neighbours[city] for city in new)) - part
            left -= part
            parts.append(part)
        if len(parts) == 1:
            return solution.fun
        for part in parts:
            rows.append(np.isin(edges, list(part)).sum(axis=1) == 1)
            low.append(2.0)
            high.append(np.inf)


def tsp(number):
    return [-shortest_tour(cities) for cities in starts("TSP-v1", number).coordinates]


def num_colours(adjacent):
    """The fewest colours, by depth first over the nodes with most neighbours first."""
    order = np.argsort(-adjacent.sum(axis=0))
    rows = [sum(1 << int(j) for j in np.flatnonzero(adjacent[i])) for i in range(len(adjacent))]
    best = len(order)

    def colour(place, classes):
        nonlocal best
        if len(classes) >= best:
            return
        if place == len(order):
            best = len(classes)
            return
        node = int(order[place])
        for i, members in enumerate(classes):
            if not members & rows[node]:
                colour(place + 1, [*classes[:i], members | 1 << node, *classes[i + 1 :]])
        colour(place + 1, [*classes, 1 << node])

    colour(0, [])
    return best


def graph_coloring(number):
    return [-num_colours(x) for x in starts("GraphColoring-v1", number).adj_matrix]


def sliding_tile_puzzle(number):
    puzzles = starts("SlidingTilePuzzle-v0", number).puzzle.reshape(number, -1)
    return 25 - np.sum(puzzles == np.append(np.arange(1, 25), 0), axis=1)


@pytest.mark.parametrize(
    ("name", "solved"),
    [
        ("Knapsack-v1", knapsack),
        ("TSP-v1", tsp),
        ("GraphColoring-v1", graph_coloring),
        ("SlidingTilePuzzle-v0", sliding_tile_puzzle),
    ],
)
def test_the_mean_of_optima_is_the_recorded_one(name, solved):
    found = np.array(solved(INSTANCES), float)
    error = found.std(ddof=1) / np.sqrt(INSTANCES)
    assert OPTIMA[f"jumanji/{name}"].value == pytest.approx(found.mean(), abs=4.0 * error)

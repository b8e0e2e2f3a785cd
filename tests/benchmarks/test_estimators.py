"""How the quality of meta-gradients is computed from what was measured."""

import numpy as np
import pytest

from benchmarks.estimators import cosines, table


def line(task, gradient, found, noise=0.0):
    """What would be measured of a linear score, whose gradient is given."""
    random = np.random.default_rng(0)
    directions = random.normal(size=(4000, len(gradient)))
    derivatives = [
        (directions @ gradient + noise * random.normal(size=4000)).tolist() for _ in range(2)
    ]
    along = float(gradient @ found / np.linalg.norm(found))
    estimate = {
        "norm": float(np.linalg.norm(found)),
        "square": 2.0 * float(found @ found),
        "between_seeds": 0.25,
        "along 0.1": [along, along],
        "along 1": [along, along],
    }
    return {
        "rule": "rule",
        "task": task,
        "derivatives": derivatives,
        "estimates": {"K = 1": estimate},
    }


def test_cosine_with_the_gradient_of_the_score():
    gradient, found = np.array([3.0, 4.0, 0.0]), np.array([1.0, 0.0, 0.0])
    lines = [line("a", gradient, found), line("b", gradient, found, noise=5.0)]
    exact, noisy = cosines(lines, 1)["rule"]["K = 1"]
    assert exact == pytest.approx(0.6, abs=0.02)
    assert noisy == pytest.approx(0.6, abs=0.05)


def test_table():
    gradient = np.array([3.0, 4.0, 0.0])
    lines = [line(task, gradient, gradient + i) for i, task in enumerate("abc")]
    rows = table(lines).splitlines()
    assert len(rows) == 3
    rule, name, cosine, _, seeds, noise = rows[2].strip("| ").split(" | ")
    assert (rule, name, seeds, noise) == ("rule", "K = 1", "0.25", "1.0")
    assert float(cosine.split()[0]) == pytest.approx(0.98, abs=0.04)

"""How the quality of meta-gradients is computed from what was measured."""

import numpy as np
import pytest

from benchmarks.estimators import LIFETIME, draw, qualities, table


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
        "between_seeds": 0.25,
        "along": [along, along],
    }
    return {
        "rule": "rule",
        "task": task,
        "derivatives": derivatives,
        "parameters": len(gradient),
        "estimates": {"K = 1": estimate},
    }


def test_cosine_with_the_gradient_of_the_score():
    gradient, found = np.array([3.0, 4.0, 0.0]), np.array([1.0, 0.0, 0.0])
    lines = [line("a", gradient, found), line("b", gradient, found, noise=5.0)]
    rows = {(one.estimator, one.task): one for one in qualities(lines)}
    assert rows["K = 1", "a"].cosine == pytest.approx(0.6, abs=0.02)
    assert rows["K = 1", "b"].cosine == pytest.approx(0.6, abs=0.05)
    # Three directions' pairs of lifetimes, and as many as the noise of each is larger.
    exact, noisy = (rows["evolution", task].steps / (2 * LIFETIME) for task in "ab")
    assert exact == pytest.approx(3.0, rel=0.05)
    assert noisy == pytest.approx(3.0 * (1.0 + 2 * 25.0 / 25.0), rel=0.2)
    # Three parts of noise for each of signal, in 400 meta-steps.
    assert rows["K = 1", "a"].steps == 3.0 * (LIFETIME + 400 * 64 * 16)


def test_a_score_that_is_noise_alone_is_left_out():
    gradient = np.zeros(3)
    one = line("a", gradient, np.ones(3), noise=1.0)
    one["derivatives"][1] = (-np.array(one["derivatives"][0])).tolist()
    assert not qualities([one])


def test_table_and_figure(tmp_path):
    gradient = np.array([3.0, 4.0, 0.0])
    found = qualities([line(task, gradient, gradient + i) for i, task in enumerate("abc")])
    rows = table(found).splitlines()
    assert len(rows) == 4
    rule, name, cosine, seeds, steps = rows[3].strip("| ").split(" | ")
    assert (rule, name, seeds) == ("rule", "K = 1", "0.250 [0.250, 0.250]")
    assert float(cosine.split()[0]) == pytest.approx(0.98, abs=0.04)
    assert steps == f"{3 * (LIFETIME + 400 * 64 * 16):,}"
    draw(found, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000

import numpy as np
import pytest

from evaluation import statistics

NAN = float("nan")


def test_mean_and_standard_error_by_hand():
    scores = np.array([[1.0, 2.0, 3.0, 6.0], [4.0, NAN, 6.0, NAN], [5.0, NAN, NAN, NAN]])
    np.testing.assert_allclose(statistics.mean(scores), [3.0, 5.0, 5.0])
    # Squared deviations 4 + 1 + 0 + 9 = 14; 14 / 3 / 4. Then 2 / 1 / 2.
    errors = statistics.standard_error(scores)
    np.testing.assert_allclose(errors, [np.sqrt(14 / 12), 1.0, NAN])


def test_a_task_without_runs_has_no_mean():
    assert np.isnan(statistics.mean(np.array([[NAN, NAN]]))).all()
    with pytest.raises(ValueError, match="Task 1 has no run"):
        statistics.bootstrap_means(np.array([[1.0, 2.0], [NAN, NAN]]), 10, np.random.default_rng(0))


def test_bootstrap_resamples_within_tasks():
    """Two tasks of two runs each: the mean is k / 4 with binomial weights, 1 4 6 4 1 of 16."""
    scores = np.array([[0.0, 1.0], [10.0, 11.0]])
    samples = statistics.bootstrap_means(scores, 100_000, np.random.default_rng(0))
    values, counts = np.unique(samples, return_counts=True)
    np.testing.assert_allclose(values, [5.0, 5.25, 5.5, 5.75, 6.0])
    np.testing.assert_allclose(counts / len(samples), np.array([1, 4, 6, 4, 1]) / 16, atol=0.01)


def test_bootstrap_agrees_with_the_normal_interval():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(20, 50))
    found = statistics.estimate(scores, resamples=4000, confidence=0.95, seed=0)
    spread = 1.96 * np.sqrt(np.mean(np.var(scores, axis=1)) / 50 / 20)
    np.testing.assert_allclose(found.mean, np.mean(scores))
    np.testing.assert_allclose(found.high - found.low, 2 * spread, rtol=0.1)


def test_difference_of_two_sets_of_runs():
    a = np.array([[1.0, 3.0], [5.0, 7.0]])
    b = np.array([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
    options = {"resamples": 1000, "confidence": 0.9, "seed": 3}
    found = statistics.estimate(a, b, **options)
    assert found.mean == 3.0
    # b does not vary, so the difference's interval is a's, shifted by b's mean of 1.
    alone = statistics.estimate(a, **options)
    np.testing.assert_allclose([found.low, found.high], [alone.low - 1, alone.high - 1])
    assert statistics.estimate(a, b, **options) == found

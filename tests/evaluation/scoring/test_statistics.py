import numpy as np
import pytest
import scipy.stats
from rliable import metrics

from evaluation.scoring import over_tasks, statistics
from evaluation.scoring.statistics import (
    estimate,
    interquartile_mean,
    mean_over_tasks,
    median_over_tasks,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

NAN = float("nan")


def test_mean_and_standard_error_by_hand():
    scores = np.array([[1.0, 2.0, 3.0, 6.0], [4.0, NAN, 6.0, NAN], [5.0, NAN, NAN, NAN]])
    np.testing.assert_allclose(statistics.mean(scores), [3.0, 5.0, 5.0])
    # Squared deviations 4 + 1 + 0 + 9 = 14; 14 / 3 / 4. Then 2 / 1 / 2.
    errors = statistics.standard_error(scores)
    np.testing.assert_allclose(errors, [np.sqrt(14 / 12), 1.0, NAN])


@pytest.mark.parametrize(("tasks", "runs"), [(1, 1), (1, 5), (7, 3), (26, 5), (57, 2)])
def test_aggregates_are_rliables_where_no_run_is_missing(tasks, runs):
    rng = np.random.default_rng(tasks)
    scores = rng.normal(size=(2, tasks, runs)) * 2.0
    others = np.round(rng.normal(size=(tasks, runs + 1)), 1)
    scores[1] = np.round(scores[1], 1)  # With ties.
    theirs = {
        mean_over_tasks: metrics.aggregate_mean,
        median_over_tasks: metrics.aggregate_median,
        interquartile_mean: metrics.aggregate_iqm,
        optimality_gap: metrics.aggregate_optimality_gap,
    }
    for ours, their in theirs.items():
        np.testing.assert_allclose(ours(scores), [their(x.T) for x in scores])
    np.testing.assert_allclose(
        probability_of_improvement(scores[1], others),
        metrics.probability_of_improvement(scores[1].T, others.T),
    )


def test_aggregates_of_what_there_is():
    """Two runs of one task, one of another, four of the third."""
    scores = np.array([[0.0, 2.0, NAN, NAN], [NAN, 5.0, NAN, NAN], [1.0, 2.0, 3.0, 6.0]])
    assert mean_over_tasks(scores) == (1.0 + 5.0 + 3.0) / 3
    assert median_over_tasks(scores) == 3.0
    # 0 1 2 2 3 5 6: one is left out at each end.
    assert interquartile_mean(scores) == (1 + 2 + 2 + 3 + 5) / 5
    # Short of 4 by 4 and 2; 0; 3, 2, 1 and 0.
    assert optimality_gap(scores, target=4.0) == (3.0 + 0.0 + 1.5) / 3
    # A run is better than 2: none, all, half of the runs.
    np.testing.assert_allclose(
        performance_profile(scores, np.array([2.0, 10.0])), [(0 + 1 + 0.5) / 3, 0.0]
    )
    others = np.array([[1.0, NAN], [5.0, 6.0], [2.0, 2.0]])
    assert probability_of_improvement(scores, others) == pytest.approx(
        (0.5 + 0.25 + (0 + 0.5 + 1 + 1) / 4) / 3
    )


def test_a_task_without_runs_has_no_mean():
    assert np.isnan(statistics.mean(np.array([[NAN, NAN]]))).all()
    scores = np.array([[1.0, 2.0], [NAN, NAN]])
    with pytest.raises(ValueError, match="Task 1 has no run"):
        estimate(mean_over_tasks, scores, resamples=10, confidence=0.9, seed=0)


def test_bootstrap_resamples_within_tasks_one_run_fewer():
    """Of two tasks of two runs each, one run is drawn of each: four means, equally likely."""
    scores = np.array([[0.0, 1.0], [10.0, 13.0]])
    rng = np.random.default_rng(0)
    samples = statistics.bootstrap(mean_over_tasks, [scores], 100_000, rng)
    values, counts = np.unique(samples, return_counts=True)
    np.testing.assert_allclose(values, [5.0, 5.5, 6.5, 7.0])
    np.testing.assert_allclose(counts / len(samples), 0.25, atol=0.01)


def test_bootstrap_draws_only_runs_that_are_there():
    scores = np.array([[NAN, 1.0, NAN], [2.0, NAN, 4.0]])
    rng = np.random.default_rng(0)
    samples = statistics.bootstrap(mean_over_tasks, [scores], 1000, rng)
    np.testing.assert_allclose(np.unique(samples), [1.5, 2.5])


def test_bootstrap_in_parts(monkeypatch):
    scores = np.arange(6.0).reshape(2, 3)
    monkeypatch.setattr(over_tasks, "CHUNK", 60)
    samples = statistics.bootstrap(mean_over_tasks, [scores], 33, np.random.default_rng(0))
    assert samples.shape == (33,)
    assert len(np.unique(samples[:10])) > 1


def test_interval_agrees_with_the_normal_one():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(20, 50))
    found = estimate(mean_over_tasks, scores, resamples=4000, confidence=0.95, seed=0)
    spread = 1.96 * np.sqrt(np.mean(np.var(scores, axis=1, ddof=1)) / 50 / 20)
    np.testing.assert_allclose(found.value, np.mean(scores))
    np.testing.assert_allclose(found.high - found.low, 2 * spread, rtol=0.07)


@pytest.mark.parametrize("statistic", [mean_over_tasks, interquartile_mean])
@pytest.mark.parametrize(("tasks", "runs"), [(20, 2), (20, 3), (5, 5)])
def test_intervals_cover_the_true_value(statistic, tasks, runs):
    """Tasks of different scores and spreads."""
    rng = np.random.default_rng(0)
    centre, spread = rng.normal(size=(2, tasks, 1))
    draws = centre + spread * rng.normal(size=(20_000, tasks, runs))
    true = np.mean(statistic(draws))
    options = {"resamples": 500, "confidence": 0.95, "seed": 0}
    found = [estimate(statistic, scores, **options) for scores in draws[:1000]]
    covered = np.mean([low <= true <= high for _, low, high, *_ in found])
    assert 0.93 <= covered <= 0.97


def test_scores_whose_squares_overflow_have_an_interval():
    """The mean's standard error is 1e300 / sqrt(3) / 2, with two degrees of freedom."""
    scores = np.array([[1e300, 2e300, 3e300], [0.0, 1.0, 2.0]])
    found = statistics.estimate(
        statistics.mean_over_tasks, scores, resamples=2_000, confidence=0.95, seed=0
    )
    half = 4.303 * 1e300 / np.sqrt(3.0) / 2.0
    assert found.value == pytest.approx(1e300)
    assert found.high - found.value == pytest.approx(half, rel=0.05)
    assert found.value - found.low == pytest.approx(half, rel=0.05)


def test_one_run_has_no_interval():
    options = {"resamples": 10, "confidence": 0.9, "seed": 0}
    value, *ends = estimate(mean_over_tasks, np.array([[1.0], [3.0]]), **options)
    assert value == 2.0
    assert np.isnan(ends).all()


def test_statistic_of_two_sets_of_runs():
    def difference(a, b):
        return mean_over_tasks(a) - mean_over_tasks(b)

    a = np.array([[1.0, 3.0, 8.0], [5.0, 7.0, 9.0]])
    b = np.array([[0.0, 0.0], [2.0, 2.0]])
    options = {"resamples": 1000, "confidence": 0.9, "seed": 3}
    found = estimate(difference, a, b, **options)
    assert found.value == 4.5
    # b does not vary, so the difference's interval is near to a's, shifted by b's mean of 1.
    alone = estimate(mean_over_tasks, a, **options)
    np.testing.assert_allclose([found.low, found.high], [alone.low - 1, alone.high - 1], atol=0.4)
    assert estimate(difference, a, b, **options) == found


def test_an_interval_over_discoveries_is_students():
    """Three rules with means 1, 2 and 3: 2 ± t(2) sqrt(1/3). That of their runs is far smaller."""
    rng = np.random.default_rng(0)
    rules = [level + 0.01 * rng.normal(size=(4, 5)) for level in (1.0, 2.0, 3.0)]
    settings = {"resamples": 4_000, "confidence": 0.95, "seed": 0}
    found = statistics.estimate(statistics.mean_over_tasks, rules, **settings)
    half = 4.303 * np.sqrt(1.0 / 3.0)
    assert found.value == pytest.approx(2.0, abs=0.02)
    assert found.high - found.value == pytest.approx(half, rel=0.05)
    assert found.value - found.low == pytest.approx(half, rel=0.05)
    runs = np.concatenate(rules, axis=1)
    nested = statistics.estimate(statistics.mean_over_tasks, runs, **settings)
    assert nested.high - nested.low < half
    better = statistics.estimate(
        statistics.probability_of_improvement, rules, np.full((4, 5), 1.5), **settings
    )
    assert better.value == pytest.approx(2 / 3)


@pytest.mark.parametrize("runs", [2, 3, 4, 5])
def test_a_probability_of_all_or_nothing_is_as_sure_as_its_runs(runs):
    """Wilson's bound, above a half where an exact rank test of one task has p < 5%."""
    low, high = np.arange(2 * runs, dtype=float).reshape(2, 1, runs)
    options = {"resamples": 50, "confidence": 0.95, "seed": 0}
    statistic = probability_of_improvement
    found = statistics.estimate(statistic, high, low, **options)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(runs / (runs + 1.96**2), abs=1e-3)
    exact = scipy.stats.mannwhitneyu(high[0], low[0], method="exact").pvalue
    assert (found.low > 0.5) == (exact < 0.05)
    worse = statistics.estimate(statistic, low, high, **options)
    assert worse[:3] == pytest.approx((0.0, 0.0, 1.0 - found.low))
    rules = [high, high + 1.0]
    several = statistics.estimate(statistic, rules, low, **options)
    assert several.low == pytest.approx(2 / (2 + 1.96**2), abs=1e-3)

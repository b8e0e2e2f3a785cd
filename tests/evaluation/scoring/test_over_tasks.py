"""Intervals for other tasks: the widest ones, of which claims are made."""

import numpy as np
import pytest
import scipy.stats

from benchmarks.coverage import Case, coverage
from evaluation.scoring import over_tasks, statistics
from evaluation.scoring.over_tasks import Estimate

OPTIONS = {"resamples": 4_000, "confidence": 0.95, "seed": 0}
NAN = float("nan")


def test_of_a_mean_it_is_students_over_tasks():
    """The spread of the tasks' means has that of the seeds in it; how it is made of them is one."""
    rng = np.random.default_rng(0)
    scores, others = rng.normal(size=(2, 12, 3)) + rng.normal(size=(12, 1))
    found = statistics.estimate(statistics.difference_of_means, scores, others, **OPTIONS)
    own = scipy.stats.ttest_rel(scores.mean(1), others.mean(1)).confidence_interval(0.95)
    np.testing.assert_allclose([found.low_over_tasks, found.high_over_tasks], own, rtol=0.08)
    alone = statistics.estimate(statistics.mean_over_tasks, scores, **OPTIONS)
    # Both contenders have the tasks in common, so that their difference is known better.
    assert (
        found.high_over_tasks - found.low_over_tasks < alone.high_over_tasks - alone.low_over_tasks
    )
    assert alone.high - alone.low < alone.high_over_tasks - alone.low_over_tasks


def test_skewed_scores_have_longer_intervals_on_the_side_of_the_tail():
    scores = np.array([0.0] * 12 + [1.0, 3.0])[:, None] + np.zeros((14, 2))
    found = statistics.estimate(statistics.mean_over_tasks, scores, **OPTIONS)
    half = scipy.stats.t.ppf(0.975, 13) * scipy.stats.sem(scores[:, 0])
    assert found.value - found.low_over_tasks == pytest.approx(half, rel=0.05)
    assert found.high_over_tasks - found.value > 1.1 * half


def test_few_tasks_have_none():
    scores = np.random.default_rng(0).normal(size=(4, 5))
    few = statistics.estimate(statistics.mean_over_tasks, scores[:3], **OPTIONS)
    assert np.isnan(few[3:]).all()
    assert not np.isnan(few[:3]).any()
    assert "tasks" not in few.text(2)
    enough = statistics.estimate(statistics.mean_over_tasks, scores, **OPTIONS)
    value, low, high, *over_tasks = (f"{x:.2f}" for x in enough)
    assert enough.text(2) == f"{value} [{low}, {high}], tasks [{', '.join(over_tasks)}]"
    one_run = statistics.estimate(statistics.mean_over_tasks, scores[:, :1], **OPTIONS)
    assert np.isnan(one_run[1:]).all()


def test_three_levels_add_up():
    """Effects of 5 rules and of 8 tasks: variances add, with Satterthwaite's degrees of freedom."""
    rules, tasks = np.linspace(-1.0, 1.0, 5)[:, None, None], np.linspace(-1.0, 1.0, 8)[:, None]
    scores = rules + tasks + np.zeros((5, 8, 2))
    found = statistics.estimate(statistics.mean_over_tasks, list(scores), **OPTIONS)
    variances = np.array([np.var(rules, ddof=1) / 5, np.var(tasks, ddof=1) / 8])
    degrees = variances.sum() ** 2 / np.sum(variances**2 / np.array([4, 7]))
    half = scipy.stats.t.ppf(0.975, degrees) * np.sqrt(variances.sum())
    np.testing.assert_allclose(found[3:], [-half, half], rtol=0.05)
    np.testing.assert_allclose(
        found.high, scipy.stats.t.ppf(0.975, 4) * variances[0] ** 0.5, rtol=0.05
    )


@pytest.mark.parametrize(
    "scores", [np.full((4, 3), 0.7), np.full((7, 3), 0.1), np.tile([0.0, 0.0, 1.0], (4, 1))]
)
@pytest.mark.parametrize("name", ["interquartile_mean", "mean_over_tasks", "median_over_tasks"])
def test_resamples_without_spread_have_an_interval(scores, name):
    """Also where rounding, or how many runs an IQM leaves out, sets them off from the whole."""
    found = statistics.estimate(getattr(statistics, name), scores, **OPTIONS)
    assert found.low_over_tasks <= found.value <= found.high_over_tasks


@pytest.mark.parametrize("rules", [1, 3])
def test_no_spread_is_as_sure_as_its_tasks(rules):
    """Wilson's bound, of as many trials as there are tasks, or of rules if there are fewer."""
    won, lost = np.ones((5, 2)), np.zeros((5, 2))
    options = OPTIONS
    statistic = statistics.probability_of_improvement
    if rules == 1:
        found = statistics.estimate(statistic, won, lost, **options)
    else:
        found = statistics.estimate(statistic, [won] * rules, lost, **options)
    trials = min(5, rules) if rules > 1 else 5
    assert found.low_over_tasks == pytest.approx(trials / (trials + 1.96**2), abs=1e-3)
    assert found.high_over_tasks == 1.0
    same = statistics.estimate(statistics.mean_over_tasks, won, **OPTIONS)
    assert same[3:] == (1.0, 1.0)


def test_resamples_in_parts_are_the_same(monkeypatch):
    scores, others = np.random.default_rng(0).normal(size=(2, 6, 3))
    statistic = statistics.difference_of_means
    whole = statistics.estimate(statistic, scores, others, **OPTIONS)[3:]
    monkeypatch.setattr(over_tasks, "CHUNK", 1000)
    assert statistics.estimate(statistic, scores, others, **OPTIONS)[3:] == whole


def test_missing_runs_are_not_imputed():
    scores = np.array([[1.0, NAN], [2.0, 2.0], [NAN, 3.0], [4.0, 4.0], [5.0, 5.0]])
    found = statistics.estimate(statistics.mean_over_tasks, scores, **OPTIONS)
    own = scipy.stats.ttest_1samp(np.arange(1.0, 6.0), 0.0).confidence_interval(0.95)
    np.testing.assert_allclose(found[3:], own, rtol=0.05)


def test_a_level_is_outside_all_known_intervals():
    narrow = Estimate(0.5, 0.4, 0.6)
    assert narrow.is_above(0.3)
    assert narrow.is_below(0.7)
    wide = Estimate(0.5, 0.4, 0.6, 0.2, 0.9)
    assert not wide.is_above(0.3)
    assert not wide.is_below(0.7)
    assert wide.is_above(0.1)
    unknown = Estimate(0.5, NAN, NAN)
    assert not unknown.is_above(0.0)
    assert not unknown.is_below(1.0)
    assert wide.mirrored(1.0) == pytest.approx((0.5, 0.4, 0.6, 0.1, 0.8))


@pytest.mark.parametrize(
    "case", [Case("grid_heldout", 3, 1, 23), Case("gymnax", 3, 1, 15), Case("gymnax", 3, 5, 15)]
)
def test_coverage(case):
    """As `benchmarks.coverage`, with fewer evaluations: the standard error is 1.6%.

    Intervals over seeds alone say nothing of other tasks.
    """
    alone, over_tasks = coverage(case, repetitions=200, resamples=200)
    for name, covered in over_tasks.items():
        assert 0.90 <= covered <= 0.995, name
    if case.rules == 1:
        assert alone["difference of means"] < 0.85

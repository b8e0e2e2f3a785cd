import dataclasses

import numpy as np
import pytest

from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.results import Episodes, LearningCurves, intervals
from evaluation.scoring.summary import summarize

NAN = float("nan")


@pytest.fixture
def config() -> EvaluationConfig:
    return EvaluationConfig(seeds=2, baseline_learning_rates=(1e-3, 1e-2), resamples=200)


def _curves(returns) -> LearningCurves:
    """Two episodes in the window of each run, of this mean return; none where it is NaN."""
    returns = np.array(returns)
    count = np.where(np.isnan(returns), 0.0, 2.0)
    window = Episodes(count=count, return_sum=np.nan_to_num(returns) * count)
    return LearningCurves(
        updates=np.array([1]),
        curve=Episodes(count=count[..., None], return_sum=window.return_sum[..., None]),
        window=window,
        results={},
        is_finite=np.ones(returns.shape, bool),
        start_seconds=0.0,
        train_seconds=1.0,
        devices=(),
    )


def _contenders(config) -> tuple[Contender, ...]:
    made = make_contenders([], config)
    return (*made, dataclasses.replace(made[-1], name="ours", kind="discovered"))


def test_scores_by_hand(config):
    contenders = _contenders(config)
    returns = {
        "random": [[0.9, 1.1], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.8]],
        "actor_critic@0.001": [[2.0, 2.0], [4.0, 4.0], [0.0, 0.0], [1.0, 1.0], [0.5, 0.5]],
        "actor_critic@0.01": [[3.0, 3.0], [1.0, 1.0], [0.5, 0.5], [1.0, 1.0], [1.0, 1.4]],
        "policy_gradient@0.001": [[1.0, 1.0], [1.0, 1.0], [0.5, 0.5], [1.0, 1.0], [0.5, 0.5]],
        "policy_gradient@0.01": [[1.0, 1.0], [2.0, 2.0], [0.5, 0.5], [1.0, 1.0], [0.5, 0.5]],
        "ours": [[2.0, NAN], [6.0, 6.0], [2.0, 2.0], [NAN, NAN], [3.0, 3.0]],
    }
    contender_curves = {name: _curves(rows) for name, rows in returns.items()}
    summary = summarize("abcde", contenders, contender_curves, config)

    # c: no baseline is above random's 1. d: ours has no score.
    # e: best 1.2, random 0.4, standard errors 0.2 and 0.4, so 0.8 is less than 3 times 0.447.
    assert set(summary.left_out) == {"c", "d", "e"}
    assert "difference 0.8, standard error 0.45" in summary.left_out["e"]
    assert "not clearly above" in summary.left_out["c"]
    assert "ours" in summary.left_out["d"]
    np.testing.assert_array_equal(summary.counted, [True, True, False, False, False])
    # a: random 1, best 3. b: random 0, best 4.
    np.testing.assert_array_equal(summary.baseline[:2], [3.0, 4.0])
    means = {name: estimate.value for name, estimate in summary.aggregate.items()}
    assert means == pytest.approx(
        {
            "random": 0.0,
            "actor_critic@0.001": (0.5 + 1.0) / 2,
            "actor_critic@0.01": (1.0 + 0.25) / 2,
            "policy_gradient@0.001": (0.0 + 0.25) / 2,
            "policy_gradient@0.01": (0.0 + 0.5) / 2,
            "ours": (0.5 + 1.5) / 2,
        }
    )
    assert summary.tuned == {
        "actor_critic": "actor_critic@0.001",
        "policy_gradient": "policy_gradient@0.01",
    }
    assert summary.differences["ours", "actor_critic"].value == pytest.approx(0.25)
    assert summary.differences["ours", "policy_gradient"].value == pytest.approx(0.75)
    assert summary.above_random["ours"] == ("a", "b", "c", "e")


def test_nothing_to_normalise_by_without_baselines(config):
    config = dataclasses.replace(config, baselines=())
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[1.0, 2.0]]) for c in contenders}
    summary = summarize(["a"], contenders, contender_curves, config)
    assert not summary.aggregate
    assert "hand-designed" in summary.left_out["a"]


@pytest.mark.parametrize("random", [-0.77, -0.6])
def test_one_seed_tells_nobody_apart(config, random):
    """Whose noise is not known: neither a normalised score nor a place above random is claimed."""
    config = dataclasses.replace(config, seeds=1)
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[-0.7]]) for c in contenders}
    contender_curves |= {"random": _curves([[random]]), "ours": _curves([[-0.69]])}
    summary = summarize(["a"], contenders, contender_curves, config)
    assert not summary.counted.any()
    assert not summary.aggregate
    assert not summary.above_random
    assert "expected at least two seeds" in summary.left_out["a"]


def test_a_task_on_which_one_run_is_left_says_nothing(config):
    """Of two; the other task counts."""
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[2.0, 2.1], [2.0, 2.1]]) for c in contenders}
    contender_curves["random"] = _curves([[0.0, NAN], [0.0, 0.1]])
    summary = summarize("ab", contenders, contender_curves, config)
    assert set(summary.left_out) == {"a"}
    assert summary.aggregate["ours"].value == pytest.approx(1.0)


def test_no_separation_needs_no_second_seed(config):
    """Who asks for none has scores normalised wherever the baseline's is higher."""
    config = dataclasses.replace(config, seeds=1, min_separation=0.0)
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[2.0]]) for c in contenders} | {"random": _curves([[1.0]])}
    summary = summarize(["a"], contenders, contender_curves, config)
    assert summary.aggregate["ours"].value == 1.0


def test_intervals_and_window(config):
    config = dataclasses.replace(
        config, budget=103 * config.agent.steps_per_update, num_points=4, score_window=0.2
    )
    ends, window_start = intervals(config)
    np.testing.assert_array_equal(ends, [26, 52, 77, 103])
    assert window_start == 103 - 21
    ends, window_start = intervals(
        dataclasses.replace(config, budget=config.agent.steps_per_update)
    )
    np.testing.assert_array_equal(ends, [1])
    assert window_start == 0

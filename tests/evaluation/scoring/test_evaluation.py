import dataclasses

import numpy as np
import pytest

from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.report.tables import aggregate_rows, score_table
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring.references import Reference
from tests.evaluation import common

NAN = float("nan")
CONFIG = EvaluationConfig()


@pytest.fixture
def config() -> EvaluationConfig:
    return EvaluationConfig(seeds=2, resamples=200, baselines=("actor_critic", "policy_gradient"))


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
    return (*made, common.rule_contender("ours"))


def _references(*tasks: str) -> dict[str, Reference]:
    """0 at a score of 1, 1 at a score of 3."""
    return {task: Reference("", 1.0, 3.0, None, "by hand") for task in tasks}


def test_scores_by_hand(config):
    contenders = _contenders(config)
    returns = {
        "random": [[0.9, 1.1], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]],
        "actor_critic": [[2.0, 2.0], [5.0, 5.0], [0.0, 0.0], [1.0, 1.0]],
        "policy_gradient": [[1.0, 1.0], [2.0, 2.0], [0.5, 0.5], [1.0, 1.0]],
        "ours": [[2.0, NAN], [4.0, 4.0], [2.0, 2.0], [NAN, NAN]],
    }
    contender_curves = {name: _curves(rows) for name, rows in returns.items()}
    reasons = {"c": "it is too large"}
    evaluation = common.evaluation(
        "abcd", contenders, contender_curves, config, _references("a", "b", "d"), reasons
    )
    assert evaluation.left_out["c"] == "it is too large"
    assert "no episode of ours ended" in evaluation.left_out["d"]
    [compared] = evaluation.comparisons
    np.testing.assert_array_equal(compared.scale.counted, [True, True, False, False])
    np.testing.assert_array_equal(evaluation.best_baseline, [2.0, 5.0, 0.5, 1.0])
    found = {
        label: {name: x[label].value for name, x in compared.aggregates.items()}
        for label in ("mean", "mean capped at 1", "optimality gap")
    }
    names = ("random", "actor_critic", "policy_gradient", "ours")
    assert found["mean"] == pytest.approx(dict(zip(names, (0.0, 1.25, 0.25, 1.0), strict=True)))
    assert found["mean capped at 1"] == pytest.approx(
        dict(zip(names, (0.0, 0.75, 0.25, 0.75), strict=True))
    )
    # Of random's runs on task a, one is above and one is below 0.
    assert found["optimality gap"] == pytest.approx(
        dict(zip(names, (1.0, 0.25, 0.75, 0.25), strict=True))
    )
    assert compared.differences["ours", "actor_critic"].value == pytest.approx(-0.25)
    assert compared.differences["ours", "policy_gradient"].value == pytest.approx(0.75)
    # On a it ties with actor-critic, on b it loses; it is above policy gradient on both.
    assert compared.improvement["ours", "actor_critic"].value == pytest.approx(0.25)
    assert compared.improvement["ours", "policy_gradient"].value == pytest.approx(1.0)
    assert evaluation.above_random["ours"] == ("a", "b", "c")


def test_a_score_is_never_divided_by_an_estimate(config):
    """Without a reference there is no mean, however good the baselines are."""
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[1.0, 2.0]]) for c in contenders}
    evaluation = common.evaluation(["a"], contenders, contender_curves, config, {})
    assert evaluation.by_references is None
    assert evaluation.scales == []
    assert "no reference score" in evaluation.left_out["a"]


def test_one_seed_claims_no_place_above_random(config):
    config = dataclasses.replace(config, seeds=1)
    contenders = _contenders(config)
    contender_curves = {c.name: _curves([[-0.7]]) for c in contenders}
    evaluation = common.evaluation(["a"], contenders, contender_curves, config, _references("a"))
    [compared] = evaluation.comparisons
    assert compared.aggregates["ours"]["mean"].value == pytest.approx(-0.85)
    assert np.isnan(compared.aggregates["ours"]["mean"].low)
    assert not evaluation.above_random


def test_discovered_rules_are_shown_first_and_random_last(config):
    ordered = common.evaluation([], _contenders(config), {}, config, {}).ordered
    names = [x.name for x in ordered]
    assert names == ["ours", "actor_critic", "policy_gradient", "random"]


def test_intervals_and_window(config):
    config = dataclasses.replace(
        config, budget=103 * config.agent.steps_per_update, num_points=4, score_window=0.2
    )
    ends, window_start = config.intervals
    np.testing.assert_array_equal(ends, [26, 52, 77, 103])
    assert window_start == 103 - 21
    config = dataclasses.replace(config, budget=config.agent.steps_per_update)
    ends, window_start = config.intervals
    np.testing.assert_array_equal(ends, [1])
    assert window_start == 0


def _discovered(name: str, seed: int, **changes) -> Contender:
    own = {"hyper_parameters": {"y_cost": changes.pop("y_cost", 1.0)}, "sizes": {}}
    provenance = {"environments": "grid57", "meta_steps": 100, "seed": seed, **changes}
    return common.rule_contender(name, header={**own, "provenance": provenance})


def test_rules_of_the_best_probes_are_one_discovery():
    """Which are of different meta-steps of discoveries of one length."""
    rules = [
        _discovered("one", 0, meta_steps=150, planned_meta_steps=300),
        _discovered("two", 1, meta_steps=300, planned_meta_steps=300),
        _discovered("short", 2, meta_steps=150, planned_meta_steps=150),
        _discovered("start", 3, meta_steps=0, planned_meta_steps=300),
    ]
    assert common.evaluation([], rules, {}, CONFIG, {}).discoveries == {
        "2 discoveries (one, two)": ("one", "two")
    }


def test_rules_that_differ_in_their_seed_are_one_discovery(config):
    rules = [
        _discovered("one", 0),
        _discovered("two", 1),
        _discovered("again", 0),
        _discovered("long", 2, meta_steps=200),
        _discovered("without y", 3, y_cost=0.0),
    ]
    contenders = (*make_contenders([], config), *rules)
    label = "2 discoveries (one, two)"
    curves = {c.name: _curves([[2.0, 2.0], [2.0, 2.2]]) for c in contenders}
    curves["two"] = _curves([[3.0, 3.0], [3.0, 3.2]])
    evaluation = common.evaluation("ab", contenders, curves, config, _references("a", "b"))
    [compared] = evaluation.comparisons
    assert evaluation.discoveries == {label: ("one", "two")}
    found = compared.aggregates[label]["mean"]
    assert found.value == pytest.approx((0.525 + 1.025) / 2)
    assert found.low < 0.0 < 1.5 < found.high  # Two rules say little of the discovery.
    assert compared.improvement[label, "actor_critic"][:3] == pytest.approx((0.75, 0.0, 1.0))
    assert compared.differences[label, "actor_critic"].value == pytest.approx(0.25)
    table = score_table(evaluation, evaluation.ordered)
    assert table.contenders[-1] == label
    assert table.scores[0][1][-1].text == "2.500 ± 0.500"
    [row] = [x for x in aggregate_rows(evaluation, compared) if x["contender"] == label]
    assert row["P(better than actor_critic)"] == "0.75 [0.00, 1.00]"
    assert "P(better than random)" not in row

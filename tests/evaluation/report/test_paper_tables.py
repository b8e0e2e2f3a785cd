import numpy as np
import pytest

from environments.registry import members_of
from evaluation.contenders import make_contenders
from evaluation.report.paper_tables import task_table
from evaluation.results import Episodes, LearningCurves, RunResult
from tests.evaluation import common
from tests.evaluation.common import CONFIG

WORLD_MODELS = {
    "IRIS (Micheli et al. 2023)": 83.66,
    "TWM (Robine et al. 2023)": 19.996,
    "STORM (Zhang et al. 2023)": 15.9,
    "DreamerV3 (Hafner et al. 2023)": 31.0,
    "Δ-IRIS (Micheli et al. 2024)": 226.0,
    "DIAMOND (Alonso et al. 2024)": 132.48,
}


def _evaluation(tasks, score=1.0):
    """An evaluation of a random policy whose runs all have one score."""
    [contender] = [x for x in make_contenders([], CONFIG) if x.kind == "random"]
    points = len(CONFIG.intervals[0])
    run = RunResult(
        curve=Episodes(np.full(points, 1.0), np.full(points, score)),
        window=Episodes(np.ones(()), np.full((), score)),
        results={},
        is_finite=True,
        start_seconds=0.0,
        train_seconds=1.0,
        devices="cpu",
    )
    curves = LearningCurves.of([[run] * CONFIG.seeds for _ in tasks], CONFIG)
    return common.evaluation(tasks, [contender], {contender.name: curves}, CONFIG, {})


def _table(tasks, score=1.0):
    evaluation = _evaluation(tasks, score)
    table = task_table(evaluation)
    assert table is not None
    return table


def test_scores_of_world_models_stand_beside_ours():
    table = _table(members_of("atari100k"), score=16.1)
    [row] = [x for x in table.rows if x["task"] == "atari100k/Breakout"]
    assert float(row["random"]) == 16.1
    assert float(row["Random (papers)"]) == 1.7
    assert float(row["Human (papers)"]) == 30.5
    for name, score in WORLD_MODELS.items():
        assert float(row[name]) == pytest.approx(score, rel=1e-3), name


def test_means_over_all_tasks_are_human_normalised():
    *_, mean, median = _table(members_of("atari100k")).rows
    assert mean["task"] == "Human-normalised, mean over 26 tasks"
    assert float(mean["IRIS (Micheli et al. 2023)"]) == pytest.approx(1.046, abs=1e-3)
    assert float(mean["DIAMOND (Alonso et al. 2024)"]) == pytest.approx(1.459, abs=1e-3)
    assert (mean["Random (papers)"], mean["Human (papers)"]) == ("0", "1")
    assert float(median["TWM (Robine et al. 2023)"]) == pytest.approx(0.505, abs=1e-3)
    # One game of this agent is lost.
    assert mean["CURL (Hafner et al. 2023)"] == ""


def test_episodes_that_papers_score_are_named():
    scored_on = _table(["atari100k/Pong"]).scored_on
    assert "DreamerV3 (Hafner et al. 2023)" in scored_on["training episodes"]
    assert scored_on["20 evaluation episodes"] == ["STORM (Zhang et al. 2023)"]
    assert "DIAMOND (Alonso et al. 2024)" in scored_on["100 evaluation episodes"]
    assert "MuZero (Micheli et al. 2023)" in scored_on["episodes unknown to us"]


def test_one_task_has_no_mean():
    assert [row["task"] for row in _table(["atari100k/Pong"]).rows] == ["atari100k/Pong"]


def test_agents_of_several_budgets_have_them_in_their_names():
    [row] = _table(["crafter/reward"]).rows
    assert {"Disco57 1M (Oh et al. 2025)", "Disco57 20M (Oh et al. 2025)"} <= set(row)


def test_tasks_of_no_paper_have_no_table():
    assert task_table(_evaluation(["catch/8x8"])) is None

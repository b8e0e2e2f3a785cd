"""The files of evaluations whose results are made up."""

import csv
import dataclasses
import json

import pytest

import disco
import environments
from evaluation.contenders import make_contenders, rule_contenders
from evaluation.evaluate import Experiment, evaluate
from evaluation.report.tables import aggregate_rows
from tests.evaluation.common import CONFIG, write_runs


def test_tasks_without_reference_scores_have_no_aggregate(tmp_path):
    config = dataclasses.replace(CONFIG, seeds=1)
    tasks = [environments.make("catch/4x5"), environments.make("catch/6x5")]
    write_runs(tmp_path, config, tasks=tuple(tasks))
    written = evaluate(
        Experiment(tasks, config, tmp_path),
        make_contenders(rule_contenders(["grid57"], config), config),
    )
    assert written.evaluation.by_references is None
    assert not written.table.caption
    assert written.remarks == (
        "Left out of the means over tasks: catch/4x5, catch/6x5, because there is no reference"
        " score (launch.references makes them).",
    )
    results = json.loads((tmp_path / "results.json").read_text())
    for contender in results["contenders"].values():
        assert contender["normalized_curve"] is None
        assert contender["tasks_above_random"] is None
    assert not (tmp_path / "aggregate.png").exists()
    assert not (tmp_path / "aggregates.csv").exists()
    assert results["result"]["sentences"] == list(written.result)
    assert "no interval is known" in results["result"]["sentences"][0]


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, 5e-3),  # The zoo's rule says it.
        ({"rule_learning_rate": 0.5}, 0.5),
    ],
)
def test_learning_rates_are_those_by_which_somebody_learned(tmp_path, changes, own):
    config = dataclasses.replace(CONFIG, **changes)
    assert config.agent.learning_rate == 1e-3
    tasks = write_runs(tmp_path, config)
    evaluate(
        Experiment(tasks, config, tmp_path),
        make_contenders(rule_contenders(["grid57"], config), config),
    )
    results = json.loads((tmp_path / "results.json").read_text())
    contenders = results["contenders"]
    assert contenders["grid57"]["agent"]["learning_rate"] == own
    assert contenders["actor_critic"]["settings"]["agent"]["learning_rate"] == 3e-3


def test_the_settings_learning_rate_stands_where_a_rule_has_none_of_its_own(tmp_path):
    rule = tmp_path / "silent.npz"
    disco.save(disco.load("grid57"), rule)
    tasks = write_runs(tmp_path / "run", rule=str(rule))
    evaluate(
        Experiment(tasks, CONFIG, tmp_path / "run"),
        make_contenders(rule_contenders([str(rule)], CONFIG), CONFIG),
    )
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["contenders"]["silent"]["agent"]["learning_rate"] == 1e-3


def test_the_table_has_scores_and_aggregates(tmp_path):
    tasks = write_runs(tmp_path)
    written = evaluate(
        Experiment(tasks, CONFIG, tmp_path),
        make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG),
    )
    table, evaluation = written.table, written.evaluation
    order = ("grid57", "actor_critic", "policy_gradient", "random")
    assert table.contenders == order
    [(task, cells)] = table.scores
    assert task == "catch/5x5"
    assert [cell.text for cell in cells] == [f"{x}.050 ± 0.050" for x in (3, 1, 2, 0)]
    assert [cell.is_best for cell in cells] == [True, False, False, False]
    assert evaluation.by_references is not None
    rows = {x["contender"]: x for x in aggregate_rows(evaluation, evaluation.by_references)}
    assert [*rows["grid57"]] == [
        "contender",
        "IQM",
        "median",
        "mean capped at 1",
        "optimality gap",
        "mean",
        "IQM of the curve's area",
        "P(better than actor_critic)",
        "P(better than policy_gradient)",
        "best on tasks",
        "tasks above 1",
        "tasks above random",
    ]
    # Random scores -0.6, the optimum 1; the rule has 3 and 3.1: 2.28 plus and minus Student's
    # quantile with one degree of freedom, 12.7, times 0.03.
    assert rows["grid57"]["mean"] == "2.28 [1.89, 2.68]"
    better = [rows[name]["P(better than actor_critic)"] for name in order]
    assert better == ["1.00 [0.34, 1.00]", "", "", ""]
    above = [rows[name]["tasks above random"] for name in order]
    assert above == ["1 of 1", "1 of 1", "1 of 1", ""]
    assert "Tasks above random: by mean score, without a significance test." in table.caption
    assert written.remarks == ()
    assert "grid57 is ahead" in written.result[0]
    assert all(path.is_file() for path in written.files)


def test_without_reference_scores_the_caption_says_who_is_above_random(tmp_path):
    tasks = write_runs(tmp_path, tasks=(environments.make("catch/4x5"),))
    contenders = make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG)
    written = evaluate(Experiment(tasks, CONFIG, tmp_path), contenders)
    assert written.evaluation.by_references is None
    assert written.table.caption.endswith(
        " test. actor_critic 1 of 1, policy_gradient 1 of 1, grid57 1 of 1."
    )


def test_means_over_episodes_are_called_so(tmp_path):
    tasks = write_runs(tmp_path)
    evaluate(
        Experiment(tasks, CONFIG, tmp_path),
        make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG),
    )
    assert not (tmp_path / "episodes.csv").exists()
    with (tmp_path / "episode_means.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["result"] for row in rows} == {"length"}
    assert {float(row["mean"]) for row in rows} == {4.0}
    assert len(rows) == 4 * CONFIG.seeds

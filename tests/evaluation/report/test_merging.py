import dataclasses
import json

import numpy as np
import pytest

from evaluation import storage
from evaluation.contenders import RULE, STEPS_PER_UNROLL
from evaluation.report.stored import merge, read_manifest
from tests.evaluation.common import CONFIG, TASKS, result, write_evaluation


def test_an_evaluation_is_read_as_it_was_written(tmp_path):
    one = write_evaluation(tmp_path / "one")
    assert one.config == CONFIG
    assert one.tasks == TASKS
    names = [contender.name for contender in one.contenders]
    assert names == ["random", "actor_critic", "policy_gradient", "grid57"]
    [merged] = merge([one])
    assert merged.seeds == (0, 1)
    assert merged.missing == merged.problems == ()
    scores = merged.contender_curves["grid57"].window.mean_return
    assert scores.shape == (2, 2)
    np.testing.assert_allclose(scores, 3.0, atol=0.5)
    assert merged.contender_curves["grid57"].train_seconds == 4 * 2.0


def test_missing_and_damaged_runs_are_named_and_left_as_they_are(tmp_path):
    one = write_evaluation(tmp_path / "one", skip={("grid57", "catch/8x8", 1)})
    damaged = storage.run_path(tmp_path / "one", "random", "catch/5x5", 0) / "result.json"
    before = damaged.read_text().replace("2.0", "3.0", 1)
    damaged.write_text(before)
    [merged] = merge([one])
    assert merged.missing == (("random", "catch/5x5", 0), ("grid57", "catch/8x8", 1))
    assert [str(damaged) in problem for problem in merged.problems] == [True]
    assert damaged.read_text() == before
    np.testing.assert_array_equal(
        np.isnan(merged.contender_curves["grid57"].window.mean_return),
        [[False, False], [False, True]],
    )


def test_wall_seconds_are_of_the_runs_that_are_present(tmp_path):
    """Each took two seconds for its own number of steps."""
    one = write_evaluation(tmp_path / "one", skip={("grid57", "catch/8x8", 1)})
    contenders = [
        dataclasses.replace(x, source={**x.source, STEPS_PER_UNROLL: 60_000})
        if x.name == "random"
        else x
        for x in one.contenders
    ]
    [merged] = merge([dataclasses.replace(one, contenders=tuple(contenders))])
    seconds = merged.comparisons[0].seconds
    assert seconds["grid57"] == pytest.approx(2.0 / CONFIG.num_steps)
    assert seconds["random"] == pytest.approx(2.0 / 60_000)


def test_other_seeds_are_put_together(tmp_path):
    one = write_evaluation(tmp_path / "one")
    config = dataclasses.replace(CONFIG, seed=1, seeds=3)
    two = write_evaluation(tmp_path / "two", config, shift=1.0)
    [merged] = merge([one, two])
    assert merged.seeds == (0, 1, 2, 3)
    assert merged.config.seeds == 4
    assert len(merged.contenders) == 4
    assert merged.missing == ()
    # Seed 1 is there twice, with other results: the first counts.
    assert len(merged.problems) == 4 * len(TASKS)
    assert "seed 1" in merged.problems[0]
    assert "the first counts" in merged.problems[0]
    assert merged.folders["grid57", "catch/5x5", 1].is_relative_to(tmp_path / "one")


def test_the_same_results_twice_are_no_problem(tmp_path):
    one, two = (write_evaluation(tmp_path / name) for name in ("one", "two"))
    for evaluation in (one, two):  # A return that is not finite is unknown on disk.
        path = storage.run_path(evaluation.folder, "grid57", TASKS[0], 0)
        storage.save(path, result(float("nan")))
    [merged] = merge([one, two])
    assert merged.problems == ()
    assert merged.seeds == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"config": dataclasses.replace(CONFIG, budget=50_000)},
        {"config": dataclasses.replace(CONFIG, score_window=0.5)},
        {"tasks": TASKS[:1]},
    ],
)
def test_other_budgets_scores_and_tasks_stay_apart(tmp_path, other):
    one, two = write_evaluation(tmp_path / "one"), write_evaluation(tmp_path / "two", **other)
    assert [x.sources for x in merge([one, two])] == [(one,), (two,)]


def test_other_agents_of_the_same_name_are_told_apart(tmp_path):
    agent = dataclasses.replace(CONFIG.agent, weight_decay=0.1)
    one = write_evaluation(tmp_path / "one")
    two = write_evaluation(tmp_path / "two", dataclasses.replace(CONFIG, agent=agent))
    [merged] = merge([one, two])
    names = [contender.name for contender in merged.contenders]
    assert names[:4] == ["random", "actor_critic", "policy_gradient", "grid57"]
    assert names[4:] == ["grid57 (two)"]  # Baselines have settings of their own.


def test_rules_of_other_packages_are_the_same_that_older_versions_called_discovered(tmp_path):
    old, new = (write_evaluation(tmp_path / name) for name in ("old", "new"))
    contenders = tuple(
        dataclasses.replace(x, algorithm=RULE) if x.is_rule else x for x in new.contenders
    )
    [merged] = merge([old, dataclasses.replace(new, contenders=contenders)])
    assert [contender.name for contender in merged.contenders][3:] == ["grid57"]
    assert merged.problems == ()


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not the folder of an evaluation: manifest\.json"):
        read_manifest(tmp_path)
    write_evaluation(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    without = {**manifest, "contenders": manifest["contenders"][1:]}
    (tmp_path / "manifest.json").write_text(json.dumps(without))
    with pytest.raises(ValueError, match="its contenders lack 'random'"):
        merge([read_manifest(tmp_path)])
    manifest["config"]["seeds"] = 0
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="seeds is 0"):
        read_manifest(tmp_path)

"""Whole evaluations, of tiny agents on tiny tasks."""

import contextlib
import csv
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import disco
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders, rule_contenders
from evaluation.evaluate import Experiment, evaluate, tasks_of
from tests.evaluation import common

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=8, head=(8,)),
        learning_rate=1e-2,
        num_environments=3,
        unroll_length=5,
        batch_size=4,
        replay_ratio=0.25,
        replay_capacity=8,
    ),
    seeds=2,
    budget=15 * 30,
    baselines=("actor_critic",),
    num_points=4,
    resamples=50,
    updates_per_call=5,
)
NAMES = ["random", "actor_critic", "tiny"]


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "tiny.npz"
    sizes = disco.MetaNetworkSizes(
        prediction=4, prediction_embedding=4, action_hidden=4, trajectory=4, lifetime=4
    )
    rule = disco.DiscoveredRule.create(jax.random.key(0), sizes, num_bins=11, max_value=5.0)
    disco.save(rule, path, {"agent": {"learning_rate": 0.025}})
    return str(path)


@pytest.fixture(scope="module")
def tasks():
    return tasks_of(["catch/5x5", "deep_sea/5"])


@pytest.fixture(scope="module")
def folder(rule_file, tasks, tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation")
    contenders = make_contenders(rule_contenders([rule_file], CONFIG), CONFIG)
    evaluate(Experiment(tasks, CONFIG, path), contenders)
    return path


def _rows(folder, table, name):
    """The rows of a contender in a table."""
    with (folder / f"{table}.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["contender"] == name]


def _scores(folder, name):
    """What the results of a contender's runs say, but for their times."""
    paths = sorted((folder / "runs" / name).glob("*/*/result.json"))
    results = [json.loads(path.read_text()) for path in paths]
    return [[x[part] for part in ("curve", "window", "results", "is_finite")] for x in results]


def test_results_say_what_was_run(folder):
    results = json.loads((folder / "results.json").read_text())
    assert list(results["contenders"]) == NAMES
    assert results["environment_steps_per_run"] == 450
    assert "last 20% of 450 environment steps" in results["score"]
    tiny = results["contenders"]["tiny"]
    assert tiny["agent"]["learning_rate"] == 0.025
    assert tiny["source"]["learning_rate_from"] == "the rule file"
    assert tiny["source"]["header"]["provenance"] == {"agent": {"learning_rate": 0.025}}
    for name, contender in results["contenders"].items():
        whole_unrolls = 14 * 32 if name == "actor_critic" else 450
        assert contender["environment_steps_per_run"] == whole_unrolls
        curves = _rows(folder, "curves", name)
        for task in ("catch/5x5", "deep_sea/5"):
            # Episodes of 5 steps and one from each end to the next beginning, in 3 environments,
            # of actor-critic in one, in 14 whole unrolls of 32. The catch's ball falls 4 rows.
            length = {"catch/5x5": 5, "deep_sea/5": 6}[task]
            expected = 14 * 32 // length if name == "actor_critic" else 3 * (150 // length)
            for seed in {row["seed"] for row in curves}:
                own = [row for row in curves if (row["task"], row["seed"]) == (task, seed)]
                assert sum(int(row["episodes"]) for row in own) == expected
                if name == "tiny":
                    steps = [int(row["environment_steps"]) for row in own]
                    assert steps == [120, 225, 330, 450]


def test_table_and_plots(folder):
    with (folder / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["scale"] == "return"]
    assert list(dict.fromkeys(row["contender"] for row in rows)) == NAMES
    for task in ("catch/5x5", "deep_sea/5"):
        assert len([x for x in rows if (x["contender"], x["task"]) == ("tiny", task)]) == 2
    with (folder / "aggregates.csv").open() as file:
        assert {row["contender"] for row in csv.DictReader(file)} == set(NAMES)
    for name in ("curves", "aggregate"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (folder / f"{name}.svg").read_bytes()


def _files(folder):
    """Each result's file, which is another one if it was written again."""
    return {path: path.stat().st_ino for path in sorted(folder.glob("runs/*/*/*/result.json"))}


def test_finished_runs_are_not_trained_again(folder, rule_file, tasks):
    before, files = _scores(folder, "tiny"), _files(folder)
    assert len(files) == 12
    said = []
    contenders = make_contenders(rule_contenders([rule_file], CONFIG), CONFIG)
    evaluate(Experiment(tasks, CONFIG, folder, announce=said.append), contenders)
    assert said == ["12 of 12 runs are finished."]
    assert _scores(folder, "tiny") == before
    assert _files(folder) == files


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_kept_and_its_run_repeats_bit_for_bit(damage, folder, rule_file, tasks):
    before, files = _scores(folder, "tiny"), _files(folder)
    file = folder / "runs" / "tiny" / "catch_5x5" / "seed_1" / "result.json"
    good = file.read_text()
    bad = {"cut": good[:100], "changed": good.replace("1.0", "7.0", 1), "empty": "{}"}[damage]
    file.write_text(bad)
    said = []
    contenders = make_contenders(rule_contenders([rule_file], CONFIG), CONFIG)
    evaluate(Experiment(tasks, CONFIG, folder, announce=said.append), contenders)
    assert said == ["11 of 12 runs are finished."]
    assert _scores(folder, "tiny") == before
    assert file.with_suffix(".json.damaged").read_text() == bad
    assert {path for path, inode in _files(folder).items() if files[path] != inode} == {file}


class _StopsAfter:
    """A progress that interrupts an evaluation, or only notes the first update that it is told."""

    def __init__(self, updates: float):
        self._updates, self.first = updates, None

    @contextlib.contextmanager
    def __call__(self, title, units):
        del title, units
        yield self._show

    def _show(self, completed, numbers, doing):
        del numbers, doing
        self.first = self.first or completed
        if completed >= self._updates:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_runs_that_were_under_way_go_on_to_the_same_numbers(folder, rule_file, tasks, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0)
    contenders = make_contenders(rule_contenders([rule_file], config), config)
    # A job has both tasks of a contender with two seeds each, and 30 updates of each run.
    for stop in (4 * 15, 4 * (30 + 15)):
        with pytest.raises(KeyboardInterrupt):
            evaluate(
                Experiment(tasks, config, tmp_path, open_progress=_StopsAfter(stop)), contenders
            )
    assert any((tmp_path / "unfinished").iterdir())
    rest = _StopsAfter(np.inf)
    evaluate(Experiment(tasks, config, tmp_path, open_progress=rest), contenders)
    assert rest.first is not None
    assert rest.first > 4 * 5
    assert not (tmp_path / "unfinished").exists()
    for contender in contenders:
        found, expected = (_scores(x, contender.name) for x in (tmp_path, folder))
        assert found == expected


def test_other_tasks_and_batching_change_nothing(folder, rule_file, tasks, tmp_path):
    config = dataclasses.replace(CONFIG, updates_per_call=3)
    (contender,) = [
        c for c in make_contenders(rule_contenders([rule_file], config), config) if c.name == "tiny"
    ]
    alone = common.train(
        tasks_of(["catch/5x5"]), contender, dataclasses.replace(config, seeds=1), tmp_path
    )
    beside = common.load(folder, tasks, contender, config)
    np.testing.assert_array_equal(alone.curve.return_sum[0, 0], beside.curve.return_sum[0, 0])
    np.testing.assert_array_equal(alone.window.count[0, 0], beside.window.count[0, 0])


def test_actor_critic_learns_catch(tmp_path):
    config = EvaluationConfig(seeds=2, budget=20_000)
    scores = {
        c.kind: common.train(tasks_of(["catch/5x5"]), c, config, tmp_path).window.mean_return
        for c in make_contenders([], config)
        if c.kind in ("random", "actor_critic")
    }
    # The best is 1. A random walk ends below the ball in about 1 of 5.
    assert np.all(scores["random"] < -0.4)
    assert np.all(scores["actor_critic"] > 0.7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 14}, "budget is 14 environment steps; expected at least one update's 15"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"score_window": 0.0}, "score_window is 0.0; expected more than 0"),
    ],
)
def test_config_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_names_that_do_not_fit(rule_file, tmp_path):
    with pytest.raises(ValueError, match="'no_such_suite'"):
        tasks_of(["no_such_suite"])
    with pytest.raises(FileNotFoundError, match=r"'nowhere\.npz' does not exist"):
        make_contenders(rule_contenders(["nowhere.npz"], CONFIG), CONFIG)
    with pytest.raises(ValueError, match="also be called"):
        make_contenders(rule_contenders([rule_file, rule_file], CONFIG), CONFIG)
    copy = tmp_path / "tiny.npz"
    copy.write_bytes(pathlib.Path(rule_file).read_bytes())
    names = [
        c.name for c in make_contenders(rule_contenders([rule_file, str(copy)], CONFIG), CONFIG)
    ]
    assert len(set(names)) == 4
    assert names[-1] == f"{tmp_path.name}_tiny"


def test_learning_rate_of_a_rule(rule_file):
    config = dataclasses.replace(CONFIG, rule_learning_rate=0.5)
    assert rule_contenders([rule_file], config)[-1].agent.learning_rate == 0.5

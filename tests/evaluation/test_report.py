"""What an evaluation prints and writes, of made-up runs."""

import csv
import dataclasses
import json
import pathlib
import re

import pytest

import disco
import environments
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import evaluate
from evaluation.training import Run
from tests.environments.suites.test_sokoban import FIRST
from tests.evaluation.common import CONFIG, result

RULE = pathlib.Path(disco.__file__).parent / "zoo" / "grid57.npz"
NAMES = (r"a$\foo$", "mine[a]", "mine[/bold]", "_hidden", ":smile:", "a, b", "<b>")


def finished(
    folder: pathlib.Path,
    config: EvaluationConfig = CONFIG,
    tasks: tuple[environments.Environment, ...] = (),
    rule: str = "grid57",
) -> list[environments.Environment]:
    """An evaluation none of whose runs is missing; its tasks."""
    found = [*(tasks or [environments.make("catch/5x5")])]
    for level, contender in enumerate(make_contenders([rule], config)):
        for task in found:
            for index in range(config.seeds):
                score = level + 0.1 * index
                storage.save(folder, Run(contender, task, index), result(score, config))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_names_of_rules_and_files_end_nothing(name, tmp_path, monkeypatch, capsys):
    """Twice, as a command that is started again."""
    monkeypatch.chdir(tmp_path)
    rule, levels = tmp_path / f"{name}.npz", pathlib.Path(f"{name}.txt")
    levels.parent.mkdir(exist_ok=True)
    levels.write_text(FIRST)
    rule.write_bytes(RULE.read_bytes())
    task = environments.make(f"sokoban/file:{levels}")
    tasks = finished(tmp_path / "run", tasks=(task,), rule=str(rule))
    shown = pathlib.Path(rule).stem
    for _ in range(2):
        evaluate(tasks, make_contenders([str(rule)], CONFIG), CONFIG, tmp_path / "run")
        heading, row = re.findall(r"\n. task .*\n|\n. sokoban/.*\n", capsys.readouterr().out)
        assert f" {shown} " in heading
        assert f" sokoban/file:{name}.txt " in row
    with (tmp_path / "run" / "table.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][-2] == shown
    assert rows[1][0] == task.name


def test_names_with_control_characters_are_shown_with_escapes(tmp_path, capsys):
    task = dataclasses.replace(environments.make("catch/5x5"), name="catch/\x1b[31m\udcff\n")
    tasks = finished(tmp_path, tasks=(task,))
    evaluate(tasks, make_contenders(["grid57"], CONFIG), CONFIG, tmp_path)
    output = capsys.readouterr().out
    assert r"catch/\x1b[31m\udcff\n" in output
    assert "\x1b" not in output
    assert json.loads((tmp_path / "results.json").read_text())["tasks"] == [task.name]
    assert "\\udcff" in (tmp_path / "table.csv").read_text()


def test_one_seed_tells_nobody_apart(tmp_path, capsys):
    config = dataclasses.replace(CONFIG, seeds=1)
    tasks = [environments.make("catch/5x5"), environments.make("catch/8x8")]
    finished(tmp_path, config, tasks=tuple(tasks))
    summary = evaluate(tasks, make_contenders(["grid57"], config), config, tmp_path)
    assert not summary.aggregate
    output = capsys.readouterr().out
    assert "ormalised" not in output
    assert "above random" not in output
    assert (
        "Left out of the means over tasks: catch/5x5, catch/8x8, because a single run of the best"
        " baseline or of the random policy cannot tell these two apart; expected at least two seeds"
    ) in output
    results = json.loads((tmp_path / "results.json").read_text())
    for contender in results["contenders"].values():
        assert contender["mean_normalized_score"] is None
        assert contender["tasks_above_random"] is None
    assert not (tmp_path / "aggregate.png").exists()


@pytest.mark.parametrize(
    ("changes", "own", "shared"),
    [
        ({}, 5e-3, None),  # The zoo's rule says it.
        ({"rule_learning_rate": 0.5}, 0.5, None),
    ],
)
def test_learning_rates_are_those_by_which_somebody_learned(tmp_path, changes, own, shared):
    config = dataclasses.replace(CONFIG, **changes)
    assert config.agent.learning_rate == 1e-3
    tasks = finished(tmp_path, config)
    evaluate(tasks, make_contenders(["grid57"], config), config, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    rates = {name: x["agent"]["learning_rate"] for name, x in results["contenders"].items()}
    assert rates == {
        "random": None,
        "actor_critic@0.001": 1e-3,
        "policy_gradient@0.001": 1e-3,
        "grid57": own,
    }
    assert results["config"]["agent"]["learning_rate"] == shared
    assert results["config"]["baseline_learning_rates"] == [1e-3]


def test_the_settings_learning_rate_stands_where_a_rule_has_none_of_its_own(tmp_path):
    rule = tmp_path / "silent.npz"
    disco.save(disco.load("grid57"), rule)
    tasks = finished(tmp_path / "run", rule=str(rule))
    evaluate(tasks, make_contenders([str(rule)], CONFIG), CONFIG, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["contenders"]["silent"]["agent"]["learning_rate"] == 1e-3
    assert results["config"]["agent"]["learning_rate"] == 1e-3


def test_means_over_episodes_are_called_so(tmp_path):
    tasks = finished(tmp_path)
    evaluate(tasks, make_contenders(["grid57"], CONFIG), CONFIG, tmp_path)
    assert not (tmp_path / "episodes.csv").exists()
    with (tmp_path / "episode_means.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["result"] for row in rows} == {"length"}
    assert {row["mean over episodes"] for row in rows} == {"4"}
    assert len(rows) == 4

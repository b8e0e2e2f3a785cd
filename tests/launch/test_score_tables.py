"""What is printed of a finished evaluation whose results are made up."""

import csv
import dataclasses
import json
import pathlib
import re

import pytest

import disco
import environments
from evaluation.contenders import make_contenders, rule_contenders
from evaluation.evaluate import Experiment, evaluate
from launch.support.display import print_evaluation
from tests.environments.suites.test_sokoban import FIRST
from tests.evaluation.common import CONFIG, write_runs

RULE = pathlib.Path(disco.__file__).parent / "zoo" / "grid57.npz"
NAMES = (r"a$\foo$", "mine[a]", "mine[/bold]", "_hidden", ":smile:", "a, b", "<b>")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_rules_and_files_end_nothing(name, tmp_path, monkeypatch, capsys):
    """Twice, as a command that is started again."""
    monkeypatch.chdir(tmp_path)
    rule, levels = tmp_path / f"{name}.npz", pathlib.Path(f"{name}.txt")
    levels.parent.mkdir(exist_ok=True)
    levels.write_text(FIRST)
    rule.write_bytes(RULE.read_bytes())
    task = environments.make(f"sokoban/file:{levels}")
    tasks = write_runs(tmp_path / "run", tasks=(task,), rule=str(rule))
    shown = pathlib.Path(rule).stem
    for _ in range(2):
        contenders = make_contenders(rule_contenders([str(rule)], CONFIG), CONFIG)
        print_evaluation(evaluate(Experiment(tasks, CONFIG, tmp_path / "run"), contenders))
        heading, row = re.findall(r"\n. task .*\n|\n. sokoban/.*\n", capsys.readouterr().out)
        assert f" {shown} " in heading
        assert f" sokoban/file:{name}.txt " in row
    with (tmp_path / "run" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert shown in {row["contender"] for row in rows}
    assert {row["task"] for row in rows} == {task.name}


def test_names_with_control_characters_are_shown_with_escapes(tmp_path, capsys):
    task = dataclasses.replace(environments.make("catch/5x5"), name="catch/\x1b[31m\udcff\n")
    tasks = write_runs(tmp_path, tasks=(task,))
    print_evaluation(
        evaluate(
            Experiment(tasks, CONFIG, tmp_path),
            make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG),
        )
    )
    output = capsys.readouterr().out
    assert r"catch/\x1b[31m\udcff\n" in output
    assert "\x1b" not in output
    assert json.loads((tmp_path / "results.json").read_text())["tasks"] == [task.name]
    assert "\\udcff" in (tmp_path / "scores.csv").read_text()


def test_the_result_is_said(tmp_path, capsys):
    tasks = write_runs(tmp_path)
    print_evaluation(
        evaluate(
            Experiment(tasks, CONFIG, tmp_path),
            make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG),
        )
    )
    output = capsys.readouterr().out
    said = json.loads((tmp_path / "results.json").read_text())["result"]["sentences"]
    assert said[0].startswith("On catch/5x5 with 2 seeds, grid57 is ahead of the 2 other")
    assert " ".join(said) in output


def test_one_seed_has_no_intervals_and_claims_no_place_above_random(tmp_path, capsys):
    config = dataclasses.replace(CONFIG, seeds=1)
    tasks = write_runs(tmp_path, config)
    print_evaluation(
        evaluate(
            Experiment(tasks, config, tmp_path),
            make_contenders(rule_contenders(["grid57"], config), config),
        )
    )
    output = capsys.readouterr().out
    assert "IQM" not in output
    assert "One seed: no intervals, and no means over tasks." in output
    assert "On catch/5x5 with one seed, no interval is known" in output
    assert "above random" not in output
    assert f"Written: {tmp_path / 'results.json'}, " in output

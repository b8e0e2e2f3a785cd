"""What the commands that look at finished runs refuse."""

import json
import shutil

import pytest

from launch import report
from launch.support import discovery_rules
from tests.evaluation.common import DISCOVERY, write_evaluation


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    write_evaluation(folder)
    return folder


def test_nothing_to_report(tmp_path):
    with pytest.raises(ValueError, match="--runs is empty; expected workdirs"):
        report.write([], str(tmp_path / "report"), "")
    with pytest.raises(ValueError, match="nowhere' is not a folder; expected a workdir"):
        report.write([str(tmp_path / "nowhere")], str(tmp_path / "report"), "")
    assert not (tmp_path / "report").exists()


def test_a_folder_that_is_no_workdir(tmp_path):
    with pytest.raises(ValueError, match=r"is not the folder of an evaluation: manifest\.json"):
        report.write([str(tmp_path)], str(tmp_path / "report"), "")


def test_an_evaluation_without_a_finished_run(evaluation, tmp_path):
    folder = tmp_path / "none"
    shutil.copytree(evaluation, folder)
    shutil.rmtree(folder / "runs")
    with pytest.raises(ValueError, match="none has no finished run; expected at least one"):
        report.write([str(folder)], str(tmp_path / "report"), "")


def test_an_evaluation_whose_runs_are_all_damaged(evaluation, tmp_path):
    folder = tmp_path / "none"
    shutil.copytree(evaluation, folder)
    for path in folder.rglob("result.json"):
        path.write_text("{")
    with pytest.raises(ValueError, match=r"no finished run that can be read: .*is damaged"):
        report.write([str(folder)], str(tmp_path / "report"), "")


def test_the_same_folder_twice_counts_once_and_a_discovery_stands_beside(evaluation, tmp_path):
    discovery = tmp_path / "mine"
    discovery.mkdir()
    config, lines = DISCOVERY.config, DISCOVERY.metrics
    (discovery / "config.json").write_text(json.dumps(config))
    (discovery / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    runs = [str(evaluation), str(discovery), str(evaluation)]
    files = report.write(runs, str(tmp_path / "report"), "Both")
    text = (tmp_path / "report" / "index.html").read_text()
    assert "Discovery: mine" in text
    assert "the first counts" not in text
    assert tmp_path / "report" / "mine_discovery.png" in files


def _discovery(folder, *lines: str) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DISCOVERY.config))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize("damaged", ['{"meta_step": 15, "meta_ret', "{}", "null", "\\xff"])
def test_damaged_lines_of_a_discovery_are_named_in_the_report(tmp_path, damaged):
    good = [json.dumps(x) for x in DISCOVERY.metrics]
    _discovery(tmp_path / "mine", good[0], damaged, good[1], good[2][:40])
    report.write([str(tmp_path / "mine")], str(tmp_path / "report"), "")
    text = (tmp_path / "report" / "index.html").read_text()
    assert "2 lines of metrics.jsonl are left out." in text
    for line in (2, 4):
        assert f"Line {line} of {tmp_path / 'mine' / 'metrics.jsonl'} is damaged: " in text
    assert "<td>20</td>" in text  # Of the last whole one.


def test_a_discovery_all_of_whose_lines_are_damaged(tmp_path):
    _discovery(tmp_path / "mine", "{}")
    message = r"has no report that can be read: Line 1 of .* is damaged: .*; expected at least one"
    with pytest.raises(ValueError, match=message):
        report.write([str(tmp_path / "mine")], str(tmp_path / "report"), "")


def test_a_discovery_whose_config_is_damaged(tmp_path):
    _discovery(tmp_path / "mine", *map(json.dumps, DISCOVERY.metrics))
    (tmp_path / "mine" / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json is damaged: it has a list; exp"):
        report.write([str(tmp_path / "mine")], str(tmp_path / "report"), "")


def test_a_discovery_without_a_report(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match=r"metrics\.jsonl has no report; expected at least one"):
        report.write([str(tmp_path)], str(tmp_path / "report"), "")


def test_a_card_needs_evaluations(tmp_path):
    with pytest.raises(ValueError, match="is not the workdir of a discovery run"):
        discovery_rules.export(
            str(tmp_path), str(tmp_path / "rule.npz"), evaluations=[str(tmp_path)]
        )

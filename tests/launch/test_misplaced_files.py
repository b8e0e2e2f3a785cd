"""Pipes, devices, links to them, and files of impossible sizes in place of those of a workdir."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import disco
from disco_common.checkpoints import Checkpoints
from evaluation import storage, tuned_settings
from evaluation.report.discoveries import PROBES, SCORE, read_probes
from evaluation.scoring import references
from launch import report
from launch.support import commands, workdirs
from launch.support.command_flags import parse_config
from tests.common import at_once, misplaced
from tests.environments.suites import boxoban
from tests.evaluation.common import DISCOVERY, write_evaluation
from training import records

KINDS = ("pipe", "link to a pipe", "/dev/zero", "huge")
STATE = {"w": np.arange(3.0)}


@pytest.fixture(autouse=True)
def _quick():
    with at_once(120):
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_evaluation(folder / "evaluation")
    run = folder / "discovery"
    (run / PROBES / "00000001").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(DISCOVERY.config))
    lines = "".join(json.dumps(x) + "\n" for x in DISCOVERY.metrics)
    (run / "metrics.jsonl").write_text(lines)
    return folder


@dataclasses.dataclass(frozen=True)
class Settings:
    seed: int = 0


# Of each file: what reads it.
READERS = {
    "evaluation/manifest.json": lambda path: report.write([str(path.parent)], f"{path}.html", ""),
    "discovery/config.json": lambda path: report.write([str(path.parent)], f"{path}.html", ""),
    "discovery/metrics.jsonl": lambda path: report.write([str(path.parent)], f"{path}.html", ""),
    f"discovery/{PROBES}/00000001/{SCORE}": lambda path: read_probes(path.parents[2]),
    "settings/config.json": lambda path: workdirs.require_same_settings(path.parent, Settings()),
    "settings/sources.json": lambda path: workdirs.require_same_settings(path.parent, Settings()),
    "settings/.lock": lambda path: workdirs.locked(path.parent).__enter__(),
    "tuned.json": tuned_settings.read,
    "workdir/tuned.json": lambda path: tuned_settings.find("shipped", path.parent),
    "references.json": references.read,
    "rule.npz": disco.load,
    "agent.npz": lambda path: records.load_agent(path.parent, STATE),
    "levels.txt": boxoban.read,
    "settings.py": lambda path: parse_config([f"--config={path}"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_it_is_refused_by_name(runs, tmp_path, name, kind):
    folder = tmp_path / "copy"
    shutil.copytree(runs, folder)
    (folder / name).parent.mkdir(exist_ok=True)
    path = misplaced(folder / name, kind)
    with pytest.raises((OSError, ValueError)) as caught:
        READERS[name](path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_of_a_report_is_named(runs, tmp_path, kind):
    folder = tmp_path / "copy"
    shutil.copytree(runs / "evaluation", folder)
    first, *_ = sorted(folder.rglob("result.json"))
    left_out = [misplaced(path, kind) for path in (first, folder / storage.REFERENCES)]
    for name in ("prediction.png", "film.gif", "metrics.jsonl", "episodes.jsonl"):
        misplaced(first.parent / name, kind)
    report.write([str(folder)], str(tmp_path / "report"), "")
    page = (tmp_path / "report" / "index.html").read_text()
    assert all(str(path) in page for path in left_out)


@pytest.mark.parametrize("kind", KINDS)
def test_notes_that_cannot_be_read_are_said(tmp_path, kind, caplog, capsys, monkeypatch):
    for name in (commands.ARGUMENTS, workdirs.VERSION, ".lock.json"):
        misplaced(tmp_path / name, kind)
    (tmp_path / workdirs.CONFIG).write_text('{"seed": 0}')
    monkeypatch.setattr("sys.argv", ["-m", f"--workdir={tmp_path}"])
    assert commands._known_arguments("launch.discover") == []
    assert f"{tmp_path / commands.ARGUMENTS} is ignored: " in capsys.readouterr().err
    with workdirs.opened(tmp_path, Settings()):
        pass
    assert f"was made by version (unknown: {tmp_path / workdirs.VERSION}" in caplog.text
    assert "unknown process (.lock.json is missing or damaged)" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_would_be_waited_for_is_passed_over(tmp_path, kind):
    written = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2):
        written.save(step, STATE)
        written.wait()
    written.close()
    for path in sorted((tmp_path / "checkpoints" / "2").rglob("*META*")):
        misplaced(path, kind)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    found = checkpoints.restore(jax.tree.map(np.zeros_like, STATE))
    checkpoints.close()
    assert found is not None
    step, state = found
    assert step == 1
    np.testing.assert_array_equal(state["w"], STATE["w"])

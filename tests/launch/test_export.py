"""The command that exports a rule: what it refuses. `test_discover` exports a run's rule."""

import dataclasses
import json
import pathlib

import pytest

import disco
from evaluation.rules import fingerprint
from launch.support.discoveries import discover
from launch.support.discovery_config import make_rule
from launch.support.discovery_rules import export, kept_rule, rule_provenance
from tests.launch.common import outcomes
from tests.launch.discover_tiny import get_settings


def test_folder_that_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="is not the workdir of a discovery run"):
        export(str(tmp_path / "none"), str(tmp_path / "rule.npz"))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"x":' * 900 + b"1" + b"}" * 900),
        *(b'{"meta": 7}', b'{"no_such_field": 1}', b'{"a.b": 1}', b'{"seed": "x"}'),
    ],
)
def test_config_that_is_damaged(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"is not the workdir of a discovery run: .*config\.json"):
        export(str(tmp_path), str(tmp_path / "rule.npz"))


def test_run_without_a_rule(tmp_path):
    # Of a machine with more devices than this one.
    settings = dataclasses.replace(get_settings(), devices_per_agent=64)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    output = tmp_path / "rule.npz"
    arguments = [f"--workdir={tmp_path}", f"--output={output}"]
    ((status, said),) = outcomes("launch.export", {"empty": arguments}).values()
    assert status == 2
    assert f"launch.export: '{tmp_path}' has no rule yet" in said
    assert "Traceback" not in said
    assert not output.exists()


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    """Of a run on environments that this machine does not have, which goes on."""
    settings = dataclasses.replace(get_settings(), suite="not_installed/here,minecraft/diamond")
    workdir = tmp_path / "run"
    (workdir / "rules").mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    for step in (2, 4):
        made = rule_provenance(settings, step, {"minecraft/diamond": 10 * step, "a/1": 0})
        disco.save(make_rule(settings), kept_rule(workdir, step), made)
    return workdir


def test_reads_nothing_but_the_rule_and_changes_nothing(workdir, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (workdir, *workdir.rglob("*"))}
    provenance = export(str(workdir), str(tmp_path / "rule.npz"))
    settings = get_settings()
    assert fingerprint(disco.load(tmp_path / "rule.npz")) == fingerprint(make_rule(settings))
    assert provenance["meta_steps"] == 4
    assert provenance["environment_steps"] == 40
    assert provenance["tasks"] == {"minecraft/diamond": 40}
    assert provenance["environments"] == "not_installed/here,minecraft/diamond"
    assert provenance == disco.load_header(tmp_path / "rule.npz")["provenance"]
    assert export(str(workdir), str(tmp_path / "rule.npz"), meta_step=2)["meta_steps"] == 2
    assert {path: path.stat().st_mtime_ns for path in (workdir, *workdir.rglob("*"))} == before


def test_a_damaged_rule_is_passed_over_and_named(workdir, tmp_path, caplog):
    kept_rule(workdir, 4).write_bytes(b"")
    assert export(str(workdir), str(tmp_path / "rule.npz"))["meta_steps"] == 2
    assert "rules/00000004.npz" in caplog.text
    with pytest.raises(disco.RuleFileError, match=r"rules/00000004\.npz"):
        export(str(workdir), str(tmp_path / "rule.npz"), meta_step=4)
    with pytest.raises(ValueError, match=r"no rule of meta-step 3; it has 2, of 2 to 4\."):
        export(str(workdir), str(tmp_path / "rule.npz"), meta_step=3)


def test_the_rule_of_a_deleted_checkpoint_is_kept(tmp_path):
    settings = dataclasses.replace(
        get_settings(), meta_steps=3, checkpoint_interval=1, checkpoints_kept=1
    )
    workdir = tmp_path / "run"
    discover(settings, str(workdir))
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["3"]
    rules = {step: tmp_path / f"{step}.npz" for step in (1, 2, 3)}
    for step, file in rules.items():
        assert export(str(workdir), str(file), meta_step=step)["meta_steps"] == step
    assert len({fingerprint(disco.load(file)) for file in rules.values()}) == 3
    # Meta-step 0 has the rule that the run started from, for agents with the same settings.
    first = export(str(workdir), str(tmp_path / "0.npz"), meta_step=0)
    assert first["agent"] == disco.load_header(rules[3])["provenance"]["agent"]
    assert (first["meta_steps"], first["environment_steps"]) == (0, 0)
    assert fingerprint(disco.load(tmp_path / "0.npz")) == fingerprint(make_rule(settings))

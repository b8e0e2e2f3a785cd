"""The command that exports a rule: what it refuses. `test_discover` exports a run's rule."""

import contextlib
import dataclasses
import json
import pathlib

import numpy as np
import pytest

import disco
from disco_common.checkpoints import CheckpointError, Checkpoints
from evaluation.rules import fingerprint
from launch.support.discoveries import discover
from launch.support.rules import export
from launch.support.settings import make_rule
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


def test_run_without_checkpoint(tmp_path):
    # Of a machine with more devices than this one.
    settings = dataclasses.replace(get_settings(), devices_per_agent=64)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    output = tmp_path / "rule.npz"
    arguments = [f"--workdir={tmp_path}", f"--output={output}"]
    ((status, said),) = outcomes("launch.export", {"empty": arguments}).values()
    assert status == 2
    assert f"launch.export: '{tmp_path}' has no checkpoint yet." in said
    assert "Traceback" not in said
    assert not output.exists()


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    """Of a run on environments that this machine does not have, by code with another state."""
    settings = dataclasses.replace(get_settings(), suite="not_installed/here,minecraft/diamond")
    workdir, rule = tmp_path / "run", make_rule(settings)
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        for step in (2, 4):
            checkpoints.save(step, {"average": rule, "other": np.full(3, step)})
    (workdir / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir()
    return workdir


def test_reads_nothing_but_the_rule_and_changes_nothing(workdir, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (workdir, *workdir.rglob("*"))}
    provenance = export(str(workdir), str(tmp_path / "rule.npz"))
    settings = get_settings()
    assert fingerprint(disco.load(tmp_path / "rule.npz")) == fingerprint(make_rule(settings))
    assert provenance["meta_steps"] == 4
    steps = settings.meta.num_updates * settings.agent.steps_per_update
    assert provenance["environment_steps"] == 4 * steps * settings.population.size
    assert provenance["environments"] == "not_installed/here,minecraft/diamond"
    assert provenance == disco.load_header(tmp_path / "rule.npz")["provenance"]
    assert export(str(workdir), str(tmp_path / "rule.npz"), meta_step=2)["meta_steps"] == 2
    assert {path: path.stat().st_mtime_ns for path in (workdir, *workdir.rglob("*"))} == before


def test_damaged_checkpoint_is_left_where_it_is(workdir, tmp_path, caplog):
    newest = workdir / "checkpoints" / "4"
    for file in (newest / "state").rglob("d/*"):
        file.write_bytes(b"")
    assert export(str(workdir), str(tmp_path / "rule.npz"))["meta_steps"] == 2
    assert f"Checkpoint {newest} is damaged" in caplog.text
    with pytest.raises(CheckpointError, match=f"Checkpoint {newest} is damaged: "):
        export(str(workdir), str(tmp_path / "rule.npz"), meta_step=4)
    assert newest.is_dir()
    assert not (workdir / "damaged").exists()


def test_run_that_this_code_cannot_continue_can_still_be_exported(workdir, tmp_path):
    """To try to changes nothing that the export reads."""
    settings = get_settings()
    (workdir / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    with pytest.raises(CheckpointError, match="is of another kind of run: it differs in"):
        discover(settings, str(workdir))
    assert export(str(workdir), str(tmp_path / "rule.npz"))["meta_steps"] == 4


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
    # It is the rule of the checkpoint.
    (workdir / "rules" / "00000003.npz").unlink()
    export(str(workdir), str(tmp_path / "again.npz"), meta_step=3)
    assert fingerprint(disco.load(tmp_path / "again.npz")) == fingerprint(disco.load(rules[3]))


def test_experience_on_each_task_is_read_from_checkpoints(workdir, tmp_path):
    (workdir / "tasks.json").write_text(json.dumps([["minecraft/diamond"], ["a/1", "a/2"]]))
    rule, counts = make_rule(get_settings()), [np.array([3]), np.array([0, 5])]
    with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
        counts = [count.astype(np.int32) for count in counts]
        checkpoints.save(6, {"average": rule, "task_meta_steps": counts, "other": np.zeros(3)})
    settings = get_settings()
    steps = settings.meta.num_updates * settings.agent.steps_per_update
    for meta_step in (None, 6):
        provenance = export(str(workdir), str(tmp_path / "rule.npz"), meta_step=meta_step)
        assert provenance["tasks"] == {"minecraft/diamond": 3 * steps, "a/2": 5 * steps}

"""The command that discovers: what it refuses, and how it goes on after it was stopped."""

import dataclasses
import json
import pathlib
import resource
import shutil
import signal

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import disco
from launch.support.discoveries import discover
from launch.support.discovery_rules import export
from tests.launch.common import TINY, outcome, outcomes
from tests.launch.discover_tiny import META_STEPS, get_settings
from tests.launch.tiny_runs import (
    final_state,
    metrics,
    start_tiny,
    steps_logged,
    unfinished_checkpoints,
    wait_until,
    without_timings,
)
from tests.meta.common import STEPS

# Refused before anything is compiled.
REFUSED = {
    "field": (["--config.no_such_field=1"], "no field 'no_such_field'. --print_config lists"),
    "value": (["--config.meta_steps=many"], "--config.meta_steps=many: invalid literal"),
    "type": (["--config.agent.network.torso=(8, 'x')"], "torso is (8, 'x'); expected tuple[int"),
    "range": (["--config.agent.replay_ratio=2.0"], "replay_ratio is 2.0; expected 0 to 1"),
    "suite": (["--config.suite=grid75"], "There is no suite or environment 'grid75'. Near it"),
    "rule": (["--config.rule.start=nowhere.npz"], "'nowhere.npz' does not exist"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    cases = {
        name: [f"--workdir={folder / name}", TINY, *arguments]
        for name, (arguments, _) in REFUSED.items()
    }
    return folder, outcomes("launch.discover", cases)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_sentence(refusals, name):
    folder, found = refusals
    status, output = found[name]
    assert status == (1 if name == "value" else 2)  # absl's own status for a value is 1.
    assert REFUSED[name][1] in output
    assert "Traceback" not in output
    assert not (folder / name).exists()


def test_workdir_of_another_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"seed": 7, "suite": "grid57"}))
    with pytest.raises(ValueError, match="seed is 7 there and 0 here; suite is 'grid57' there"):
        discover(get_settings(), str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 7


def test_workdir_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"Workdir '.*/file/run' cannot be used: .*Not a direct"):
        discover(get_settings(), str(tmp_path / "file" / "run"))
    (tmp_path / "checkpoints").touch()
    with pytest.raises(OSError, match=r"Cannot write checkpoints in .*checkpoints"):
        discover(get_settings(), str(tmp_path))


# Resuming.


@pytest.fixture(scope="module")
def launch_tiny(tmp_path_factory):
    """Starts a tiny discovery. Only the first of them has to compile it."""
    cache = tmp_path_factory.mktemp("compiled")
    return lambda workdir, *arguments: start_tiny(workdir, *arguments, compiled=cache)


@pytest.fixture(scope="module")
def uninterrupted(launch_tiny, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("uninterrupted")
    status, output = outcome(launch_tiny(workdir))
    assert status == 0, output
    assert f"Discovered: {META_STEPS} meta-steps" in output
    return workdir


def test_curves_are_drawn(uninterrupted):
    curves = (uninterrupted / "curves.png").read_bytes()
    assert curves.startswith(b"\x89PNG")
    assert len(curves) > 10_000


def test_each_metric_has_a_group_in_tensorboard(uninterrupted):
    events = EventAccumulator(str(uninterrupted / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    groups = {tag.partition("/")[0] for tag in tags}
    assert groups == {"agent", "meta", "run", "score", "validation_reward"}
    assert "validation_reward/catch/4x3" in tags


@pytest.mark.slow
def test_stopped_run_goes_on_to_the_same_rule(launch_tiny, uninterrupted, tmp_path):
    """SIGKILL during a checkpoint's write, SIGTERM, damage."""
    process = launch_tiny(tmp_path)
    wait_until(process, lambda: steps_logged(tmp_path) > 2 and unfinished_checkpoints(tmp_path))
    process.kill()
    status, output = outcome(process)
    assert status == -signal.SIGKILL, output
    assert unfinished_checkpoints(tmp_path)

    logged = steps_logged(tmp_path)
    process = launch_tiny(tmp_path)
    wait_until(process, lambda: steps_logged(tmp_path) > logged)
    process.terminate()
    status, output = outcome(process)
    assert status == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    stopped_at, _ = final_state(tmp_path)
    assert logged < stopped_at < META_STEPS
    assert metrics(tmp_path)[-1]["meta_step"] == stopped_at

    newest = tmp_path / "checkpoints" / str(stopped_at)
    for file in newest.rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-100])
    status, output = outcome(launch_tiny(tmp_path))
    assert status == 0, output
    assert f"Checkpoint {newest} is damaged" in output
    assert (tmp_path / "damaged" / str(stopped_at)).is_dir()
    (step, state), (expected_step, expected) = final_state(tmp_path), final_state(uninterrupted)
    assert step == expected_step == META_STEPS
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert without_timings(tmp_path) == without_timings(uninterrupted)


@pytest.mark.slow
def test_full_disk_while_checkpointing(launch_tiny, uninterrupted, tmp_path):
    """No file may grow beyond 16 kB, which is what a full disk feels like."""
    workdir = shutil.copytree(uninterrupted, tmp_path / "run")
    process = launch_tiny(
        workdir,
        "--config.meta_steps=60",
        "--config.checkpoint_interval=1",
        "--config.log_interval=60",
    )
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
    status, output = outcome(process)
    assert status == 2, output
    assert f"launch.discover: Cannot write a checkpoint in {workdir / 'checkpoints'}" in output
    assert "Traceback" not in output
    step, state = final_state(workdir)
    assert step == META_STEPS
    jax.tree.map(np.testing.assert_array_equal, state, final_state(uninterrupted)[1])
    assert steps_logged(workdir) == META_STEPS


def test_finished_run_has_nothing_to_do(uninterrupted, tmp_path):
    """Nothing is compiled: this takes no time."""
    workdir = shutil.copytree(uninterrupted, tmp_path / "run")
    discover(get_settings(), str(workdir))
    assert without_timings(workdir) == without_timings(uninterrupted)
    assert final_state(workdir)[0] == META_STEPS


# Export.


def test_export(uninterrupted, tmp_path):
    file = tmp_path / "rule.npz"
    export(str(uninterrupted), str(file))

    rule = disco.load(file)
    _, state = final_state(uninterrupted)
    jax.tree.map(np.testing.assert_array_equal, rule, state.average)
    assert rule == dataclasses.replace(state.average, parameters=rule.parameters)
    provenance = disco.load_header(file)["provenance"]
    settings = get_settings()
    assert provenance["environments"] == "catch/4x3"
    assert provenance["seed"] == settings.seed
    assert provenance["meta_steps"] == META_STEPS
    assert provenance["environment_steps"] == META_STEPS * STEPS * settings.population.size
    assert provenance["tasks"] == {"catch/4x3": provenance["environment_steps"]}
    assert provenance["code_version"]
    assert provenance["population"]["lifetimes"] == list(settings.population.lifetimes)


def test_export_of_an_older_checkpoint(uninterrupted, tmp_path):
    newest, older = tmp_path / "newest.npz", tmp_path / "older.npz"
    export(str(uninterrupted), str(newest))
    provenance = export(str(uninterrupted), str(older), meta_step=META_STEPS - 2)
    assert provenance["meta_steps"] == META_STEPS - 2
    leaves = [jax.tree.leaves(disco.load(file)) for file in (newest, older)]
    assert any(np.any(a != b) for a, b in zip(*leaves, strict=True))
    with pytest.raises(ValueError, match=r"has no rule of meta-step 999; it has \d+, of 2 to"):
        export(str(uninterrupted), str(older), meta_step=999)

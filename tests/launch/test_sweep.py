"""The command that discovers with several settings."""

import csv
import json
import signal
import time

import pytest

from disco_common import compilation
from launch.support import sweeps
from launch.support.sweeps import is_finished, make_points
from tests.evaluation.common import DISCOVERY
from tests.launch import wandb_files
from tests.launch.common import TINY, outcome, outcomes, start

META_STEPS = 6
POINTS = ("seed=0", "seed=1")


@pytest.mark.parametrize(
    ("variations", "message"),
    [
        (["config.no_such_field=1"], r"=1: .*no field 'no_such_field'\. --print_config"),
        (["config.seed=0,many"], "config.seed=many: invalid literal"),
        (["config.agent.replay_ratio=0.5,2.0"], "replay_ratio is 2.0; expected 0 to 1"),
        (["config.suite=catch,grid75"], "There is no suite or environment 'grid75'"),
        (["seed=1"], "--vary=seed=1 is malformed; expected config.FIELD=VALUE"),
        (["config.seed="], "--vary=config.seed= is malformed"),
        (["config.seed=1,1"], "--vary gives seed=1 twice"),
        (["config.seed=1", "config.seed=2"], "--vary names config.seed twice"),
    ],
)
def test_refused_naming_the_flag(variations, message):
    with pytest.raises(ValueError, match=message):
        make_points([TINY], variations)


def test_refused_in_a_sentence_before_anything_starts(tmp_path):
    refused = {
        "There is no Ray cluster at --ray_address=127.0.0.1:1": (
            "--vary=config.seed=1",
            "--executor=ray",
            "--ray_address=127.0.0.1:1",
        ),
        "--config.seed=many": ("--vary=config.seed=0,many",),
    }
    cases = {
        message: [f"--workdir={tmp_path / 'run'}", TINY, *arguments]
        for message, arguments in refused.items()
    }
    for message, (status, output) in outcomes("launch.sweep", cases).items():
        assert message in output
        assert "Traceback" not in output
        assert status == 2
    assert not (tmp_path / "run").exists()


def test_points_are_the_product_and_readable():
    points = make_points(
        [TINY, "--config.meta_steps=7", "--config.devices_per_agent=64"],
        ["config.meta.learning_rate=1e-3,3e-4", "config.agent.network.torso=(8,),(8, 4)"],
    )
    assert [point.name for point in points] == [
        "meta.learning_rate=0.001,agent.network.torso=8",
        "meta.learning_rate=0.001,agent.network.torso=8_4",
        "meta.learning_rate=0.0003,agent.network.torso=8",
        "meta.learning_rate=0.0003,agent.network.torso=8_4",
    ]
    settings = points[-1].settings
    assert (settings.meta.learning_rate, settings.agent.network.torso) == (3e-4, (8, 4))
    assert settings.meta_steps == 7


def test_what_is_said_of_points_is_printed_as_it_is(tmp_path, capsys):
    """The error of one that failed; and damaged lines of the other are named and left out."""
    points = make_points([TINY], ["config.seed=0,1"])
    good = [json.dumps({**x, "meta_loss": 1.0}) for x in DISCOVERY.metrics]
    for point in points:
        (tmp_path / point.name).mkdir()
    metrics = tmp_path / POINTS[0] / "metrics.jsonl"
    metrics.write_text("".join(f"{line}\n" for line in (*good, "{}", good[0][:30])))
    sweeps._report(points, tmp_path, {POINTS[1]: "no [/bold] \x1b[31m \udcff"})
    output = capsys.readouterr().out
    assert r"failed: no [/bold] \x1b[31m \udcff" in output
    for line in (4, 5):
        assert f"Left out: Line {line} of {metrics} is damaged: " in output
    first, second = rows(tmp_path)
    assert (first["meta_steps"], first["meta_loss"], first["status"]) == ("30", "1", "finished")
    assert second["meta_steps"] == "0"
    assert second["status"].startswith("failed: no [/bold]")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts a tiny sweep. Only the first has to compile its discoveries."""
    environment = {
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "WANDB_MODE": "offline",
        # As each of Ray's jobs; with more threads the last bits may differ.
        "XLA_FLAGS": compilation.xla_flags(compilation.ONE_THREAD),
    }
    return lambda workdir, *arguments: start(
        "launch.sweep",
        f"--workdir={workdir}",
        TINY,
        f"--config.meta_steps={META_STEPS}",
        "--vary=config.seed=0,1",
        *arguments,
        **environment,
    )


def rows(workdir) -> list[dict[str, str]]:
    with (workdir / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def without_timings(line: str) -> dict:
    timings = ("seconds", "meta_steps_per_second", "environment_steps_per_second", "memory_gib")
    return {name: x for name, x in json.loads(line).items() if name not in timings}


@pytest.mark.thorough
def test_stopped_restarted_and_failing(launch, tmp_path):
    """SIGTERM while one works; then to the end, with Ray; and one that always fails."""
    workdir = tmp_path / "sweep"
    process = launch(workdir)
    metrics = workdir / POINTS[0] / "metrics.jsonl"
    end = time.monotonic() + 300
    while not metrics.exists():
        time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
    process.send_signal(signal.SIGTERM)
    status, output = outcome(process)
    assert status == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    made = len(metrics.read_text().splitlines())
    steps = [int(p.name) for p in (workdir / POINTS[0] / "checkpoints").iterdir()]
    assert max(steps) == made  # Which it wrote before it ended.

    status, output = outcome(launch(workdir, "--wandb_project=rules"))
    assert status == 0, output
    assert all(is_finished(workdir / point, META_STEPS) for point in POINTS)
    assert [row["point"] for row in rows(workdir)] == list(POINTS)
    for row in rows(workdir):
        assert row["status"] == "finished"
        assert int(row["meta_steps"]) == META_STEPS
        assert -1.0 <= float(row["validation_reward"]) <= 1.0
        assert row["meta_loss"]
    assert (workdir / "sweep.png").read_bytes().startswith(b"\x89PNG")

    [run] = wandb_files.read(workdir / POINTS[1])
    assert (run.project, run.group, run.name) == ("rules", "sweep", POINTS[1])
    assert len(run.rows) == META_STEPS

    files = {p: p.stat().st_mtime_ns for p in workdir.glob("*/metrics.jsonl")}
    status, output = outcome(launch(workdir))
    assert status == 0, output
    assert "2 of 2 discoveries are finished." in output
    assert files == {p: p.stat().st_mtime_ns for p in workdir.glob("*/metrics.jsonl")}

    # On Ray, the same numbers; the second cannot write its checkpoints.
    other = tmp_path / "ray"
    (other / POINTS[1]).mkdir(parents=True)
    (other / POINTS[1] / "checkpoints").touch()
    status, output = outcome(launch(other, "--executor=ray"))
    assert status == 3, output
    assert "1 of 2 jobs failed" in output
    assert "seed=1: CheckpointError: Cannot write checkpoints in" in output
    assert [row["status"].partition(":")[0] for row in rows(other)] == ["finished", "failed"]
    lines = [(w / POINTS[0] / "metrics.jsonl").read_text().splitlines() for w in (workdir, other)]
    assert [without_timings(x) for x in lines[0]] == [without_timings(x) for x in lines[1]]

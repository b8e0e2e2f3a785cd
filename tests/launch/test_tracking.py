"""What TensorBoard and Weights & Biases show of discoveries and evaluations."""

import importlib.util
import os
import subprocess
import sys

import pytest
from absl import flags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from environments.errors import MissingPackageError
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.evaluate import Experiment
from launch.support import tracking
from launch.support.tracking import Tracking, trackers
from tests.launch import wandb_files
from tests.launch.common import REPOSITORY, outcome, start
from training.records import EpisodeSums, Records

METRICS = {
    "meta_step": 1,
    "meta_loss": 0.5,
    "agent_pi_loss": 0.25,
    "agent_loss": 1.0,
    "agent_entropy": 1.5,
    "memory_gib": 2.0,
    "environment_steps_per_second": 100.0,
    "validation_reward": 0.75,
    "num_resets": 3,
    "episode_return": None,
    "agents": {"task": ["catch/5x5", "lake", "lake"], "validation_reward": [1.0, 0.5, None]},
}
TAGS = {
    "meta/loss": 0.5,
    "agent/pi_loss": 0.25,
    "agent/loss": 1.0,
    "agent/entropy": 1.5,
    "run/memory_gib": 2.0,
    "run/environment_steps_per_second": 100.0,
    "score/validation_reward": 0.75,
    "run/num_resets": 3.0,
    "validation_reward/catch/5x5": 1.0,
    "validation_reward/lake": 0.5,
}


def shown(folder) -> dict[str, list[tuple[int, float]]]:
    """The steps and numbers that TensorBoard shows, by tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(one.step, one.value) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def hyper_parameters(folder) -> dict[str, object]:
    """The hyper-parameters of TensorBoard's table."""
    events = EventAccumulator(str(folder))
    events.Reload()
    session = metadata.parse_session_start_info_plugin_data(
        events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    )
    assert isinstance(session, plugin_data_pb2.SessionStartInfo)  # pyright: ignore
    return {
        name: getattr(x, x.WhichOneof("kind"))
        for name, x in session.hparams.items()  # pyright: ignore
    }


def log(folder, first: int, last: int, resume_at: int = 0, where: Tracking = Tracking()) -> None:
    settings = {"seed": 3, "agent": {"learning_rate": 0.5, "torso": (8, 8)}, "masks": True}
    with trackers(where, folder, settings, "meta_step", resume_at) as log_numbers:
        for step in range(first, last + 1):
            log_numbers(step, tracking.by_tag(METRICS | {"meta_step": step}))
        log_numbers(last, {tracking.PROBE: 0.5, "probe/lake": 0.25})


# Discoveries.


def test_tags_are_grouped():
    assert tracking.by_tag(METRICS) == TAGS


def test_tensorboard_shows_groups_and_drops_what_is_made_again(tmp_path):
    log(tmp_path, 1, 5)
    log(tmp_path, 3, 4, resume_at=2)
    found = shown(tmp_path / "tensorboard")
    assert set(found) == {*TAGS, "score/fresh_agents", "probe/lake"}
    assert found["meta/loss"] == [(step, 0.5) for step in (1, 2, 3, 4)]
    assert found["probe/lake"] == [(4, 0.25)]


def test_tensorboard_compares_hyper_parameters(tmp_path):
    log(tmp_path, 1, 1)
    assert hyper_parameters(tmp_path / "tensorboard") == {
        "seed": 3.0,
        "agent.learning_rate": 0.5,
        "agent.torso": "(8, 8)",
        "masks": True,
    }


def test_without_trackers_nothing_is_written(tmp_path):
    log(tmp_path, 1, 2, where=Tracking(tensorboard=False))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_by_its_folder(tmp_path):
    (tmp_path / "tensorboard").touch()
    with pytest.raises(OSError, match=f"Cannot write metrics in {tmp_path}: .*File exists"):
        log(tmp_path, 1, 1)


# Evaluations.


def add_returns(folder, task: str, steps, seed: int = 0, contender: str = "actor_critic") -> None:
    records = Records(storage.run_path(folder, contender, task, seed))
    for step in steps:
        sums = EpisodeSums(step, 2.0, step / 4, 10.0, {})
        records.add_metrics(step, sums.as_means())


def curve(*steps: int) -> list[tuple[int, float]]:
    return [(step, step / 8) for step in steps]


def test_returns_are_shown_while_runs_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "_SECONDS_BETWEEN_READS", 0.0)
    tags = [f"return/catch_5x5/{x}" for x in ("actor_critic/seed_0", "random/seed_1")]
    config = EvaluationConfig(budget=400)
    how = tracking.tracked(Experiment([], config, tmp_path), Tracking())
    for further in ([], [400]):  # It is continued, from its last checkpoint.
        Records(storage.run_path(tmp_path, "actor_critic", "catch/5x5", 0)).keep(200)
        with how.open_progress("evaluate", 400) as show:
            add_returns(tmp_path, "catch/5x5", [100, 200] if not further else [300, *further])
            add_returns(tmp_path, "catch/5x5", [100], seed=1, contender="random")
            show(100, {}, "")
            assert shown(tmp_path / "tensorboard")[tags[0]][:2] == curve(100, 200)
            path = storage.run_path(tmp_path, "random", "catch/5x5", 1) / "metrics.jsonl"
            with path.open("a") as file:  # Without a return; still being written.
                file.write('{"episodes": 0.0, "environment_steps": 300}\n{"environment_st')
    found = shown(tmp_path / "tensorboard")
    assert found == {tags[0]: curve(100, 200, 300, 400), tags[1]: curve(100)}
    assert hyper_parameters(tmp_path / "tensorboard")["budget"] == 400.0


# Weights & Biases, offline and in processes of their own: it starts others.

OFFLINE = {"WANDB_MODE": "offline", "JAX_PLATFORMS": "cpu"}
WANDB = Tracking(tensorboard=False, wandb_project="rules")

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed"
)


def in_a_process(code: str, folder, **environment: str) -> str:
    """What it prints."""
    code = (
        "import pathlib, sys\nfrom tests.launch import test_tracking as tests\n"
        f"folder = pathlib.Path(sys.argv[1])\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=REPOSITORY,
        env=os.environ | OFFLINE | environment,
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


@needs_wandb
@pytest.mark.slow
def test_a_continued_discovery_continues_its_run_of_wandb(tmp_path):
    in_a_process("tests.log(folder, 1, 3, where=tests.WANDB)", tmp_path)
    in_a_process("tests.log(folder, 3, 5, resume_at=2, where=tests.WANDB)", tmp_path)
    first, second = wandb_files.read(tmp_path)
    assert first.id == second.id == (tmp_path / "wandb/runs/id.txt").read_text().strip()
    assert (first.project, first.name, first.group) == ("rules", tmp_path.name, "")
    assert first.config["agent"] == {"learning_rate": 0.5, "torso": [8, 8]}
    assert [row["meta_step"] for row in first.rows] == [1, 2, 3, 3]
    assert [row["meta_step"] for row in second.rows] == [3, 4, 5, 5]
    assert {name: first.rows[0][name] for name in TAGS} == TAGS
    assert second.rows[-1]["probe/lake"] == 0.25


@needs_wandb
@pytest.mark.slow
def test_a_run_that_wandb_does_not_accept_is_refused_in_a_sentence(tmp_path):
    code = """
try:
    tests.log(folder, 1, 1, where=tests.WANDB)
except ValueError as error:
    print(error)
"""
    nowhere = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:1", "WANDB_API_KEY": ""}
    printed = in_a_process(code, tmp_path, HOME=str(tmp_path / "home"), **nowhere)
    assert printed.startswith("--wandb_project: Weights & Biases does not accept the run")
    assert "(No API key configured" in printed
    assert "WANDB_MODE=offline" in printed
    damaged = tmp_path / "wandb/runs/id.txt"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"a/\xff")
    assert "does not accept the run a/" in in_a_process(code, tmp_path)


@needs_wandb
@pytest.mark.slow
def test_an_evaluation_is_a_run_of_wandb(tmp_path):
    """With the command itself, which is then started again with more to make."""
    command = (
        *("launch.evaluate", "--suite=catch/4x3", "--config.budget=1024", "--config.seeds=1"),
        *("--baselines=actor_critic", "--notensorboard", f"--workdir={tmp_path / 'mine'}"),
        "--wandb_project=rules",
    )
    status, output = outcome(start(*command, **OFFLINE))
    assert status == 0, output
    assert f"`wandb sync` sends what is in {tmp_path / 'mine/wandb'}" in output.replace("\n", "")
    assert not (tmp_path / "mine/tensorboard").exists()
    (run,) = wandb_files.read(tmp_path / "mine")
    assert (run.project, run.name, run.config["budget"]) == ("rules", "mine", 1024)
    lines = Records(tmp_path / "mine/runs/actor_critic/catch_4x3/seed_0").metrics()
    tag = "return/catch_4x3/actor_critic/seed_0"
    expected = [(x["environment_steps"], x["episode_return"]) for x in lines]
    assert [(x["environment_steps"], x[tag]) for x in run.rows if tag in x] == expected
    (tmp_path / "mine/runs/actor_critic/catch_4x3/seed_0/result.json").unlink()
    status, output = outcome(start(*command, **OFFLINE))
    assert status == 0, output
    *_, again = wandb_files.read(tmp_path / "mine")
    assert again.id == run.id


def test_without_wandb_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = flags.FlagValues()
    flags.DEFINE_bool("tensorboard", True, "", flag_values=values)
    flags.DEFINE_string("wandb_project", "mine", "", flag_values=values)
    values.mark_as_parsed()
    message = r"--wandb_project=mine needs the package 'wandb'.*disco-update-rules\[wandb\]"
    with pytest.raises(MissingPackageError, match=message):
        tracking.of_flags(values)

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
from evaluation.contenders import make_contenders
from evaluation.report.manifest import write_manifest
from launch.support import tracking
from launch.support.return_curves import ReturnCurves
from launch.support.tracking import MetricsLog, Tracking
from tests.evaluation.common import CONFIG, TASKS
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


def hyper_parameters(folder) -> tuple[list[str], dict[str, object]]:
    """The tags of results, and the hyper-parameters, of TensorBoard's table."""
    events = EventAccumulator(str(folder))
    events.Reload()
    experiment, session = (
        metadata.parse_experiment_plugin_data(
            events.SummaryMetadata(metadata.EXPERIMENT_TAG).plugin_data.content
        ),
        metadata.parse_session_start_info_plugin_data(
            events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        ),
    )
    assert isinstance(session, plugin_data_pb2.SessionStartInfo)  # pyright: ignore
    values = {
        name: getattr(x, x.WhichOneof("kind"))
        for name, x in session.hparams.items()  # pyright: ignore
    }
    return [info.name.tag for info in experiment.metric_infos], values


def log(folder, first: int, last: int, resume_at: int = 0, where: Tracking = Tracking()) -> None:
    settings = {"seed": 3, "agent": {"learning_rate": 0.5, "torso": (8, 8)}, "masks": True}
    with MetricsLog(folder, where, settings) as metrics:
        metrics.continue_from(resume_at)
        for step in range(first, last + 1):
            metrics.write(step, METRICS | {"meta_step": step})
        metrics.show(last, {tracking.PROBE: 0.5, "probe/lake": 0.25})


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
    results, values = hyper_parameters(tmp_path / "tensorboard")
    assert results == ["score/fresh_agents", "score/validation_reward", "meta/loss"]
    assert values == {
        "seed": 3.0,
        "agent.learning_rate": 0.5,
        "agent.torso": "(8, 8)",
        "masks": True,
    }


def test_without_trackers_there_are_only_lines(tmp_path):
    log(tmp_path, 1, 2, where=Tracking(tensorboard=False))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


# Evaluations.


def make_evaluation(folder) -> None:
    """A manifest, as an evaluation has it that is about to make its runs."""
    contenders = make_contenders((), CONFIG)
    write_manifest(folder, CONFIG, TASKS, contenders, {})


def add_returns(folder, task: str, steps, seed: int = 0, contender: str = "actor_critic") -> None:
    records = Records(storage.run_path(folder, contender, task, seed))
    for step in steps:
        sums = EpisodeSums(step, 2.0, step / 4, 10.0, {})
        records.add_metrics(step, sums.as_means())


def curve(*steps: int) -> list[tuple[int, float]]:
    return [(step, step / 8) for step in steps]


def test_returns_are_shown_while_runs_are_made(tmp_path):
    make_evaluation(tmp_path)
    own = tmp_path / "tensorboard/actor_critic/seed_0"
    curves = ReturnCurves(tmp_path, Tracking())
    add_returns(tmp_path, "catch/5x5", [100, 200])
    add_returns(tmp_path, "catch/8x8", [100], seed=1)
    curves.read_if_due()
    assert shown(own) == {"return/catch/5x5": curve(100, 200)}
    assert shown(own.with_name("seed_1")) == {"return/catch/8x8": curve(100)}
    with (storage.run_path(tmp_path, "actor_critic", "catch/5x5", 0) / "metrics.jsonl").open(
        "a"
    ) as file:
        file.write('{"episode_return": 1.0, "environment_st')  # Still being written.
    curves.read()
    assert shown(own) == {"return/catch/5x5": curve(100, 200)}
    curves.close()


def test_a_continued_evaluation_shows_nothing_twice(tmp_path):
    make_evaluation(tmp_path)
    own = tmp_path / "tensorboard/actor_critic/seed_0"
    add_returns(tmp_path, "catch/5x5", [100, 200, 300])
    for further in ([], [400], []):
        # From its last checkpoint.
        Records(storage.run_path(tmp_path, "actor_critic", "catch/5x5", 0)).keep(200)
        curves = ReturnCurves(tmp_path, Tracking())
        curves.read()
        add_returns(tmp_path, "catch/5x5", [300, *further])
        curves.read()
        curves.close()
    assert shown(own) == {"return/catch/5x5": curve(100, 200, 300, 400)}
    results, values = hyper_parameters(own)
    assert results == ["return/catch/5x5", "return/catch/8x8"]
    assert (values["contender"], values["settings.agent.learning_rate"]) == ("actor_critic", 3e-3)


@pytest.mark.parametrize("step", ["[]", "1e999", "9" * 400])
def test_damaged_notes_of_what_was_shown_are_ignored(tmp_path, step):
    make_evaluation(tmp_path)
    own = tmp_path / "tensorboard/random/seed_0"
    own.mkdir(parents=True)
    (own / "logged.json").write_text(f'{{"catch/5x5": {step}}}')
    add_returns(tmp_path, "catch/5x5", [200], contender="random")
    curves = ReturnCurves(tmp_path, Tracking())
    curves.read()
    curves.close()
    assert shown(own) == {"return/catch/5x5": curve(200)}


def test_intervals_without_episodes_have_no_point(tmp_path):
    make_evaluation(tmp_path)
    own = tmp_path / "tensorboard/random/seed_0"
    run = storage.run_path(tmp_path, "random", "catch/5x5", 0)
    Records(run).add_metrics(100, {"episodes": 0.0, "episode_return": None})
    add_returns(tmp_path, "catch/5x5", [200], contender="random")
    curves = ReturnCurves(tmp_path, Tracking())
    curves.read()
    curves.close()
    assert shown(own) == {"return/catch/5x5": curve(200)}


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
    assert [row["_step"] for row in first.rows] == [1, 2, 3]
    assert [row["_step"] for row in second.rows] == [3, 4, 5]
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
    damaged.write_bytes(b"a/\xff")
    assert "does not accept the run a/" in in_a_process(code, tmp_path)


@needs_wandb
@pytest.mark.slow
def test_an_evaluation_is_a_group_of_runs_of_wandb(tmp_path):
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
    runs = {run.name: run for run in wandb_files.read(tmp_path / "mine")}
    assert set(runs) == {"random, seed 0", "actor_critic, seed 0"}
    run = runs["actor_critic, seed 0"]
    assert (run.project, run.group) == ("rules", "mine")
    assert run.config["contender"] == "actor_critic"
    lines = Records(tmp_path / "mine/runs/actor_critic/catch_4x3/seed_0").metrics()
    expected = [(x["environment_steps"], x["episode_return"]) for x in lines]
    assert [(x["environment_steps"], x["return/catch/4x3"]) for x in run.rows] == expected
    (tmp_path / "mine/runs/actor_critic/catch_4x3/seed_0/result.json").unlink()
    status, output = outcome(start(*command, **OFFLINE))
    assert status == 0, output
    *_, again = [x for x in wandb_files.read(tmp_path / "mine") if x.name == run.name]
    assert again.id == run.id
    assert again.rows == []  # It made the same returns again.


def test_without_wandb_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = flags.FlagValues()
    flags.DEFINE_bool("tensorboard", True, "", flag_values=values)
    flags.DEFINE_string("wandb_project", "mine", "", flag_values=values)
    values.mark_as_parsed()
    message = r"--wandb_project=mine needs the package 'wandb'.*disco-update-rules\[wandb\]"
    with pytest.raises(MissingPackageError, match=message):
        tracking.of_flags(values)

"""What `--dry_run` says, and that it writes nothing."""

import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

import environments
from agents.rule_agent import AgentConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import runs_of
from launch.support import dry_run
from launch.support.workdirs import CHECKPOINTS
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import tiny_discovery

CONFIG = EvaluationConfig(seeds=2, budget=1024, baselines=())
REPOSITORY = pathlib.Path(__file__).parents[2]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_of_an_evaluation(tmp_path, capsys):
    tasks, contenders = (environments.make("catch/5x5"),), make_contenders([], CONFIG)
    ((one, _),) = runs_of(contenders[0], tasks, CONFIG)
    folder = one.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("damaged")
    before = contents(tmp_path)
    dry_run.show_evaluation(tasks, contenders, CONFIG, str(tmp_path), None)
    said = capsys.readouterr().out
    assert re.search(r"random\s*│ 2\s*│ 0\s*│ 2,048", said)
    assert "one task, 2 seeds, 1,024 environment steps each: about" in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("suite", "devices", "rate", "taken"),
    [
        ("catch/5x5", 1, "2,000", "1 min 50 s"),  # Two passes in one job.
        ("catch/5x5", 2, "4,000", "60 s"),  # One pass.
        ("gymnasium/CartPole-v1", 2, "2,000", "2 min 0 s"),  # Two jobs.
    ],
)
def test_time_is_that_of_all_jobs_and_passes(
    tmp_path, capsys, monkeypatch, suite, devices, rate, taken
):
    config = dataclasses.replace(CONFIG, budget=100_000, agent=AgentConfig())
    clock, reported = [0.0], []

    def train(group, config, folders, group_folder, report):
        del group, config, folders, group_folder
        clock[0] += 10.0
        for steps in range(1_000, 100_000, 1_000):
            reported.append(steps)
            report(steps)
            clock[0] += 0.5

    monkeypatch.setattr(dry_run, "train_runs", train)
    monkeypatch.setattr(dry_run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    contenders, tasks = make_contenders([], config), (environments.make(suite),)
    dry_run.show_evaluation(tasks, contenders, config, str(tmp_path), None)
    said = capsys.readouterr().out
    row = rf"random\s*│ 2\s*│ 0\s*│ 199,984\s*│ 10 s\s*│ {rate}\s*│ {taken}\s*│"
    assert re.search(row, said), said
    assert reported[-1] == 6_000  # It was ended when more than two seconds had been measured.


@pytest.mark.slow
def test_of_an_agent_that_begins_to_learn_later(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dry_run, "_MOST_SECONDS", 0.5)
    config = dataclasses.replace(CONFIG, budget=199_936, seeds=1)
    names = [
        "muzero/min_steps=150000,num_simulations=2",
        "muzero/num_simulations=2,unroll_length=400",
    ]
    contenders = make_contenders([], config, agents=names)
    dry_run.show_evaluation(
        (environments.make("catch/5x5"),), contenders, config, str(tmp_path), None
    )
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "199,936 environment steps each: more than" in said
    assert said.count("more than") == 2  # Of the first agent, and of both together.


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_of_a_discovery(tmp_path, capsys, is_stopped):
    (tmp_path / CHECKPOINTS / "190").mkdir(parents=True)
    settings = dataclasses.replace(get_settings(), meta_steps=200)
    dry_run.show_discovery(settings, tiny_discovery(), str(tmp_path), lambda step: is_stopped)
    said = capsys.readouterr().out
    assert ("10 of 200 meta-steps" in said) != is_stopped
    assert contents(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "sweep"])
def test_a_printed_config_can_be_given(command):
    def printed(*arguments: str) -> str:
        line = [sys.executable, "-m", f"launch.{command}", "--print_config", *arguments]
        return subprocess.run(
            line, cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout

    text = printed()
    given = [x for line in text.splitlines() for x in shlex.split(line, comments=True)]
    assert len(given) > 20
    assert printed(*given) == text

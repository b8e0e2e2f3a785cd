"""What `--dry_run` says, and that it writes nothing."""

import dataclasses
import pathlib
import re
import shlex
from types import SimpleNamespace

import jax
import pytest

import environments
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import Experiment, runs_of
from launch.support import discoveries, evaluations
from launch.support.workdirs import CHECKPOINTS
from tests.launch.common import outcomes
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import tiny_discovery
from training import memory_budget

CONFIG = EvaluationConfig(seeds=2, budget=1024, baselines=())


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_of_an_evaluation(tmp_path, capsys):
    tasks, contenders = (environments.make("catch/5x5"),), make_contenders([], CONFIG)
    experiment = Experiment(tasks, CONFIG, tmp_path)
    one, _ = runs_of(experiment, contenders)
    one.folder.mkdir(parents=True)
    (one.folder / "result.json").write_text("damaged")
    before = contents(tmp_path)
    evaluations.show_dry_run(experiment, contenders)
    said = capsys.readouterr().out
    assert re.search(r"random\s*│ 2\s*│ 0\s*│ 2,048", said)
    assert re.search("About .* on 1 x cpu|About .* on 2 x cpu", said)
    assert "Memory: learning states and full replays of 0 bytes at once" in said
    assert "Disk: final agents of 0 bytes, and checkpoints of up to 0 bytes of a job" in said
    assert contents(tmp_path) == before


def test_runs_that_do_not_fit_in_memory_are_refused_before_one_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_budget, "free_memory", lambda: 1)
    monkeypatch.setattr(evaluations, "train_runs", pytest.fail)
    config = dataclasses.replace(CONFIG, baselines=("actor_critic",))
    experiment = Experiment([environments.make("catch/5x5")], config, tmp_path)
    with pytest.raises(ValueError, match="actor_critic on catch/5x5, 2 runs at once: more memory"):
        evaluations.show_dry_run(experiment, make_contenders([], config))


@pytest.mark.parametrize(("devices", "rate"), [(1, "2,000"), (2, "4,000")])
def test_speed_is_that_of_all_runs_of_a_pass(tmp_path, capsys, monkeypatch, devices, rate):
    config = dataclasses.replace(CONFIG, budget=100_000, agent=RuleAgentConfig())
    clock, reported = [0.0], []

    def train(group, config, group_folder, report):
        del group, config, group_folder
        clock[0] += 10.0
        for steps in range(1_000, 100_000, 1_000):
            reported.append(steps)
            report(steps)
            clock[0] += 0.5

    monkeypatch.setattr(evaluations, "train_runs", train)
    monkeypatch.setattr(evaluations, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    tasks = (environments.make("catch/5x5"),)
    evaluations.show_dry_run(Experiment(tasks, config, tmp_path), make_contenders([], config))
    said = capsys.readouterr().out
    assert re.search(rf"random\s*│ 2\s*│ 0\s*│ 199,984\s*│ {rate}\s*│", said), said
    assert reported[-1] == 22_000  # It was ended when more than ten seconds had been measured.


@pytest.mark.slow
def test_of_a_discovery(tmp_path, capsys):
    (tmp_path / CHECKPOINTS / "190").mkdir(parents=True)
    settings = dataclasses.replace(get_settings(), meta_steps=200)
    discoveries._show_speed(settings, tiny_discovery(), tmp_path)
    said = capsys.readouterr().out
    assert "10 of 200 meta-steps" in said
    assert re.search(r"agents and the replays of JAX environments of [\d.]+ [kM]B, other", said)
    assert re.search(r"Disk: [\d.]+ [kM]B at most for a checkpoint, of which the newest 3 ", said)
    assert contents(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "sweep"])
def test_a_printed_config_can_be_given(command):
    def printed(*arguments: str) -> str:
        cases = {"": ["--print_config", *arguments]}
        ((status, output),) = outcomes(f"launch.{command}", cases).values()
        assert status == 0, output
        return output

    text = printed()
    given = [x for line in text.splitlines() for x in shlex.split(line, comments=True)]
    assert len(given) > 20
    assert printed(*given) == text

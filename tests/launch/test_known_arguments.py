"""A command that has only `--workdir` goes on with the other arguments of the run in it."""

import json
import sys
from importlib.machinery import ModuleSpec

import pytest

from launch.support import commands
from tests.launch.common import REPOSITORY, outcomes


@pytest.fixture
def known(tmp_path, monkeypatch):
    """The arguments that a workdir knows; written there first, and asked for with flags."""

    def known(*arguments: str, flags=("--workdir={}",), command="launch.discover") -> list[str]:
        (tmp_path / "config.json").write_text("{}")
        content = json.dumps({"command": command, "arguments": arguments})
        (tmp_path / commands.ARGUMENTS).write_text(content)
        monkeypatch.setattr("sys.argv", ["-m", *(x.format(tmp_path) for x in flags)])
        return commands._known_arguments("launch.discover")

    return known


@pytest.mark.parametrize(
    "flags",
    [
        ("--workdir={}",),
        ("--workdir", "{}"),
        ("--workdir={}", "--dry_run"),
        ("--workdir={}", "--print_config"),
    ],
)
def test_the_workdir_knows_the_other_arguments(known, capsys, flags):
    arguments = ["--config=grid57_zoo", "--config.seed=3"]
    assert known(*arguments, flags=flags) == arguments
    assert "arguments.json: --config=grid57_zoo --config.seed=3" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--config.seed=4", "--rule=x", "x"])
def test_arguments_that_are_given_replace_them_all(known, other):
    assert known("--config.seed=3", flags=("--workdir={}", other)) == []


def test_another_commands_are_not_taken(known):
    assert known("--config.seed=3", command="launch.evaluate") == []


@pytest.mark.parametrize("text", ["", "[]", '{"command": 1}', '{"command": "launch.discover"}'])
def test_a_damaged_file_is_ignored(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / commands.ARGUMENTS).write_text(text)
    monkeypatch.setattr("sys.argv", ["-m", f"--workdir={tmp_path}"])
    assert commands._known_arguments("launch.discover") == []
    assert "is ignored: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "argument",
    [
        "--config=settings.py",
        "--config=settings",
        "--config=__init__",
        "--config=/elsewhere/settings",
        "--config=settings.py\0",
        "-config=settings.py:8",
        "--config=launch/configs/../../settings.py",
        "--rule=package.module:make",
        "--rule=hf:owner/name:make",
        "--suite=gymnasium/package:Task-v0",
        "--suite=gymnasium/package:1",
        "--suite=hf:make",
        "--config.suite=gymnasium/package:1",
        "--flagfile=flags.txt",
        "--imports=package",
        "--profile_file=elsewhere",
        "--workdir=elsewhere",
        "--ray_address=host",
        "settings.py",
    ],
)
@pytest.mark.parametrize("with_a_blank", [False, True])
def test_what_would_run_code_is_not_taken_from_a_file(
    known, tmp_path, capsys, argument, with_a_blank
):
    with pytest.raises(SystemExit) as ended:
        known(*(argument.split("=") if with_a_blank else [argument]))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"python -m launch.discover --workdir={tmp_path} " in said
    assert "has arguments that may run code or are not of a run: " in said
    assert commands.ARGUMENTS in said


@pytest.mark.parametrize(
    "argument",
    [
        "--config=grid57_zoo",
        "--config=ablations:no_value",
        f"--config={REPOSITORY}/launch/configs/grid57_zoo.py",
        "--rule=hf:owner/name",
        "--rule=mine.npz,hf:owner/name",
        "--config.rule.start=hf:owner/name@main",
        '--env_kwargs={"is_slippery":false}',
        "--config.families=dmlab:memory=256",
        "--tensorboard",
        "--config.baselines=('ppo','dpo')",
    ],
)
@pytest.mark.parametrize("with_a_blank", [False, True])
def test_data_is_taken_from_a_file(known, argument, with_a_blank):
    assert known(*(argument.split("=", 1) if with_a_blank else [argument])) == [argument]


@pytest.mark.parametrize("argument", ["--suite=gymnasium/package:Task-v0", "--imports=package"])
def test_modules_that_a_file_names_are_allowed_by_a_flag(known, argument):
    assert known(argument, flags=("--workdir={}", "--imports")) == [argument]
    with pytest.raises(SystemExit):
        known(argument, flags=("--workdir={}", "--imports=false"))


def test_flags_of_a_process_are_not_kept(monkeypatch, tmp_path):
    given = ["--coordinator=h:1", "--process_id", "0", "--suite", "a", "--train"]
    monkeypatch.setattr("sys.argv", ["evaluate", "--workdir", str(tmp_path), *given])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("launch.evaluate", None))
    commands.keep_arguments(tmp_path / "another")
    commands.keep_arguments(tmp_path)
    kept = json.loads((tmp_path / commands.ARGUMENTS).read_text())
    assert kept == {"command": "launch.evaluate", "arguments": ["--suite=a", "--train"]}


def test_an_evaluation_goes_on_by_its_workdir_alone(tmp_path):
    flags = ["--suite=catch/4x3", "--baselines=", "--config.seeds=1", "--config.budget=256"]
    workdir = f"--workdir={tmp_path / 'run'}"
    assert outcomes("launch.evaluate", {"begins": [workdir, *flags]})["begins"][0] == 0
    status, output = outcomes("launch.evaluate", {"goes on": [workdir]})["goes on"]
    assert status == 0, output
    assert f"With the arguments in {tmp_path}/run/arguments.json: --suite=catch/4x3 " in output
    assert "1 of 1 runs are finished." in output

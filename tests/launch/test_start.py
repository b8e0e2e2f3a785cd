"""A command that has only `--workdir`, and values of flags before they are parsed."""

import json
import pathlib
import signal
import sys
from importlib.machinery import ModuleSpec

import pytest

from launch.support import start
from tests.launch import common


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([], ""),
        (["--suite=a"], "a"),
        (["-suite", "a"], "a"),
        (["--suite=a", "--suite=b"], "b"),
        (["--suites=a"], ""),
        (["--suite"], ""),
    ],
)
def test_value_of(arguments, value):
    assert start.value_of("suite", arguments) == value


def workdir_with(folder: pathlib.Path, *arguments: str, command: str = "launch.discover") -> str:
    (folder / "config.json").write_text("{}")
    known = {"command": command, "arguments": arguments}
    (folder / start.ARGUMENTS).write_text(json.dumps(known))
    return str(folder)


@pytest.mark.parametrize("flags", [["--workdir={}"], ["--workdir", "{}"]])
def test_the_workdir_knows_the_other_arguments(tmp_path, capsys, flags):
    folder = workdir_with(tmp_path, "--config=grid57_zoo", "--config.seed=3")
    arguments = ["-m", *(flag.format(folder) for flag in flags)]
    start.begin("launch.discover", arguments)
    assert arguments[-2:] == ["--config=grid57_zoo", "--config.seed=3"]
    assert "--config=grid57_zoo --config.seed=3" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--dry_run", "--print_config"])
def test_what_writes_nothing_is_about_the_run_in_the_workdir(tmp_path, capsys, flag):
    arguments = ["-m", f"--workdir={workdir_with(tmp_path, '--config.seed=3')}", flag]
    start.begin("launch.discover", arguments)
    assert arguments[2:] == [flag, "--config.seed=3"]
    assert "goes on in" not in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--config.seed=4", "--rule=x"])
def test_arguments_that_are_given_replace_them_all(tmp_path, other):
    arguments = ["-m", f"--workdir={workdir_with(tmp_path, '--config.seed=3')}", other]
    start.begin("launch.discover", arguments)
    assert arguments[2:] == [other]


def test_another_commands_are_not_taken(tmp_path):
    folder = workdir_with(tmp_path, "--config.seed=3", command="launch.evaluate")
    arguments = ["-m", f"--workdir={folder}"]
    start.begin("launch.discover", arguments)
    assert arguments == ["-m", f"--workdir={folder}"]


@pytest.mark.parametrize("text", ["", "[]", '{"command": 1}', '{"command": "launch.discover"}'])
def test_a_damaged_file_is_ignored(tmp_path, text):
    arguments = ["-m", f"--workdir={workdir_with(tmp_path)}"]
    (tmp_path / start.ARGUMENTS).write_text(text)
    start.begin("launch.discover", arguments)
    assert len(arguments) == 2


@pytest.mark.parametrize(
    "argument",
    [
        "--config=settings.py",
        "--config=settings",
        "--config=/elsewhere/settings",
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
        "--workdir=elsewhere",
        "--ray_address=host",
        "settings.py",
    ],
)
@pytest.mark.parametrize("with_a_blank", [False, True])
def test_what_would_run_code_is_not_taken_from_a_file(tmp_path, capsys, argument, with_a_blank):
    folder = workdir_with(tmp_path, *(argument.split("=") if with_a_blank else [argument]))
    with pytest.raises(SystemExit) as ended:
        start.begin("launch.discover", ["-m", f"--workdir={folder}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"python -m launch.discover --workdir={folder} {argument}" in said
    assert f"not of a run: {argument}." in said
    assert start.ARGUMENTS in said


@pytest.mark.parametrize(
    "argument",
    [
        "--config=grid57_zoo",
        "--config=ablations:no_value",
        f"--config={common.REPOSITORY}/launch/configs/grid57_zoo.py",
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
def test_data_is_taken_from_a_file(tmp_path, argument, with_a_blank):
    known = argument.split("=", 1) if with_a_blank else [argument]
    arguments = ["-m", f"--workdir={workdir_with(tmp_path, *known)}"]
    start.begin("launch.discover", arguments)
    assert arguments[2:] == [argument]


def test_flags_of_a_process_are_not_kept(monkeypatch, tmp_path):
    given = [
        "--workdir",
        str(tmp_path),
        "--coordinator=h:1",
        "--process_id",
        "0",
        "--suite",
        "a",
        "--train",
    ]
    monkeypatch.setattr("sys.argv", ["evaluate", *given])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("launch.evaluate", None))
    start.keep_own_arguments(tmp_path)
    kept = json.loads((tmp_path / start.ARGUMENTS).read_text())
    assert kept == {"command": "launch.evaluate", "arguments": ["--suite=a", "--train"]}


@pytest.mark.parametrize("command", [["launch.evaluate"], ["launch", "discover"]])
def test_an_interrupt_within_the_imports_ends_a_command_with_a_line(tmp_path, command):
    module, *rest = command
    # A program that is started in the background ignores the signal, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = common.start(module, *rest, f"--workdir={tmp_path / 'run'}")
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    first = process.stderr.readline()  # Before the imports.
    process.send_signal(signal.SIGINT)
    status, output = common.outcome(process)
    name = ".".join(["launch", (rest or [module])[-1].removeprefix("launch.")])
    assert (status, output) == (130, f"{name}: stopped by Ctrl-C.\n"), first


@pytest.mark.parametrize("argument", ["--suite=gymnasium/package:Task-v0", "--imports=package"])
def test_modules_that_a_file_names_are_allowed_by_a_flag(tmp_path, argument):
    arguments = ["-m", f"--workdir={workdir_with(tmp_path, argument)}", "--imports"]
    start.begin("launch.discover", arguments)
    assert arguments[3:] == [argument]


def test_modules_that_are_typed_replace_those_of_a_file(tmp_path):
    folder = workdir_with(tmp_path, "--seed=3", "--imports=package")
    arguments = ["-m", f"--workdir={folder}", "--imports=mine"]
    start.begin("launch.discover", arguments)
    assert arguments[3:] == ["--seed=3"]
    with pytest.raises(SystemExit):
        start.begin("launch.discover", ["-m", f"--workdir={folder}", "--imports=false"])

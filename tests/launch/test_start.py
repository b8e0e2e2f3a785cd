"""A command that has only `--workdir`, and values of flags before they are parsed."""

import json
import pathlib

import pytest

from launch import start


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
        "--config=/elsewhere/settings",
        "-config=settings.py:8",
        "--rule=package.module:make",
        "--suite=gymnasium/package:Task-v0",
        "--flagfile=flags.txt",
    ],
)
def test_what_would_run_code_is_not_taken_from_a_file(tmp_path, capsys, argument):
    folder = workdir_with(tmp_path, argument)
    with pytest.raises(SystemExit) as ended:
        start.begin("launch.discover", ["-m", f"--workdir={folder}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"python -m launch.discover --workdir={folder} {argument}" in said
    assert start.ARGUMENTS in said

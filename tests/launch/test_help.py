"""`--help` and `--version`."""

import ast
import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest

import disco
from evaluation.studies.analysis import AnalysisConfig
from launch.support import commands
from tests.launch.common import REPOSITORY, outcomes_of

COMMANDS = sorted(
    path.stem
    for path in REPOSITORY.glob("launch/*.py")
    if path.read_text().rstrip().rpartition("\n")[2].startswith("    commands.run(main")
)


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str]]:
    """What each command says of its flags."""
    return outcomes_of({name: [f"launch.{name}", "--help"] for name in COMMANDS})


def test_every_module_is_a_command():
    files = REPOSITORY.glob("launch/[a-z]*.py")
    assert sorted(path.stem for path in files) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_the_command_does_and_its_flags(helps, name):
    status, output = helps[name]
    assert status == 0, output
    module = REPOSITORY / f"launch/{name}.py"
    documentation = ast.get_docstring(ast.parse(module.read_text())) or ""
    assert output.startswith(documentation)
    assert {"workdir", "output", "suite"} & set(re.findall(r"^  --(\w+):", output, re.MULTILINE))


def test_help_of_studies_has_the_defaults_of_their_settings(helps):
    defaults = {
        "analyse": (AnalysisConfig(), {}),
    }
    for name, (config, others) in defaults.items():
        shown = re.findall(r"^  --(\w+): .*\n    \(default: '(.*)'\)", helps[name][1], re.MULTILINE)
        values = {others.get(flag, flag): default for flag, default in shown}
        same = values.keys() & {field.name for field in dataclasses.fields(config)}
        assert len(same) >= 3
        assert {x: values[x] for x in same} == {x: str(getattr(config, x)) for x in same}


@pytest.mark.parametrize(
    ("module", "flag", "said"),
    [
        *((f"launch.{name}", "--help", "  --") for name in COMMANDS),
        ("launch.evaluate", "--version", disco.__version__),
    ],
)
def test_they_are_answered_without_the_imports_of_the_command(module, flag, said):
    command = [sys.executable, "-X", "importtime", "-m", module, flag]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert not {"jax", "numpy", "rich"} & {
        x.rpartition("|")[2].strip() for x in done.stderr.split("\n")
    }


def test_a_command_says_at_once_what_it_does(tmp_path: pathlib.Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-m", f"--workdir={tmp_path}", "--config.seed=1"])
    commands._say_what_begins("launch.discover")
    assert capsys.readouterr().err == f"discover {disco.__version__} begins in {tmp_path}.\n"
    (tmp_path / "config.json").touch()
    commands._say_what_begins("launch.discover")
    assert f"goes on in {tmp_path}." in capsys.readouterr().err
    for flag, is_said in (
        ("--dry_run=false", True),
        ("--dry_run=true", False),
        ("--dry_run", False),
    ):
        monkeypatch.setattr(sys, "argv", ["-m", f"--workdir={tmp_path}", flag])
        commands._say_what_begins("launch.discover")
        assert bool(capsys.readouterr().err) == is_said

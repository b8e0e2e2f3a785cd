"""`--help` and `--version`."""

import pathlib
import subprocess
import sys

import pytest

import disco
from launch.support import start
from tests.launch.common import REPOSITORY, outcomes_of

COMMANDS = sorted(
    path.stem
    for path in REPOSITORY.glob("launch/*.py")
    if path.read_text().rstrip().rpartition("\n")[2].startswith("    commands.run(main")
)


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str]]:
    """What each command says of its flags, after its imports."""
    return outcomes_of({name: [f"launch.{name}", "--help"] for name in COMMANDS})


def test_all_commands_have_a_stored_text():
    assert sorted(path.stem for path in start.TEXTS.glob("*.txt")) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_stored_text_is_of_todays_flags(helps, name):
    status, output = helps[name]
    assert status == 0
    stored = (start.TEXTS / f"{name}.txt").read_text()
    assert output.strip() == stored.strip(), "Write the texts again: python -m launch.support.help"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_what_the_command_does(helps, name):
    _, output = helps[name]
    assert "\nflags:" not in output  # absl's own.
    assert "\nWhich run:\n" in output or "\nOn which tasks:\n" in output


@pytest.mark.parametrize("module", ["launch.evaluate", "launch.discover"])
@pytest.mark.parametrize(
    ("flag", "said"), [("--help", "Settings:"), ("--version", disco.__version__)]
)
def test_they_are_answered_without_the_imports_of_the_command(module, flag, said):
    command = [sys.executable, "-X", "importtime", "-m", module, flag]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert not {"jax", "absl", "numpy"} & {
        x.rpartition("|")[2].strip() for x in done.stderr.split("\n")
    }


def test_a_command_says_at_once_what_it_does(tmp_path: pathlib.Path, capsys):
    arguments = ["-m", f"--workdir={tmp_path}", "--config.seed=1"]
    start.begin("launch.discover", arguments)
    assert capsys.readouterr().err == f"discover {disco.__version__} begins in {tmp_path}.\n"
    (tmp_path / "config.json").touch()
    start.begin("launch.discover", arguments)
    assert f"goes on in {tmp_path}." in capsys.readouterr().err

"""Flags that every command has: config files, overrides, and paths of outputs."""

import os
import pathlib
import sys

import pytest

from disco_common.configuration import from_config
from launch.configs import grid57_laptop
from launch.support.command_flags import parse_config, value_of
from launch.support.discovery_config import DiscoveryRunConfig
from tests.launch.common import REPOSITORY, TINY, outcomes_of

COMMANDS = sorted(
    f"{path.parent.name}.{path.stem}"
    for path in REPOSITORY.glob("launch/*.py")
    if "\n    commands.run(main" in path.read_text()
)
# Flags that name what a command writes, and others that it cannot do without.
OUTPUTS = {
    "launch.analyse": ("workdir", ["--rule=grid57"]),
    "launch.discover": ("workdir", [TINY]),
    "launch.evaluate": ("workdir", ["--suite=catch/5x5"]),
    "launch.evolve": ("workdir", ["--rule=grid57"]),
    "launch.export": ("output", ["--workdir=somewhere"]),
    "launch.references": ("workdir", ["--suite=catch/5x5"]),
    "launch.report": ("output", ["--runs=somewhere"]),
    "launch.robustness": ("workdir", ["--rule=grid57"]),
    "launch.sweep": ("workdir", [TINY, "--vary=config.seed=0,1"]),
    "launch.watch": ("output", ["--run=somewhere"]),
    "launch.tune": ("workdir", ["--suite=catch/5x5"]),
}


def test_commands_are_found():
    assert {"launch.discover", "launch.evaluate", "launch.sweep"} < set(COMMANDS)
    assert set(COMMANDS) == OUTPUTS.keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """Outputs that are not what they should be, and config files that are not either."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "file").touch()
    (folder / "folder.npz").mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture(scope="module")
def ended(place) -> dict[str, tuple[int, str]]:
    """How all commands of this file end, by name."""
    cases = {f"{name} alone": [name] for name in COMMANDS}
    for name, (flag, others) in OUTPUTS.items():
        cases[f"{name} empty"] = [name, *others, f"--{flag}="]
        cases[f"{name} unwritable"] = [name, *others, f"--{flag}={place}/file/below.npz"]
    for name, (command, *arguments, _) in REFUSED_OUTPUTS.items():
        cases[name] = [command, *(argument.format(place=place) for argument in arguments)]
    for name, (file, others, _) in REFUSED_CONFIGS.items():
        chosen = [] if file is None else [f"--config={place / file if file else ''}"]
        others = [argument.format(place=place) for argument in others]
        cases[f"config {name}"] = ["launch.discover", f"--workdir={place}/run", *chosen, *others]
    return outcomes_of(cases)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_arguments_a_command_names_a_flag_that_it_needs(ended, name):
    status, output = ended[f"{name} alone"]
    assert (status, "=… is missing: " in output) == (2, True)
    assert "Traceback" not in output


def assert_refused(outcome: tuple[int, str], sentence: str) -> None:
    status, output = outcome
    assert sentence in output
    assert "Traceback" not in output
    assert status == 2


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_empty_path_is_not_the_current_folder(ended, name):
    assert_refused(ended[f"{name} empty"], f"--{OUTPUTS[name][0]}=: It is empty; expected a path.")


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused(ended, place, name):
    sentence = f"--{OUTPUTS[name][0]}={place}/file/below.npz: '{place}/file' is not a folder."
    assert_refused(ended[f"{name} unwritable"], sentence)


# Command, arguments, and what is said.
REFUSED_OUTPUTS = {
    "blank": ("launch.report", "--output= ", "--output= : It is empty"),
    "empty input": ("launch.export", "--workdir=", "--output={place}/x.npz", "--workdir=: It is e"),
    "suffix": ("launch.export", "--workdir=x", "--output={place}/x.zip", "that ends in '.npz'."),
    "folder": ("launch.export", "--workdir=x", "--output={place}/folder.npz", "It is a folder; ex"),
    "missing": ("launch.export", "--workdir=x", "--output={place}/no/x.npz", "no' to write it in"),
}


@pytest.mark.parametrize("name", REFUSED_OUTPUTS)
def test_an_output_of_another_kind_is_refused(ended, name):
    assert_refused(ended[name], REFUSED_OUTPUTS[name][-1])


# Config files.

FILES = {
    "nothing": "",
    "syntax": "def get_config(:\n",
    "bytes": "\x00",
    "import": "import no_such_module\n",
    "raises": "def get_config():\n    return {}['x']\n",
    "refuses": "def get_config():\n    raise ValueError('Not on Sundays.')\n",
    "needs": "def get_config(size):\n    return size\n",
    "returns_none": "def get_config():\n    pass\n",
    "not_finite": (
        "from tests.launch import discover_tiny\n"
        "def get_config():\n"
        "    config = discover_tiny.get_config()\n"
        "    config.meta.learning_rate = float('nan')\n"
        "    return config\n"
    ),
    "dataclass": (
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "from tests.launch import discover_tiny\n"
        "@dataclasses.dataclass\n"
        "class Mine:\n"
        "    seed: int = 5\n"
        "def get_config(suite):\n"
        "    config = discover_tiny.get_config()\n"
        "    config.seed, config.suite = Mine().seed, suite\n"
        "    return config\n"
    ),
}
# What comes after `--config=`, other flags, and what is said.
REFUSED_CONFIGS = {
    "missing": ("nowhere.py", [], "FileNotFoundError: [Errno 2] No such file or directory: "),
    "empty": ("", [], "--config=: FileNotFoundError: [Errno 2] No such file or directory: ''; exp"),
    "folder": (None, ["--config={place}"], "IsADirectoryError: [Errno 21] Is a directory"),
    "pipe": ("pipe", [], "pipe is a pipe; expected a regular file; expected a Python file with"),
    "no get_config": ("nothing.py", [], "has no attribute 'get_config'"),
    "syntax": ("syntax.py", [], "syntax.py: SyntaxError: invalid syntax (syntax.py, line 1); exp"),
    "bytes": ("bytes.py", [], "bytes.py: "),
    "import": ("import.py", [], "ModuleNotFoundError: No module named 'no_such_module' (line 1);"),
    "raises": ("raises.py", [], "raises.py: KeyError: 'x' (line 2); expected a Python file"),
    "refuses": ("refuses.py", [], "refuses.py: Not on Sundays."),
    "needs": ("needs.py", [], "get_config() missing 1 required positional argument: 'size'; exp"),
    "too many": ("raises.py:one", [], "get_config() takes 0 positional arguments but 1 was given"),
    "result": ("needs.py:one", [], "get_config returns str; expected a Python file with a functi"),
    "no result": ("returns_none.py", [], "get_config returns NoneType; expected a Python"),
    "not finite": ("not_finite.py", [], "config.meta.learning_rate is nan; expected a finite numb"),
    # Before and after the file is read, which is when the flag is defined if none is named.
    "field": ("dataclass.py:catch", ["--config.speed=1"], "--config.speed=1: the config has no fi"),
    "default's field": (None, ["--config.speed=1"], "no field 'speed'; did you mean seed? --pr"),
    "within a field": (
        None,
        ["--config.suite.speed=1"],
        "no field 'suite.speed'; did you mean su",
    ),
    "no field": (None, ["--config.=1"], "--config.=1: the config has no field ''. --print_c"),
    "mistyped": (None, ["--config.agent.bach_size=1"], "did you mean agent.batch_size or"),
    "without its section": (None, ["--config.batch_size=1"], "agent.batch_size"),
    "section": (None, ["--config.meta={{}}"], "meta has fields of its own; expected one of ad"),
    "index": (
        None,
        ["--config.agent.network.torso[0]=1"],
        "did you mean agent.network.torso or",
    ),
    "default's value": (None, ["--config.meta.learning_rate=nan"], "learning_rate is nan; expect"),
    "large seed": (None, [f"--config.seed={2**64}"], "config.seed is 18446744073709551616; expect"),
    "negative seed": (None, ["--config.seed=-1"], "seed is -1; expected 0 to 2**32 - 1."),
}


@pytest.mark.parametrize("name", REFUSED_CONFIGS)
def test_a_config_that_cannot_be_used_is_refused(ended, place, name):
    file, others, sentence = REFUSED_CONFIGS[name]
    assert_refused(ended[f"config {name}"], sentence)
    if file is not None and not others and name != "not finite":
        assert f"--config={place / file if file else ''}: " in ended[f"config {name}"][1]
    assert not (place / "run").exists()


def test_a_config_file_is_read_with_its_argument_and_its_changes(place):
    """Its dataclass has annotations that are text, and a change leaves its size as it is."""
    file = place / "dataclass.py"
    arguments = [f"--config={file}:catch/4x3", "--config.meta_steps=7"]
    settings = from_config(DiscoveryRunConfig, parse_config(arguments))
    assert (settings.seed, settings.suite, settings.meta_steps) == (5, "catch/4x3", 7)
    file.write_text(FILES["dataclass"].replace("seed: int = 5", "seed: int = 6"))
    assert parse_config(arguments).seed == 6
    default = parse_config([f"--config={grid57_laptop.__file__}"])
    assert from_config(DiscoveryRunConfig, default) == grid57_laptop.get_config()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([], ""),
        (["--suite"], ""),
        (["--suite", "catch"], "catch"),
        (["--rule=x", "-suite=catch/5x5"], "catch/5x5"),
        (["--suite=catch", "--suite=lpg"], "lpg"),  # As absl reads it.
    ],
)
def test_a_flags_value_before_flags_are_parsed(monkeypatch, arguments, value):
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    assert value_of("suite") == value

"""The hooks before commits and pushes run what CI runs."""

import pathlib
import re

import yaml
from pre_commit import clientlib

ROOT = pathlib.Path(__file__).parents[1]
CONFIG = ROOT / ".pre-commit-config.yaml"


def hooks() -> list[dict[str, object]]:
    (repository,) = yaml.safe_load(CONFIG.read_text())["repos"]
    assert repository["repo"] == "local"  # The versions are those of constraints.txt.
    return repository["hooks"]


def test_pre_commit_accepts_the_file():
    clientlib.load_config(str(CONFIG))


def test_hooks_are_the_static_checks_of_ci():
    ci = (ROOT / ".ci/run").read_text()
    (checks,) = re.findall(r"make --keep-going ([a-z ]+)", ci)
    assert sorted(str(hook["entry"]) for hook in hooks()) == sorted(
        f"make {target}" for target in checks.split()
    )


def test_each_tool_is_run_and_pinned():
    makefile = (ROOT / "Makefile").read_text()
    pins = (ROOT / "constraints.txt").read_text()
    commands = ""
    for hook in hooks():
        target = str(hook["entry"]).removeprefix("make ")
        (recipe,) = re.findall(rf"^{target}: install\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        commands += recipe
    for tool in ("$(BIN)/ruff check .", "$(BIN)/ruff format --check .", "$(BIN)/lint-imports"):
        assert tool in commands
    assert commands.rstrip().endswith("$(BIN)/pyright")
    for package in ("ruff", "pyright", "import-linter", "pre-commit"):
        assert re.search(rf"^{package}==", pins, re.MULTILINE)

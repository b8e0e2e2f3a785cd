"""The Dockerfile names what is there: nothing here can build it."""

import importlib.util
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its arguments, with continued lines joined."""
    code = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n", " ", code).splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], " ".join(line.split()[1:])) for line in lines]


def arguments(of: str) -> list[str]:
    return [rest for name, rest in instructions() if name == of]


def test_extras_exist():
    known = set(PROJECT["project"]["optional-dependencies"])
    (installed,) = re.findall(r'"\.\[(.*?)\$', DOCKERFILE)
    chosen = [x for x in arguments("ARG") if x.startswith("EXTRAS=")]
    named = re.findall(r"--build-arg EXTRAS=([\w,]+)", DOCKERFILE)
    lists = [installed, *named, *(x.removeprefix("EXTRAS=") for x in chosen)]
    extras = {extra for names in lists for extra in names.split(",")}
    assert {"platform", "suites", "cuda"} <= extras <= known


def test_the_python_is_supported():
    (python,) = [x.removeprefix("PYTHON=") for x in arguments("ARG") if x.startswith("PYTHON=")]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert tuple(map(int, python.split("."))) >= (3, 11)


def test_versions_are_those_of_the_constraints():
    (install,) = [x for x in arguments("RUN") if "pip install" in x]
    assert "--constraint constraints.txt" in install


def test_what_is_copied_is_what_is_installed():
    """The first line leaves out all; what is let in exists, and holds each package."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    kept = {x.removeprefix("!") for x in patterns if x.startswith("!")}
    assert {x for x in kept if not (ROOT / x).exists()} == set()
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {x.removesuffix("*") for x in packages} <= kept
    files = {"pyproject.toml", "constraints.txt", PROJECT["project"]["readme"]}
    assert files | set(PROJECT["project"]["license-files"]) <= kept


def test_commands_exist_and_are_not_run_by_root():
    assert arguments("USER") == ["disco"]
    modules = re.findall(r"-m ([a-z.]+)", DOCKERFILE.replace("python -m pip", ""))
    assert {"launch.evaluate", "tensorboard.main"} <= set(modules)
    assert [x for x in modules if importlib.util.find_spec(x) is None] == []
    assert arguments("ENTRYPOINT") == ['["python"]']
    assert arguments("CMD") == ['["-m", "launch"]']


def test_system_packages_are_those_of_ci():
    ci = (ROOT / ".ci/run").read_text()
    (install,) = [x for x in arguments("RUN") if "apt-get install" in x]
    names = re.findall(r"--no-install-recommends (.*?) &&", install)[0].split()
    assert [x for x in names if x not in ci] == []

"""The library as it is installed: light, versioned and typed."""

import pathlib
import re
import subprocess
import sys
import tomllib

import disco

ROOT = pathlib.Path(__file__).parents[2]


def test_import_loads_nothing_of_the_platform_and_nothing_slow():
    code = "import sys, disco; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"disco", "jax", "chex"} <= packages
    platform = {"agents", "environments", "evaluation", "haiku", "launch", "meta", "orbax"}
    slow = {"distrax", "matplotlib", "pandas", "rlax", "tensorflow_probability"}
    assert not packages & (platform | slow)


def test_base_dependencies_are_those_of_the_library():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", dependency)[0] for dependency in project["dependencies"]}
    assert names == {"chex", "distrax", "jax", "jaxtyping", "numpy", "optax", "rlax"}


def test_version_and_types():
    assert re.fullmatch(r"\d+\.\d+\.\d+", disco.__version__)
    assert (pathlib.Path(disco.__file__).parent / "py.typed").exists()
    citation = (pathlib.Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {disco.__version__}\n" in citation

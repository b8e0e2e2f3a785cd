"""The library as it is installed: light, versioned and typed."""

import inspect
import pathlib
import pydoc
import re
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import pytest

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
    assert names == {"chex", "jax", "jaxtyping", "numpy", "optax"}


def test_version_and_types():
    assert re.fullmatch(r"\d+\.\d+\.\d+", disco.__version__)
    assert (pathlib.Path(disco.__file__).parent / "py.typed").exists()
    citation = (pathlib.Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {disco.__version__}\n" in citation


def shown(thing) -> str:
    """What `help` shows, in one line."""
    return " ".join(pydoc.plain(pydoc.render_doc(thing)).replace("|", " ").split())


def test_help_says_what_the_types_are():
    assert "`action[t]` is taken in `observation[t]`; `reward[t]`" in shown(disco.Trajectory)
    assert "parameters of an agent's network, any pytree of arrays" in shown(disco.Params)
    assert "unroll(params, trajectory)" in shown(disco.Unroll)
    assert "each `[T+1, B, *shape]`" in shown(disco.Unroll)
    assert isinstance({"w": [jnp.zeros(2)], "b": ()}, disco.Params)
    assert not isinstance({"w": "text"}, disco.Params)


@pytest.mark.parametrize(
    "rule",
    [
        disco.DiscoveredRule.create(jax.random.key(0), disco.MetaNetworkSizes(prediction=6)),
        disco.HandSetRule(),
        disco.ActorCritic(),
    ],
)
def test_output_shapes_says_what_each_output_is(rule):
    described = inspect.getdoc(rule.output_shapes)
    assert described is not None
    assert [name for name in rule.output_shapes(3) if f"`{name}`" not in described] == []

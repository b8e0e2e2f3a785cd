"""Options of XLA's are asked for: releases drop them."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from disco_common import compilation

CONFIG: Any = jax.config  # Its options are no attributes to a type checker.


@pytest.fixture(autouse=True)
def _forget():
    yield
    compilation.supported_options.cache_clear()


def test_unknown_options_are_left_out():
    known = compilation.supported_options(
        xla_backend_optimization_level=1, xla_an_option_of_tomorrow=True
    )
    assert known == {"xla_backend_optimization_level": 1}
    assert jax.jit(lambda x: x + 1, compiler_options=known)(1) == 2


def test_a_wrong_value_of_a_known_option_is_an_error():
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid bool value"):
        compilation.supported_options(xla_cpu_multi_thread_eigen=3)


def test_unknown_flags_are_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    flags = compilation.xla_flags(
        "--xla_a_flag_of_yesterday=1",
        "--xla_backend_optimization_level=1",
        "--xla_cpu_enable_fast_math=true",  # The user has said otherwise.
    )
    assert flags == "--xla_cpu_enable_fast_math=false --xla_backend_optimization_level=1"


def test_fast_compilation_changes_no_result_and_compiles_once():
    traces = []

    class Doubler:
        @compilation.jit_compiled_fast(static_argnums=0)
        def __call__(self, x):
            traces.append(x)
            return 2 * jnp.sin(x)

    doubler = Doubler()
    for x in (1.0, 2.0):
        assert float(doubler(x)) == pytest.approx(2 * math.sin(x), rel=1e-6)
    assert len(traces) == 1
    assert Doubler.__call__.jitted().eval_shape(doubler, 1.0).shape == ()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_options_for_cpus_are_for_cpus_only(monkeypatch, backend):
    given = []
    jit = jax.jit
    known = compilation.supported_options(**compilation._FASTEST)
    assert "xla_backend_optimization_level" in known
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def spy(function, compiler_options=None, **arguments):
        given.append(compiler_options)
        return jit(function, compiler_options=compiler_options, **arguments)

    monkeypatch.setattr(jax, "jit", spy)
    assert compilation.jit_compiled_fast(lambda x: x + 1)(1) == 2
    assert given == [known if backend == "cpu" else None]
    assert (compilation.fast_on_cpu() is None) == (backend != "cpu")


# What is kept from one process to the next.


@pytest.fixture
def without_cache(monkeypatch):
    """As in a process that has not decided yet; afterwards as the other tests have it."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE", "XDG_CACHE_HOME")
    for name in (*names, "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.setenv(name, "")  # So that what is set by then is forgotten afterwards.
        monkeypatch.delenv(name)
    options = ("compilation_cache_dir", "compilation_cache_max_size", "enable_compilation_cache")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in options}
    jax.config.update("jax_enable_compilation_cache", True)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)


def assert_nothing_is_kept(caplog, reason: str) -> None:
    compilation.keep_programs()
    assert not CONFIG.jax_enable_compilation_cache
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "0"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "Compiled programs are not kept: " in record.getMessage()
    assert reason in record.getMessage()


def test_a_user_without_a_home_keeps_no_programs(without_cache, caplog):
    """As a container's often are: no HOME, and a number that /etc/passwd does not have."""
    without_cache.delenv("HOME", raising=False)
    without_cache.setattr(os, "getuid", lambda: 2**31 - 7)
    assert_nothing_is_kept(caplog, "home directory")


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"])
def test_a_folder_that_cannot_be_made_keeps_no_programs(without_cache, caplog, tmp_path, variable):
    (tmp_path / "file").touch()
    without_cache.setenv(variable, str(tmp_path / "file" / "cache"))
    assert_nothing_is_kept(caplog, "Not a directory")


def test_a_folder_that_can_be_made_keeps_them(without_cache, tmp_path):
    without_cache.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation.keep_programs()
    folder = CONFIG.jax_compilation_cache_dir
    assert folder == os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert folder.startswith(str(tmp_path / "disco" / "xla-"))
    assert CONFIG.jax_enable_compilation_cache


@pytest.mark.skipif(not compilation._MAPPINGS.exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("limit", "traces"), [(0, 2), (10**9, 1)])
def test_many_programs_are_dropped(monkeypatch, limit, traces):
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)
    program(1)
    monkeypatch.setattr(compilation, "_MANY_MAPPINGS", limit)
    compilation.limit_programs()
    program(1)
    assert len(traced) == traces

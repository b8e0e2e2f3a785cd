"""Options of XLA's are asked for: releases drop them."""

import math

import jax
import jax.numpy as jnp
import pytest

from agents import compilation


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

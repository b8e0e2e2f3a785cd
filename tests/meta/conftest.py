"""Compiling takes most of these tests' time, and what is computed takes little."""

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def _compile_quickly():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)

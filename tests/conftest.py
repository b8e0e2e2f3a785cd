"""Settings of every test run. Read before JAX is imported."""

import gc
import os
import pathlib

# Under `pytest -n auto` there are as many processes as processors.
if "PYTEST_XDIST_WORKER" in os.environ:
    flags = os.environ.get("XLA_FLAGS", "")
    if "multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")


# A process may have some 65,000 mappings of memory on Linux, and XLA takes a few for every program
# that it compiles for a CPU. Beyond that it aborts.
_MANY_MAPPINGS = 25_000
_MAPPINGS = pathlib.Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """After a module, once there are many."""
    yield
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MANY_MAPPINGS:
        jax.clear_caches()
        gc.collect()

"""Settings of every test run. Read before JAX is imported."""

import gc
import os
import pathlib

# Tests compile more than they compute, so that all is compiled as a meta-step is on a CPU
# (`agents.compilation`): the whole suite takes 0.7 of the time. Child processes inherit it.
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
    f" {os.environ.get('XLA_FLAGS', '')}"
)
# Under `pytest -n auto` there are as many processes as processors.
if "PYTEST_XDIST_WORKER" in os.environ and "multi_thread_eigen" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")


# Minutes each. They go first, so that no worker is left with one of them at the end.
_LONGEST = """meta/test_discovery.py launch/test_processes.py launch/test_discover.py
    launch/test_sweep.py evaluation/test_executors.py evaluation/test_analysis.py
    meta/test_host_group.py agents/dreamer/test_agent.py evaluation/test_robustness.py
    agents/dreamer/test_golden.py disco/test_gradient.py""".split()
_TESTS = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Whole modules stay together (`--dist loadfile`), and with them what their tests share."""
    places = {_TESTS / name: i for i, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


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

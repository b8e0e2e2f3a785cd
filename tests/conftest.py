"""Settings of every test run. Read before JAX is imported."""

import os

# Under `pytest -n auto` there are as many processes as processors.
if "PYTEST_XDIST_WORKER" in os.environ:
    flags = os.environ.get("XLA_FLAGS", "")
    if "multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("MPLBACKEND", "agg")

import jax

jax.config.update("jax_default_matmul_precision", "highest")

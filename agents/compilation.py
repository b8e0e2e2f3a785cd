"""How programs are compiled: XLA's options by how often a program runs (docs/performance.md)."""

import os
import pathlib
import platform
import zlib

import jax

_CACHE_BYTES = 4 << 30

# For what runs seldom or computes little: it pays to compile it fast rather than well. The second
# option concerns CPUs; neither was tried on an accelerator.
QUICKEST = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quickly_on_cpu() -> dict[str, bool | int] | None:
    """For large programs of which a CPU makes a step a second: a third less time to compile."""
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
    if not jax.config.read("jax_disable_most_optimizations"):  # Whoever asks for that wants less.
        options["xla_backend_optimization_level"] = 1
    return options


def keep_programs() -> None:
    """Compiles no program twice: JAX keeps them in the user's cache folder, the last few GB.

    A CPU's programs use all that the CPU can do, so that each kind of CPU has a folder of its own.
    The environment variable JAX_COMPILATION_CACHE_DIR names another folder;
    JAX_ENABLE_COMPILATION_CACHE=0 keeps nothing.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    cpu = zlib.crc32(_cpu_features().encode())
    folder = str(pathlib.Path(root) / f"disco/xla-{cpu:08x}")
    for name, value in (("dir", folder), ("max_size", _CACHE_BYTES)):
        jax.config.update(f"jax_compilation_cache_{name}", value)
        os.environ[f"JAX_COMPILATION_CACHE_{name.upper()}"] = str(value)  # For child processes.


def _cpu_features() -> str:
    """What this machine's CPU can do, as the system tells it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x for x in lines if x.startswith(("flags", "Features"))), platform.processor())

"""Compilation: XLA options by how often a program runs, and the cache (docs/performance.md)."""

import functools
import gc
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from disco_common.files import user_cache

_CACHE_BYTES = 4 << 30
# A process may have some 65,000 mappings of memory on Linux, and XLA takes hundreds for a program
# that it compiles for a CPU. Beyond that the process crashes.
_MANY_MAPPINGS = 30_000
_MAPPINGS = pathlib.Path("/proc/self/maps")

# A flag for XLA_FLAGS: one thread per CPU device.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"

# XLA options that shorten compilation for CPUs; those that XLA does not accept are left out.
_FASTEST = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@functools.cache
def supported_options(**options: bool | int) -> dict[str, Any]:
    """Return the compiler options that this release of XLA accepts on the default backend.

    XLA's options differ between releases, and XLA rejects a program with an unknown option. So
    each option is tried once on an empty program. This starts the backend.
    """
    supported = {}
    for name, value in options.items():
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
            supported[name] = value
        except jax.errors.JaxRuntimeError as error:
            # Other errors are not caused by the option, so they are raised.
            if "compile option" not in str(error):
                raise
    return supported


def jit_compiled_fast(function: Callable[..., Any] | None = None, **jit_arguments: Any) -> Any:
    """Wrap a function in `jax.jit` with options that shorten compilation but give slower code.

    For programs that run seldom or compute little. Accelerators' programs do not have the options:
    their effect was only measured on CPUs. The lookup of the options, which starts the backend, is
    at the first call. `function.jitted()` returns the result of `jax.jit`.
    """
    if function is None:
        return functools.partial(jit_compiled_fast, **jit_arguments)

    @functools.cache
    def jitted():
        options = supported_options(**_FASTEST) if jax.default_backend() == "cpu" else None
        return jax.jit(function, compiler_options=options, **jit_arguments)

    @functools.wraps(function)
    def call(*arguments):
        return jitted()(*arguments)

    call.jitted = jitted  # pyright: ignore[reportAttributeAccessIssue]
    return call


def fast_on_cpu() -> dict[str, Any] | None:
    """Return compiler options for large programs that run about once a second on a CPU.

    They reduce compilation time by a third (docs/performance.md). None on other backends.
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
    if not jax.config.read("jax_disable_most_optimizations"):  # Which sets level 0.
        options["xla_backend_optimization_level"] = 1
    return supported_options(**options)


def limit_programs() -> None:
    """Drop all compiled programs if this process has so many that more might crash it.

    A long search or evaluation compiles thousands. What is still needed is compiled again, or read
    from the persistent cache. To be called between jobs, and between tasks of a generation.
    """
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MANY_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def xla_flags(*flags: str) -> str:
    """Return the environment variable XLA_FLAGS with those given flags added that XLA knows.

    An unknown flag ends a process when its backend starts. So each flag, `--name=value`, is first
    tried in another process, which takes a second, but for names that the variable has already.
    """
    found = os.environ.get("XLA_FLAGS", "")
    new = [flag for flag in flags if flag.partition("=")[0] not in found]
    return " ".join([found, *filter(_is_known_flag, new)]).strip()


@functools.cache
def _is_known_flag(flag: str) -> bool:
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def keep_programs() -> None:
    """Enable JAX's persistent compilation cache in `disco_common.files`, of a few GB.

    A program for a CPU uses all of that CPU's instructions, so each kind of CPU has its own folder.
    The environment variable JAX_COMPILATION_CACHE_DIR names another folder.
    JAX_ENABLE_COMPILATION_CACHE=0 disables the cache. If the folder cannot be written, or the user
    has no home folder, a warning is logged and the cache is disabled.
    """
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    try:
        folder = named or str(user_cache() / f"xla-{zlib.crc32(_cpu_features().encode()):08x}")
        if "://" not in folder:  # JAX itself accesses buckets.
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:
        # Otherwise JAX would warn of each program that it cannot read or write.
        logging.warning("Compiled programs are not kept: %s", error)
        jax.config.update("jax_enable_compilation_cache", False)
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # For child processes.
        return
    if named:
        return
    for name, value in (("dir", folder), ("max_size", _CACHE_BYTES)):
        jax.config.update(f"jax_compilation_cache_{name}", value)
        os.environ[f"JAX_COMPILATION_CACHE_{name.upper()}"] = str(value)  # For child processes.


def _cpu_features() -> str:
    """Return the CPU's feature flags as the operating system lists them."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((x for x in lines if x.startswith(("flags", "Features"))), platform.processor())

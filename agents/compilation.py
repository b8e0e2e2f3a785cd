"""How programs are compiled: XLA's options by how often a program runs (docs/performance.md)."""

import functools
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

_CACHE_BYTES = 4 << 30

# Of XLA_FLAGS: one thread per CPU device.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"

# Options of XLA's that shorten compilation, each on any backend and release that has it.
_FASTEST = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@functools.cache
def supported_options(**options: bool | int) -> dict[str, Any]:
    """Returns those compiler options that this release of XLA accepts on the default backend.

    XLA's options come and go with its releases, and it refuses a program with an unknown one. So
    each is tried once on an empty program. Starts the backend.
    """
    return {name: value for name, value in options.items() if _accepts(name, value)}


def _accepts(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        # Anything else is not the option's fault, and not to be hidden.
        if "compile option" not in str(error):
            raise
        return False
    return True


def jit_compiled_fast(function: Callable[..., Any] | None = None, **jit_arguments: Any) -> Any:
    """`jax.jit` for programs that run seldom or compute little: compiled fast rather than well.

    The options are looked up at the first call, as looking them up starts the backend. What
    `jax.jit` returned is the result of `function.jitted()`.
    """
    if function is None:
        return functools.partial(jit_compiled_fast, **jit_arguments)

    @functools.cache
    def jitted():
        return jax.jit(function, compiler_options=supported_options(**_FASTEST), **jit_arguments)

    @functools.wraps(function)
    def call(*arguments):
        return jitted()(*arguments)

    call.jitted = jitted  # pyright: ignore[reportAttributeAccessIssue]
    return call


def fast_on_cpu() -> dict[str, Any] | None:
    """Compiler options of large programs that run once a second on a CPU.

    They take a third less time to compile (docs/performance.md).
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
    if not jax.config.read("jax_disable_most_optimizations"):  # That one asks for level 0.
        options["xla_backend_optimization_level"] = 1
    return supported_options(**options)


def xla_flags(*flags: str) -> str:
    """The environment variable XLA_FLAGS with those of the given flags added that XLA knows.

    An unknown flag ends a process when its backend starts, so each is tried in another process
    first, which takes a second. What the variable has already is not tried again.

    Args:
      *flags: each `--name=value`. One whose name the variable has already is left out.
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
    """Compiles no program twice: JAX keeps them in the user's cache folder, the last few GB.

    A CPU's programs use all that the CPU can do, so that each kind of CPU has a folder of its own.
    The environment variable JAX_COMPILATION_CACHE_DIR names another folder;
    JAX_ENABLE_COMPILATION_CACHE=0 keeps nothing. Where the folder cannot be written, or the user
    has no home for it, nothing is kept, which a warning says.
    """
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    try:
        folder = named or str(_users_folder())
        if "://" not in folder:  # A bucket, which JAX sees to.
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:
        # JAX would warn of each program that it cannot read or write.
        logging.warning("Compiled programs are not kept: %s", error)
        jax.config.update("jax_enable_compilation_cache", False)
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # For child processes.
        return
    if named:
        return
    for name, value in (("dir", folder), ("max_size", _CACHE_BYTES)):
        jax.config.update(f"jax_compilation_cache_{name}", value)
        os.environ[f"JAX_COMPILATION_CACHE_{name.upper()}"] = str(value)  # For child processes.


def _users_folder() -> pathlib.Path:
    """This CPU's folder of compiled programs.

    Raises:
      RuntimeError: if the user has no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    cpu = zlib.crc32(_cpu_features().encode())
    return pathlib.Path(root) / f"disco/xla-{cpu:08x}"


def _cpu_features() -> str:
    """What this machine's CPU can do, as the system tells it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x for x in lines if x.startswith(("flags", "Features"))), platform.processor())

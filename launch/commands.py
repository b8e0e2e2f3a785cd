"""What all commands share: quiet libraries, and user errors in a sentence."""

import os
import pathlib
import platform
import sys
import traceback
import zlib
from collections.abc import Callable
from typing import NoReturn

import jax
from absl import app, flags, logging

from environments import SimulatorError, available_processors
from evaluation.executors import JobsFailedError
from launch.flag_parsing import parse_flags

_CACHE_BYTES = 4 << 30

# What a user can cause, with a message made for him. Anything else is a bug and has a traceback.
_USER_ERRORS = (ValueError, OSError, ImportError, SimulatorError)


def run(command: Callable[[], int | None]) -> None:
    """Parses flags and runs a command; its result, if any, is the exit status.

    A user's error ends it with status 2 and the error's message, jobs that failed again and again
    with status 3 and a list of them; `--verbosity=1` shows the traceback too, and what the
    libraries have to say.
    """

    def main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unknown arguments {argv[1:]}.")
        if not flags.FLAGS["verbosity"].present:
            _silence_libraries()
        _keep_compiled_programs()
        try:
            status = command()
        except _USER_ERRORS as error:
            if logging.vlog_is_on(1):
                raise
            _fail(_say(command, error, 2))
        except JobsFailedError as error:
            _fail(_say(command, error, 3))
        except Exception:
            if not jax.distributed.is_initialized():
                raise
            traceback.print_exc()
            _fail(1)
        sys.exit(status or 0)

    app.run(main, flags_parser=parse_flags)


def _fail(status: int) -> NoReturn:
    """Ends a command that failed; at once where other processes may wait for this one."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _keep_compiled_programs() -> None:
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


def _say(command: Callable[[], int | None], error: Exception, status: int) -> int:
    spec = sys.modules[command.__module__].__spec__  # Names what `python -m` runs.
    print(f"{spec.name if spec else command.__module__}: {error}", file=sys.stderr)
    return status


def _silence_libraries() -> None:
    """Hides what they log, and Orbax's tracebacks: its errors reach us as exceptions as well."""
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    report = sys.unraisablehook

    def ignore_late_writes(unraisable) -> None:
        # When one array of a checkpoint cannot be written, the others' writes end unheard.
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = ignore_late_writes


def use_all_cores(most: int = 16) -> None:
    """On a CPU, one device per core, each with one thread.

    Many small agents keep cores busier side by side than one after the other with every core
    on each. To be called before JAX computes anything; leaves alone what the environment
    variables XLA_FLAGS and JAX_NUM_CPU_DEVICES say of it.
    """
    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    os.environ["XLA_FLAGS"] = f"{found} --xla_cpu_multi_thread_eigen=false".strip()
    jax.config.update("jax_num_cpu_devices", min(available_processors(), most))


def leave_accelerators() -> None:
    """Makes JAX compute on the CPU, in a process whose children or workers need the accelerators.

    To be called before JAX computes anything. Other processes do not inherit it.
    """
    jax.config.update("jax_platforms", "cpu")

"""What all commands share: quiet libraries, and user errors in a sentence."""

import os
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging

from environments import SimulatorError, available_processors
from evaluation.executors import JobsFailedError
from launch.flag_parsing import parse_flags

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
        try:
            status = command()
        except _USER_ERRORS as error:
            if logging.vlog_is_on(1):
                raise
            status = _say(command, error, 2)
        except JobsFailedError as error:
            status = _say(command, error, 3)
        sys.exit(status or 0)

    app.run(main, flags_parser=parse_flags)


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

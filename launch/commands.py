"""What all commands share: quiet libraries, exit statuses, and user errors in a sentence.

The exit statuses are those by which schedulers choose whether to start a job again:

    0        done; started again, there is nothing left to do
    1        a mistake of ours, with its traceback, or a flag that absl refuses
    2        an error that a user has to act upon, in a sentence: trying again gives it again
    128 + n  stopped by signal n: 130 Ctrl-C, 143 SIGTERM, 137 SIGKILL. Started again with the
             same workdir, it goes on. Some callers see -n instead, where the signal itself ended it

Kubernetes' `podFailurePolicy` with `onExitCodes` reads them (fail the job upon 1 and 2), and so
does Slurm's `RequeueExit` (requeue upon 130, 137 and 143).
"""

import logging as python_logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import app, flags, logging

from environments import SimulatorError, available_processors
from launch.flag_parsing import parse_flags

# What a user can cause, with a message made for him. Anything else is a bug and has a traceback.
_USER_ERRORS = (ValueError, OSError, ImportError, SimulatorError)


def run(command: Callable[[], int | None], *, shrink: Sequence[str] = ()) -> None:
    """Parses flags and runs a command; its result, if any, is the exit status.

    A user's error ends it with status 2 and the error's message; `--verbosity=1` shows the
    traceback too, and what the libraries have to say.

    Args:
      command: what it does.
      shrink: settings of its config that its memory grows with, those first that save most: what
        to say when there is not enough.
    """

    def main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unknown arguments {argv[1:]}.")
        if not flags.FLAGS["verbosity"].present:
            silence_libraries()
        spec = sys.modules[command.__module__].__spec__  # Names what `python -m` runs.
        name = spec.name if spec else command.__module__
        try:
            status = command()
        except KeyboardInterrupt:
            print(f"{name}: stopped by Ctrl-C.", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except (*_USER_ERRORS, MemoryError, jax.errors.JaxRuntimeError) as error:
            is_ours = not isinstance(error, _USER_ERRORS) and not _is_out_of_memory(error)
            if is_ours or logging.vlog_is_on(1):
                raise
            message = error if isinstance(error, _USER_ERRORS) else _out_of_memory(error, shrink)
            print(f"{name}: {message}", file=sys.stderr)
            sys.exit(2)
        sys.exit(status or 0)

    app.run(main, flags_parser=parse_flags)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is the host's memory or a device's that does not suffice.

    An accelerator's allocator says RESOURCE_EXHAUSTED, as jax 0.10 does of a CPU's too where it
    computes at once. What a CPU dispatches is an INTERNAL error that says "Out of memory".
    Tried on CPUs only.
    """
    return isinstance(error, MemoryError) or bool(
        re.search("RESOURCE_EXHAUSTED|out of memory", str(error), re.IGNORECASE)
    )


def _out_of_memory(error: Exception, shrink: Sequence[str]) -> str:
    """What was asked for, and what could ask for less."""
    reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")[:300]
    message = f"There is not enough memory on {jax.default_backend()} ({reason})."
    values = {name: _configured(name) for name in shrink}
    # None is all at once, but one on a CPU (`agents.passes`).
    none = 1 if jax.default_backend() == "cpu" else "None, which is all"
    values = {name: none if value is None else value for name, value in values.items()}
    smaller = [f"--config.{name} ({value})" for name, value in values.items() if value != 1]
    if smaller:
        message += f" Shrink some of these, those first save most: {', '.join(smaller)}."
    return f"{message} Or use more devices, or larger ones."


def _configured(name: str) -> Any:
    value = flags.FLAGS.config
    for part in name.split("."):
        value = value[part]
    return value


def silence_libraries() -> None:
    """Hides what they log, and Orbax's tracebacks: its errors reach us as exceptions as well."""
    logging.set_verbosity(logging.WARNING)
    # When one array of a checkpoint cannot be written, nobody asks what became of the others.
    python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL)
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    report = sys.unraisablehook

    def ignore_late_writes(unraisable) -> None:
        # Likewise.
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = ignore_late_writes


def use_all_cores(most: int = 16) -> None:
    """On a CPU, one device per core, each with one thread.

    Many small agents keep cores busier side by side than one after the other with every core
    on each. To be called before JAX computes anything; leaves alone what the environment
    variable XLA_FLAGS says of it.
    """
    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found:
        return
    os.environ["XLA_FLAGS"] = f"{found} --xla_cpu_multi_thread_eigen=false".strip()
    jax.config.update("jax_num_cpu_devices", min(available_processors(), most))

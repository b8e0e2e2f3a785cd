"""What all commands share: quiet libraries, exit statuses, and user errors in a sentence.

The exit statuses are those by which schedulers choose whether to start a job again:

    0        done; started again, there is nothing left to do
    1        a mistake of ours, with its traceback, or a flag that absl refuses
    2        an error that a user has to act upon, in a sentence: trying again gives it again
    3        some jobs failed at each attempt, and the others are done
    75       another process of the run did not come, or has died (`launch.processes`), and this
             one was told; or another command has the workdir open (`launch.locks`)
    128 + n  stopped by signal n: 130 Ctrl-C, 143 SIGTERM, 137 SIGKILL; 134 is how JAX ends a
             process when another one is silent. Some callers see -n instead, where the signal
             itself ended it

After 75 and above, started again with the same workdir, a run goes on. Kubernetes'
`podFailurePolicy` with `onExitCodes` reads them (fail the job upon 1 and 2), and so does Slurm's
`RequeueExit` (requeue upon 75, 130, 134, 137 and 143).
"""

import contextlib
import io
import logging as python_logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from agents import compilation
from environments import SimulatorError, available_processors
from evaluation.executors import JobsFailedError
from launch import locks, processes
from launch.flag_parsing import parse_flags, wants_tracebacks

# What a user can cause, with a message made for him. Anything else is a bug and has a traceback.
_USER_ERRORS = (ValueError, OSError, ImportError, SimulatorError)

# How errors of JAX start that no other process's death explains.
_OURS = ("INVALID_ARGUMENT", "UNIMPLEMENTED")


def run(command: Callable[[], int | None], *, shrink: Sequence[str] = ()) -> None:
    """Parses flags and runs a command; its result, if any, is the exit status.

    A user's error ends it with status 2 and the error's message, jobs that failed again and again
    with status 3 and a list of them; `--verbosity=1` shows the traceback too, and what the
    libraries have to say.

    Args:
      command: what it does.
      shrink: flags that its memory grows with, those first that save most: what to say when
        there is not enough.
    """

    def main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unknown arguments {argv[1:]}.")
        if not flags.FLAGS["verbosity"].present:
            silence_libraries()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # Names of files may be any bytes.
                stream.reconfigure(errors="backslashreplace")
        compilation.keep_programs()
        name = _name_of(command.__module__)
        try:
            status = command()
        except (Exception, KeyboardInterrupt) as error:
            message, status = _explained(error, shrink)
            if message is None or (status == 2 and logging.vlog_is_on(1)):
                if not jax.distributed.is_initialized():
                    raise
                traceback.print_exc()
            else:
                print(f"{name}: {message}", file=sys.stderr)
            _fail(status)
        sys.exit(status or 0)

    app.run(main, flags_parser=parse_flags)


@contextlib.contextmanager
def ended_by_user_errors() -> Iterator[None]:
    """Ends the command by a user's error as `run` does: for what is looked up to define flags."""
    try:
        yield
    except _USER_ERRORS as error:
        if wants_tracebacks():
            traceback.print_exc()
        print(f"{_name_of('__main__')}: {error}", file=sys.stderr)
        sys.exit(2)


def _name_of(module: str) -> str:
    """By which a user knows a module: what `python -m` runs is called `__main__`."""
    spec = sys.modules[module].__spec__
    return spec.name if spec else module


def _explained(error: BaseException, shrink: Sequence[str]) -> tuple[str | None, int]:
    """What to tell the user, None where he can do nothing about it, and the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C.", 128 + signal.SIGINT
    if isinstance(error, JobsFailedError):
        # Without any, jobs are commands that say it themselves.
        if not (shrink and _is_of_memory(str(error))):
            return str(error), 3
        on_ray = flags.FLAGS.get_flag_value("executor", "local") == "ray"
        where = "a worker" if on_ray else jax.default_backend()
        return f"{error}\n{_what_to_shrink(shrink, where)}", 3
    if isinstance(error, processes.ProcessesMissingError | locks.WorkdirHeldError):
        return str(error), os.EX_TEMPFAIL
    if isinstance(error, _USER_ERRORS):
        return str(error), 2
    reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")[:300]
    if isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and _is_of_memory(str(error))
    ):
        where = jax.default_backend()
        hint = _what_to_shrink(shrink, where)
        return f"There is not enough memory on {where} ({reason}). {hint}", 2
    if (
        isinstance(error, jax.errors.JaxRuntimeError)
        and jax.distributed.is_initialized()
        and not str(error).startswith(_OURS)
    ):
        traceback.print_exc()  # Nobody knows for sure.
        return f"Another process of this run has died, it seems ({reason}).", os.EX_TEMPFAIL
    return None, 1


def _fail(status: int) -> NoReturn:
    """Ends a command that failed; at once where other processes may wait for this one."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_of_memory(message: str) -> bool:
    """Whether an error's message says that the host's memory or a device's does not suffice.

    An accelerator's allocator says RESOURCE_EXHAUSTED, as jax 0.10 does of a CPU's too where it
    computes at once. What a CPU dispatches is an INTERNAL error that says "Out of memory".
    Tried on CPUs only.
    """
    return bool(re.search("RESOURCE_EXHAUSTED|out of memory", message, re.IGNORECASE))


def _what_to_shrink(shrink: Sequence[str], where: str) -> str:
    values = {flag: _value(flag) for flag in shrink}
    # None is all at once, but one on a CPU (`training.passes`), which cannot be any less.
    none = 1 if where == "cpu" else "not set"
    values = {flag: none if value is None else value for flag, value in values.items()}
    smaller = [
        f"--{flag} ({'not set' if value == '' else value})"
        for flag, value in values.items()
        if value not in (1, ())
    ]
    if not smaller:
        return "Use more devices, or larger ones."
    return (
        f"Shrink some of these, those first save most: {', '.join(smaller)}. Or use more devices,"
        " or larger ones."
    )


def _value(flag: str) -> Any:
    name, *fields = flag.split(".")
    value: Any = flags.FLAGS[name].value
    for field in fields:
        value = value[field]
    return value


def silence_libraries() -> None:
    """Hides what they log, and Orbax's tracebacks: its errors reach us as exceptions as well."""
    logging.set_verbosity(logging.WARNING)
    # When one array of a checkpoint cannot be written, nobody asks what became of the others.
    python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL)
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    report = sys.unraisablehook

    def ignore_given_up(unraisable) -> None:
        # Likewise, and of one that cannot be read.
        code = getattr(unraisable.object, "cr_code", None)
        is_orbax = code is not None and "orbax" in code.co_filename
        if not is_orbax and str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = ignore_given_up


def use_all_cores(most: int = 16) -> None:
    """On a CPU, one device per core, each with one thread.

    Many small agents keep cores busier side by side than one after the other with every core
    on each. To be called before JAX computes anything; leaves alone what the environment
    variables XLA_FLAGS and JAX_NUM_CPU_DEVICES say of it.
    """
    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    os.environ["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)
    jax.config.update("jax_num_cpu_devices", min(available_processors(), most))


def leave_accelerators() -> None:
    """Makes JAX compute on the CPU, in a process whose children or workers need the accelerators.

    To be called before JAX computes anything. Other processes do not inherit it.
    """
    jax.config.update("jax_platforms", "cpu")

"""The frame of all commands: quiet libraries, exit statuses, and user errors in a sentence.

Schedulers can decide by the exit status whether to start a job again:

    0        done
    1        a bug, with its traceback, or a flag that absl refuses
    2        an error that the user has to fix, in a sentence; a retry fails again
    3        some jobs failed at each attempt, and the others are done
    75       another process of the run did not start or has died (`launch.support.processes`);
             or another command has the workdir open (`launch.support.locks`)
    128 + n  stopped by signal n: 130 Ctrl-C, 143 SIGTERM, 137 SIGKILL; 134 if JAX ended this
             process because another one did not answer. Some callers see -n instead, if the
             signal itself ended the process

After a status of 75 or above, the command continues the run when it is started again with the same
workdir. Kubernetes' `podFailurePolicy` with `onExitCodes` can use these statuses (fail the job upon
1 and 2), and so can Slurm's `RequeueExit` (requeue upon 75, 130, 134, 137 and 143).
"""

import contextlib
import inspect
import io
import logging as python_logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from disco_common import terminal
from evaluation.executors import JobsFailedError
from launch.support import start
from launch.support.flag_parsing import parse_flags, print_config, wants_tracebacks

# Beginnings of JAX errors that the death of another process cannot cause.
_LOCAL_ERRORS = ("INVALID_ARGUMENT", "UNIMPLEMENTED")


def run(
    command: Callable[[], int | None],
    define_flags: Callable[[], None] = lambda: None,
    *,
    shrink: Sequence[str] = (),
) -> None:
    """Define and parse flags, run a command, and exit with its status.

    A user error ends it with status 2 and the error's message. Jobs that failed at each attempt end
    it with status 3 and a list of them. `--verbosity=1` shows tracebacks and the libraries' logs,
    too. `--help` is answered before anything slow is imported: by the functions `command` and
    `define_flags`, not by their module.

    Args:
      command: the command; it returns the exit status, or None for 0.
      define_flags: defines its flags.
      shrink: flags that its memory grows with, by decreasing saving, for the message when memory is
        exhausted.
    """
    name = _name_of(command.__module__)
    start.end_at_interrupts(name)
    start.begin(name, sys.argv)
    with _ended_by_errors(name, shrink):
        define_flags()
    if start.has_flag(sys.argv[1:], *start.HELP):
        print(_help())
        sys.exit(0)

    def main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(terminal.message(f"Unknown arguments {argv[1:]}."))
        if "print_config" in flags.FLAGS and flags.FLAGS["print_config"].value:
            print_config()
            sys.exit(0)
        if not flags.FLAGS["verbosity"].present:
            silence_libraries()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # File names may be any bytes.
                stream.reconfigure(errors="backslashreplace")
        logging.get_absl_handler().setFormatter(_Formatter())
        with _ended_by_errors(name, shrink):
            from agents import compilation  # It takes seconds, and needs the extra `platform`.

            compilation.keep_programs()
            start.raise_at_interrupts()
            status = command()
        sys.exit(status or 0)

    app.run(main, flags_parser=parse_flags)


def _help() -> str:
    """Return what the command does, and its flags, as absl describes them."""
    documentation = inspect.cleandoc(sys.modules["__main__"].__doc__ or "")
    rest = "--version prints the version; --helpfull lists the flags of all libraries."
    return f"{documentation}\n\n{flags.FLAGS.main_module_help().strip()}\n\n{rest}"


@contextlib.contextmanager
def _ended_by_errors(name: str, shrink: Sequence[str]) -> Iterator[None]:
    """End the program upon an error, with its message and status; bugs have a traceback."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        message, status = _explained(error, shrink)
        if message is None or (status == 2 and wants_tracebacks()):
            if message is None and not _is_one_of_several():
                raise
            traceback.print_exc()
        if message is not None:
            print(f"{name}: {_shown(message, error)}", file=sys.stderr)
        _fail(status)


class _Formatter(logging.PythonFormatter):
    """The format of logs; names in them are shown as in messages."""

    def format(self, record: python_logging.LogRecord) -> str:
        return terminal.message(super().format(record), lines=True)


def _shown(message: object, error: BaseException) -> str:
    """Return an error's message as a terminal shows it: a sentence, or lines of jobs or traces."""
    if isinstance(error, ImportError):  # Perhaps of what is imported below.
        return terminal.message(message)
    from environments.errors import SimulatorError

    return terminal.message(message, lines=isinstance(error, SimulatorError | JobsFailedError))


def _name_of(module: str) -> str:
    """Return the name of a module for users, also if `python -m` runs it as `__main__`."""
    spec = sys.modules[module].__spec__
    return spec.name if spec else module


def _explained(error: BaseException, shrink: Sequence[str]) -> tuple[str | None, int]:
    """Return the message for the user, or None for a traceback, and the exit status."""
    if isinstance(error, ImportError):
        return str(error), 2
    import jax

    from environments.errors import SimulatorError
    from launch.support import locks, processes

    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C.", 128 + signal.SIGINT
    if isinstance(error, JobsFailedError):
        # Without `shrink`, jobs are commands, whose own messages name their flags.
        if not (shrink and _is_of_memory(str(error))):
            return str(error), 3
        on_ray = flags.FLAGS.get_flag_value("executor", "local") == "ray"
        where = "a worker" if on_ray else jax.default_backend()
        return f"{error}\n{_what_to_shrink(shrink, where)}", 3
    if isinstance(error, processes.ProcessesMissingError | locks.WorkdirHeldError):
        return str(error), os.EX_TEMPFAIL
    if isinstance(error, ValueError | OSError | SimulatorError):
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
        and not str(error).startswith(_LOCAL_ERRORS)
    ):
        traceback.print_exc()  # As the message below is a guess.
        return f"Another process of this run has died, it seems ({reason}).", os.EX_TEMPFAIL
    return None, 1


def _is_one_of_several() -> bool:
    """Return whether this process is one of a run of several."""
    import jax

    return jax.distributed.is_initialized()


def _fail(status: int) -> NoReturn:
    """End a failed command; of several processes, end without waiting for the others."""
    if _is_one_of_several():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_of_memory(message: str) -> bool:
    """Return whether an error's message says that the host or a device is out of memory.

    An accelerator's allocator says RESOURCE_EXHAUSTED, and so does jax 0.10 for synchronous
    computations on a CPU. Asynchronous ones on a CPU fail with an INTERNAL error that says "Out of
    memory". Tested on CPUs only.
    """
    return bool(re.search("RESOURCE_EXHAUSTED|out of memory", message, re.IGNORECASE))


def _what_to_shrink(shrink: Sequence[str], where: str) -> str:
    values = {flag: _value(flag) for flag in shrink}
    # None means all at once on an accelerator, and one on a CPU (`training.passes`).
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
    """Hide the logs of libraries, and Orbax's tracebacks; its errors are also raised."""
    logging.set_verbosity(logging.WARNING)
    # After one array of a checkpoint could not be written, nothing awaits the others' tasks.
    python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL)
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    report = sys.unraisablehook

    def ignore_abandoned(unraisable) -> None:
        # The same, after an array that could not be written or read.
        code = getattr(unraisable.object, "cr_code", None)
        is_orbax = code is not None and "orbax" in code.co_filename
        if not is_orbax and str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = ignore_abandoned


def use_all_cores(most: int = 16) -> None:
    """Configure one CPU device per core, each with one thread.

    Many small agents use the cores better in parallel, one core each, than one after the other on
    all cores. Has no effect if the environment variables XLA_FLAGS or JAX_NUM_CPU_DEVICES set the
    number of devices, or JAX has computed something already, as an environment of another package
    may when it is made.

    Args:
      most: number of devices at most.
    """
    import jax

    from agents import compilation
    from environments import available_processors

    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    try:
        jax.config.update("jax_num_cpu_devices", min(available_processors(), most))
    except RuntimeError:  # JAX has its devices.
        return
    os.environ["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)


def leave_accelerators() -> None:
    """Have JAX compute on the CPU, in a process whose children or workers need the accelerators.

    Must be called before JAX computes anything. Other processes do not inherit it.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")

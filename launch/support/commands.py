"""The frame of all commands: quiet libraries, exit statuses, and user errors in a sentence.

Schedulers can decide by the exit status whether to start a job again:

    0        done
    1        a bug, with its traceback, or a flag that absl refuses
    2        an error that the user has to fix, in a sentence; a retry fails again
    3        some jobs failed at each attempt, and the others are done
    75       another process of the run did not start or has died (`launch.support.processes`);
             or another command has the workdir open (`launch.support.workdirs`)
    128 + n  stopped by signal n: 130 Ctrl-C, 143 SIGTERM, 137 SIGKILL; 134 if JAX ended this
             process because another one did not answer. Some callers see -n instead, if the
             signal itself ended the process

After a status of 75 or above, the command continues the run when it is started again with the same
workdir. Kubernetes' `podFailurePolicy` with `onExitCodes` can use these statuses (fail the job upon
1 and 2), and so can Slurm's `RequeueExit` (requeue upon 75, 130, 134, 137 and 143).
"""

import contextlib
import importlib.util
import inspect
import io
import json
import logging as python_logging
import os
import pathlib
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

from absl import app, flags, logging

from disco_common import terminal
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from evaluation.executors import JobsFailedError
from launch.support.command_flags import (
    CONFIG_FOLDER,
    CONFIGS,
    asks_for_help,
    flag_of,
    has_flag,
    joined,
    only_prints_config,
    parse_flags,
    print_config,
    value_of,
    wants_tracebacks,
)

ARGUMENTS = "arguments.json"  # In a workdir: the command that wrote in it last.

# Flags with which a command still goes on with the other arguments of a workdir; of one process,
# not of a run; and that no file may give, as what they name is run, written, or of other machines.
_BESIDE_WORKDIR = {"workdir", "dry_run", "print_config", "imports"}
_OF_A_PROCESS = ("coordinator", "coordinator_timeout", "num_processes", "process_id")
_ONLY_TYPED = ("workdir", "flagfile", "profile_file", "imports", "ray_address", *_OF_A_PROCESS)
_WITH_COLONS = ("env_kwargs", "config.families")  # Whose values have colons, and name no module.
_RULES = ("rule", "config.rule.start")  # Which may be of the hub, `hf:owner/name`.

# Beginnings of JAX errors that the death of another process cannot cause.
_LOCAL_ERRORS = ("INVALID_ARGUMENT", "UNIMPLEMENTED")
# By how much memory halving each one saves (docs/measurements/speed.md). The first changes only
# speed; an evaluation's is config.runs_at_once.
_SMALLER = (
    "Shrink some of these, those first save most: --config.meta.agents_at_once or"
    " --config.runs_at_once, --config.agent.batch_size, unroll_length, network, num_environments,"
    " replay_capacity, and of --config.meta num_updates, validation_length and"
    " validation_trajectories. Or use more devices, or larger ones."
)


def run(command: Callable[[], int | None], define_flags: Callable[[], None] = lambda: None) -> None:
    """Define and parse flags, run a command, and exit with its status.

    A user error ends it with status 2 and the error's message. Jobs that failed at each attempt end
    it with status 3 and a list of them. `--verbosity=1` shows tracebacks and the libraries' logs,
    too. `--help` and `--version` are answered before anything slow is imported: by the functions
    `command`, which returns the exit status or None for 0, and `define_flags`, not by their module.
    A command that has only `--workdir` goes on with the other arguments that the workdir knows.
    """
    name = _name_of(command.__module__)
    if has_flag("version"):
        print(f"disco-update-rules {version()}")
        sys.exit(0)
    # Imports, and callbacks of JAX, would hide Ctrl-C's exception. What has something to save, or
    # processes to end, handles the signal (`disco_common.stopping`).
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv[1:1] = _known_arguments(name)  # Before those that are typed, which so replace them.
    _say_what_begins(name)
    with _ended_by_errors(name):
        define_flags()
    if asks_for_help():
        print(_help())
        sys.exit(0)

    def main(argv: list[str]) -> int | None:
        if len(argv) > 1:
            raise app.UsageError(terminal.message(f"Unknown arguments {argv[1:]}."))
        if only_prints_config():
            print_config()
            return 0
        if not flags.FLAGS["verbosity"].present:
            silence_libraries()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # File names may be any bytes.
                stream.reconfigure(errors="backslashreplace")
        logging.get_absl_handler().setFormatter(_Formatter())
        with _ended_by_errors(name):
            import agents  # noqa: F401 (It takes seconds, and needs the extra `platform`.)
            from disco_common import compilation

            compilation.keep_programs()
            return command()

    app.run(main, flags_parser=parse_flags)


def _name_of(module: str) -> str:
    """Return the name of a module for users, also if `python -m` runs it as `__main__`."""
    spec = sys.modules[module].__spec__
    return spec.name if spec else module


def _say_what_begins(name: str) -> None:
    """Print a line before the imports, which take seconds, if the command writes in a workdir."""
    workdir = os.path.expanduser(value_of("workdir"))
    if workdir and name != "launch.export" and not has_flag("dry_run", "print_config", "help"):
        is_there = pathlib.Path(workdir, "config.json").exists()
        what = f"{name.removeprefix('launch.')} {version()} {'goes on' if is_there else 'begins'}"
        print(terminal.message(f"{what} in {workdir}."), file=sys.stderr, flush=True)


def _known_arguments(name: str) -> list[str]:
    """Return the arguments that are known to the workdir, if `--workdir` is alone.

    Files are data: arguments that could have Python run are refused, with what to type.
    """
    typed, folder = joined(sys.argv[1:]), pathlib.Path(os.path.expanduser(value_of("workdir")))
    file, is_alone = folder / ARGUMENTS, {flag_of(x) for x in typed} <= _BESIDE_WORKDIR
    if not (is_alone and value_of("workdir") and (folder / "config.json").exists()):
        return []

    def say(text: str) -> None:
        print(terminal.message(text), file=sys.stderr)

    try:
        found = read_object(file)
        command, known = found["command"], joined([str(x) for x in found["arguments"]])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"{name}: {file} is ignored: {type(error).__name__}: {error}")
        return []
    if command != name or not known:
        return []
    imports = [x for x in typed if flag_of(x) == "imports"][-1:]
    shown, is_trusted = shlex.join(known), bool(imports) and not imports[0].endswith("=false")
    if refused := [x for x in known if not _is_data(x, is_trusted)]:
        say(
            f"{name}: {file} has arguments that may run code or are not of a run:"
            f" {shlex.join(refused)}. If you trust them, repeat all: python -m {name}"
            f" {shlex.join([f'--workdir={folder}'])} {shown}"
        )
        sys.exit(2)
    say(f"With the arguments in {file}: {shown}")
    return known


def _is_data(argument: str, is_trusted: bool) -> bool:
    """Return whether an argument cannot have Python run what a file names.

    What can: config files but those of `launch/configs`, files of flags, modules to import, and
    names in modules, which have a colon. If it `is_trusted`, the last two may.
    """
    if not re.match(r"--?[A-Za-z]\w*(\.\w+)*(=|$)", argument):
        return False
    flag, _, value = argument.lstrip("-").partition("=")
    if flag in _ONLY_TYPED:
        return is_trusted and flag == "imports"
    if flag == "config":
        file = pathlib.Path(os.path.expanduser(value.partition(":")[0]))
        is_ours = file.is_file() and file.resolve().parent == CONFIG_FOLDER.resolve()
        return str(file) in CONFIGS or is_ours
    if flag in _RULES:
        value = ",".join(x.strip().removeprefix("hf:") for x in value.split(","))
    return is_trusted or ":" not in value or flag in _WITH_COLONS


def keep_arguments(folder: pathlib.Path) -> None:
    """Write the arguments of this process in a folder, if it is the workdir of its command."""
    spec = sys.modules["__main__"].__spec__
    workdir = pathlib.Path(os.path.expanduser(value_of("workdir")))
    if spec and spec.name.startswith("launch.") and workdir.absolute() == folder.absolute():
        left_out = ("workdir", *_OF_A_PROCESS)
        others = [x for x in joined(sys.argv[1:]) if flag_of(x) not in left_out]
        content = {"command": spec.name, "arguments": others}
        write_atomically(folder / ARGUMENTS, json.dumps(content, indent=2) + "\n")


def version() -> str:
    """Return the version of the package `disco`, which is not imported."""
    spec = importlib.util.find_spec("disco")
    text = pathlib.Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return found[1] if found else "(unknown version)"


def _help() -> str:
    """Return what the command does, and its flags, as absl describes them."""
    documentation = inspect.cleandoc(sys.modules["__main__"].__doc__ or "")
    rest = "--version prints the version; --helpfull lists the flags of all libraries."
    return f"{documentation}\n\n{flags.FLAGS.main_module_help().strip()}\n\n{rest}"


class _Formatter(logging.PythonFormatter):
    """The format of logs; names in them are shown as in messages."""

    def format(self, record: python_logging.LogRecord) -> str:
        return terminal.message(super().format(record), lines=True)


@contextlib.contextmanager
def _ended_by_errors(name: str) -> Iterator[None]:
    """End the program upon an error, with its message and status; bugs have a traceback.

    One of several processes ends without waiting for the others.
    """
    try:
        yield
    except Exception as error:
        is_one_of_several = False
        if not isinstance(error, ImportError):  # Of JAX, perhaps.
            import jax

            is_one_of_several = jax.distributed.is_initialized()
        message, status = _explained(error, is_one_of_several)
        if message is None and not is_one_of_several:
            raise
        if message is None or (status == 2 and wants_tracebacks()):
            traceback.print_exc()
        if message is not None:
            print(f"{name}: {message}", file=sys.stderr)
        if is_one_of_several:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)


def _explained(error: Exception, is_one_of_several: bool) -> tuple[str | None, int]:
    """Return the message for the user, or None for a traceback, and the exit status."""
    if isinstance(error, ImportError):
        return terminal.message(error), 2
    import jax

    from environments.errors import SimulatorError
    from launch.support import workdirs

    if isinstance(error, JobsFailedError):
        text = f"{error}\n{_SMALLER}" if _is_of_memory(error) else str(error)
        return terminal.message(text, lines=True), 3
    if isinstance(error, workdirs.WorkdirHeldError):
        return terminal.message(error), os.EX_TEMPFAIL
    if isinstance(error, ValueError | OSError | SimulatorError):
        return terminal.message(error, lines=isinstance(error, SimulatorError)), 2
    reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")[:300]
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError)
    if isinstance(error, MemoryError) or (is_of_jax and _is_of_memory(error)):
        where = jax.default_backend()
        text = f"There is not enough memory on {where} ({reason}). {_SMALLER}"
        return terminal.message(text), 2
    if is_of_jax and is_one_of_several and not str(error).startswith(_LOCAL_ERRORS):
        traceback.print_exc()  # As the message below is a guess.
        text = f"Another process of this run has died, it seems ({reason})."
        return terminal.message(text), os.EX_TEMPFAIL
    return None, 1


def _is_of_memory(error: BaseException) -> bool:
    """Return whether an error's message says that the host or a device is out of memory.

    RESOURCE_EXHAUSTED, or of asynchronous computations on a CPU INTERNAL and "Out of memory".
    """
    return bool(re.search("RESOURCE_EXHAUSTED|out of memory", str(error), re.IGNORECASE))


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


def use_all_cores() -> None:
    """Configure one CPU device per core, of at most 16 cores, each with one thread.

    Many small agents use the cores better in parallel, one core each, than one after the other on
    all cores. Has no effect if the environment variables XLA_FLAGS or JAX_NUM_CPU_DEVICES set the
    number of devices, or JAX has computed something already, as an environment of another package
    may when it is made.
    """
    import jax

    from disco_common import compilation
    from environments import available_processors

    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    try:
        jax.config.update("jax_num_cpu_devices", min(available_processors(), 16))
    except RuntimeError:  # JAX has its devices.
        return
    os.environ["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)


def leave_accelerators() -> None:
    """Have JAX compute on the CPU, in a process whose children or workers need the accelerators.

    Must be called before JAX computes anything. Other processes do not inherit it.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")

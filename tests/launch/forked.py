"""Commands with their arguments, in forks of one process: importing takes seconds.

For each line of its standard input, `python -m tests.launch.forked` prints one. It reads
{"path": folders for `sys.path`, "environment": variables by name, "commands": lists of a module and
its arguments}, and answers with a list of exit status and output.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback

# What commands import: each fork has it already. None of it starts threads or a backend of JAX.
import evaluation.evaluate
import evaluation.studies.analysis  # noqa: F401
import launch.support.evaluations
import launch.support.sweeps  # noqa: F401
import meta.run  # noqa: F401

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.


def _run(module: str, arguments: list[str], output: int) -> int:
    """The exit status of `python -m module arguments`, which prints to a file descriptor."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _fork(module: str, arguments: list[str], output: int) -> int:
    """Starts `_run` in a child process; returns its number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if sys.platform == "linux":  # Nobody waits for one that hangs once this process ends.
                ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
            status = _run(module, arguments, output)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return child


def _outcomes(commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit status and output of commands that run at the same time."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        children = [
            _fork(module, arguments, file.fileno())
            for (module, *arguments), file in zip(commands, files, strict=True)
        ]
        found = []
        for child, file in zip(children, files, strict=True):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            file.seek(0)
            found.append((status, file.read().decode()))
    return found


def main() -> None:
    paths, variables = list(sys.path), dict(os.environ)
    for line in sys.stdin:
        request = json.loads(line)
        sys.path[:] = [*request["path"], *paths]
        os.environ.clear()
        os.environ.update(variables | request["environment"])
        print(json.dumps(_outcomes(request["commands"])), flush=True)


if __name__ == "__main__":
    main()

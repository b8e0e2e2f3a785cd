"""Commands as child processes, which end with their parent."""

import ctypes
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from disco_common import files, stopping
from launch.support.processes import LAUNCHERS

SECONDS_TO_STOP = 120.0
"""For a child to end gracefully, for example to write a checkpoint, before it is killed."""

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.


def run_command(
    module: str,
    arguments: Sequence[str],
    directory: pathlib.Path,
    log: pathlib.Path,
    every_second: Callable[[], None] = lambda: None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run `python -m module arguments` to its end; return its exit status.

    The child is one process, also if a launcher started this process with others. If an exception
    or a signal that `disco_common.stopping` notes interrupts the wait, the child gets SIGTERM, and
    this function waits for its end. If this process is killed, so is the child (on Linux), so that
    it does not interfere with a later attempt.

    Args:
      module: of the command.
      arguments: of the command.
      directory: to run it in, if it exists on this machine.
      log: file to append its output to.
      every_second: called about once a second.
      variables: of the environment, beside this process's, which come first.

    Raises:
      OSError: if the log cannot be written.
    """
    with files.appending(log) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments],
            cwd=directory if directory.is_dir() else None,
            env={
                **(variables or {}),
                **{name: x for name, x in os.environ.items() if name not in LAUNCHERS},
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the child.
        )
        try:
            while True:
                try:
                    return process.wait(1.0)
                except subprocess.TimeoutExpired:
                    stopping.raise_if_requested()
                    every_second()
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(SECONDS_TO_STOP)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _main() -> None:
    """Run the command in the child process, and have the child killed when its parent dies."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has already died.
        sys.exit(1)
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

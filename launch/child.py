"""Commands as child processes, which end when their parent does."""

import ctypes
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from disco_common import stopping
from launch.processes import LAUNCHERS

SECONDS_TO_STOP = 120.0
"""That a child may take to end in order, for example to write a checkpoint, before it is killed."""

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.


def run_command(
    module: str,
    arguments: Sequence[str],
    directory: pathlib.Path,
    log: pathlib.Path,
    every_second: Callable[[], None] = lambda: None,
) -> int:
    """Runs `python -m module arguments` to its end; its exit status.

    It makes its run alone, also where a launcher started this process with others. An exception
    that interrupts the wait, or a signal that `disco_common.stopping` notes, sends it SIGTERM, and
    waits until it has ended. If this process is killed, the child is too (on Linux), so that
    whoever does the work again does not meet it.

    Args:
      module: of the command.
      arguments: its own.
      directory: to run it in, if this machine has it.
      log: file to add its output to.
      every_second: called about that often.

    Raises:
      OSError: if the log cannot be written.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments],
            cwd=directory if directory.is_dir() else None,
            env={name: x for name, x in os.environ.items() if name not in LAUNCHERS},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only, which passes it on.
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
    """In the child: binds its life to its parent's, and becomes the command."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # It has died already.
        sys.exit(1)
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

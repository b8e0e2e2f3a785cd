"""Reading in another process, watched."""

import json
import logging
import multiprocessing
import os
import pathlib
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tests.fuzz.targets import TARGETS


def serve(connection: Connection) -> None:
    """Reads what it is told to, in a process of its own, until the connection is closed."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from disco_common import terminal
    from launch.support import commands  # With JAX, which the process that damages does without.

    commands.silence_libraries()
    logging.disable(logging.WARNING)
    while True:
        try:
            request, name, folder = connection.recv()
        except EOFError:
            return
        target = TARGETS[name]
        if request == "write":
            target.write(folder)
            connection.send(None)
            continue
        before = _reset_peak()
        try:
            outcome = ("value", json.dumps(target.read(folder), default=str))
        except (ValueError, OSError, ImportError) as error:
            # Errors of Python's own that nobody explained are no sentences.
            outcome = ("refused", terminal.message(error))
        except BaseException:
            outcome = ("traceback", traceback.format_exc())
        connection.send((*outcome, _peak() - before))


def _reset_peak() -> int:
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Bytes that this process has had at most since it was reset."""
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


class Reader:
    """The process that reads; a new one when it died or hangs."""

    def __init__(self):
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None

    def ask(self, request: str, name: str, folder: pathlib.Path, seconds: float) -> Any:
        """What it answers; ("died" or "hangs", ...) if it does not."""
        if self._process is None:
            self._connection, other = self._context.Pipe()
            self._process = self._context.Process(target=serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        self._connection.send((request, name, folder))
        if not self._connection.poll(seconds):
            self.close()
            return "hangs", f"for more than {seconds:.0f} s", 0
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            status = self._process.exitcode
            self.close()
            return "died", f"with status {status}", 0

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

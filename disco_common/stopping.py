"""Graceful stops: a handler notes the signal, and the computation polls for it.

A computation that cannot poll, such as a compilation, is ended with its process (`ending_in_time`)
if nothing would be lost (`set_unsaved`).
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

SECONDS = 4.0
"""From a signal to the end of the process, if nothing has to be saved."""

_SECONDS_AFTER_SECOND = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)
_noted: list[int] = []
_saved_at: float | None = None  # None while something would be lost.


class StoppedBySignal(SystemExit):
    """Ends the process with status 128 + the signal's number, after a checkpoint was saved."""

    def __init__(self):
        super().__init__(128 + _noted[0])


def is_requested() -> bool:
    """Return whether a signal asked this process to stop."""
    return bool(_noted)


def request(number: int) -> None:
    """Ask this process to stop, as by a signal of this number."""
    _noted.append(number)


def raise_if_requested() -> None:
    """End the process if a signal asked it to.

    Raises:
      StoppedBySignal: if one did.
    """
    if _noted:
        raise StoppedBySignal


def set_unsaved(is_unsaved: bool) -> None:
    """Say whether the end of the process would lose something that a stop saves; at first it would.

    Without it, `ending_in_time` ends the process some seconds after a signal.
    """
    global _saved_at
    _saved_at = None if is_unsaved else time.monotonic()


@contextlib.contextmanager
def ending_in_time() -> Iterator[None]:
    """End the process if it has not ended in time after SIGTERM or SIGINT; for commands.

    That is 4 seconds after the signal, and after what is unsaved has been saved, or a second after
    a second signal. The main thread need not run Python for it. Workers end with their pipes.
    """
    set_unsaved(True)
    read, write = os.pipe()
    os.set_blocking(write, False)
    ending = threading.Thread(target=_end_in_time, args=(read,), daemon=True)
    ending.start()
    previous, is_stopped = signal.set_wakeup_fd(write, warn_on_full_buffer=False), False
    try:
        yield
    except StoppedBySignal:  # The end of the interpreter, which is left, is in time, too.
        is_stopped = True
        set_unsaved(False)
        raise
    finally:
        signal.set_wakeup_fd(previous)
        if not is_stopped:
            os.close(write)
            ending.join()


def _end_in_time(pipe: int) -> None:
    """Read the numbers of signals from a pipe until it is closed, and end the process in time."""
    first = second = None
    while True:
        if select.select([pipe], [], [], None if first is None else 0.1)[0]:
            found = os.read(pipe, 64)
            if not found:
                os.close(pipe)
                return
            for number in set(found) & set(_SIGNALS):
                first, second = first or (number, time.monotonic()), first and time.monotonic()
        now = time.monotonic()
        if first and second and now - second > _SECONDS_AFTER_SECOND:
            _end(first[0], "")
        if first and _saved_at is not None and now - max(first[1], _saved_at) > SECONDS:
            _end(first[0], " Nothing was left to save.")


def _end(number: int, saved: str) -> None:
    """End the process at once; its files are whole at any time."""
    for terminal in filter(os.isatty, (1, 2)):
        os.write(terminal, b"\x1b[?25h\n")  # A progress bar hides the cursor.
    with contextlib.suppress(OSError):
        os.write(2, f"Stopped by signal {number}.{saved}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def noting(*numbers: signal.Signals) -> Iterator[None]:
    """Note signals instead of ending the process; a second signal ends it at once.

    By default these are SIGTERM and SIGINT.
    """

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if _noted:
            raise SystemExit(128 + number)
        request(number)
        _log.warning(
            "Signal %d: a checkpoint is written, then the command ends. A second signal ends it"
            " at once.",
            number,
        )

    previous = {number: signal.signal(number, note) for number in numbers or _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _noted.clear()

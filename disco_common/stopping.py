"""Graceful stops: a handler notes the signal, and the computation polls for it."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType

_log = logging.getLogger(__name__)
_noted: list[int] = []


class StoppedBySignal(SystemExit):
    """Ends the process with status 128 + the signal's number, after a checkpoint was saved."""

    def __init__(self):
        super().__init__(128 + _noted[0])


def is_requested() -> bool:
    """Return whether a signal asked this process to stop."""
    return bool(_noted)


def raise_if_requested() -> None:
    """End the process if a signal asked it to.

    Raises:
      StoppedBySignal: if one did.
    """
    if _noted:
        raise StoppedBySignal


@contextlib.contextmanager
def noting(*numbers: signal.Signals) -> Iterator[None]:
    """Note signals instead of ending the process; a second signal ends it at once.

    Args:
      *numbers: of the signals; by default SIGTERM and SIGINT.
    """

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if _noted:
            raise SystemExit(128 + number)
        _noted.append(number)
        _log.warning(
            "Signal %d: a checkpoint is written, then the command ends. A second signal ends it"
            " at once.",
            number,
        )

    previous = {
        number: signal.signal(number, note) for number in numbers or (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _noted.clear()

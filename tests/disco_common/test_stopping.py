"""Processes that stop in time, whatever their main thread does."""

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import ctypes, time
from disco_common import stopping
with stopping.ending_in_time(), stopping.noting():
    stopping.set_unsaved({unsaved})
    print("ready", flush=True)
    {waits}
"""
# As in a compilation, the main thread gets no time to run a signal's handler.
HANGS = "m, lock = bytes(64), ctypes.CDLL(None).pthread_mutex_lock; lock(m); lock(m)"


def stopped(signals: int, waits: str = HANGS, unsaved: bool = False) -> tuple[int, str, float]:
    """The exit status, the errors and the seconds of a script that gets some signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(unsaved=unsaved, waits=waits)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, errors = process.communicate(timeout=60.0)
    return process.returncode, errors, time.monotonic() - began


def test_a_process_that_does_not_poll_ends_in_time():
    status, errors, seconds = stopped(1)
    assert (status, 3.0 < seconds < 8.0) == (143, True), (errors, seconds)
    assert "Stopped by signal 15. Nothing was left to save." in errors
    assert "Traceback" not in errors


def test_a_process_that_has_to_save_something_is_waited_for():
    saves = "time.sleep(7.0); stopping.set_unsaved(False); stopping.raise_if_requested()"
    status, errors, seconds = stopped(1, saves, unsaved=True)
    assert (status, seconds > 6.5) == (143, True), (errors, seconds)
    assert "Nothing was left" not in errors


def test_a_second_signal_ends_it_at_once():
    status, errors, seconds = stopped(2, unsaved=True)
    assert (status, seconds < 5.0) == (143, True), (errors, seconds)


@pytest.mark.parametrize("waits", ["pass", "time.sleep(0.1)"])
def test_what_ends_in_time_is_left_alone(waits):
    assert stopped(0, waits)[0] == 0

"""Ends that take no longer than they may: of stopped evaluations, and of workers."""

import contextlib
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from tests.chaos.bench import Bench, Outcome
from tests.launch.common import outcome
from tests.launch.tiny_runs import wait_until

_SECONDS_TO_STOP = 5.0
_SECONDS_TO_WRITE = 3.0  # A checkpoint.
_SECONDS_OF_WORKERS = 2.0
_SUITE = "gymnasium/CartPole-v1"  # Its simulators are processes.

_Moment = Callable[[subprocess.Popen[str], pathlib.Path], bool]


def _importing(process: subprocess.Popen[str], workdir: pathlib.Path) -> bool:
    del workdir
    return time.time() - psutil.Process(process.pid).create_time() > 0.7


def _starting(process: subprocess.Popen[str], workdir: pathlib.Path) -> bool:
    del workdir
    return len(_family(process)) > 1  # The tracker of resources, and what forks workers.


def _training(process: subprocess.Popen[str], workdir: pathlib.Path) -> bool:
    del process
    return any(file.stat().st_size for file in workdir.glob("runs/*/*/*/metrics.jsonl"))


def evaluation_stopped_in_time(bench: Bench) -> Outcome:
    """Send Ctrl-C, as a terminal does, and SIGTERM during imports, the start, and training."""
    longest = 0.0
    # To a process group as by a terminal and by supervisors, or to the command alone.
    for number, to_group in (
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGTERM, True),
    ):
        for moment in (_importing, _starting, _training):
            process = _begun(bench, moment)
            family = _family(process)
            began = time.monotonic()
            for one in [process, *family] if to_group else [process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(number)
            status, output = outcome(process, 60.0)
            seconds = time.monotonic() - began
            longest = max(longest, seconds)
            where = f"{number.name}, {moment.__name__}: {output}"
            # Before the command has its handler, the signal itself ends it.
            assert status in (128 + number, -number), f"status {status} after {where}"
            assert "Traceback" not in output, where
            assert seconds < _SECONDS_TO_STOP + _SECONDS_TO_WRITE, f"{seconds:.1f} s after {where}"
            _require_end(family, where)
    return Outcome(f"status 130 or 143 within {longest:.1f} s, no traceback", "nothing")


def workers_end_with_evaluation(bench: Bench) -> Outcome:
    """Send SIGKILL during the start of the simulators, and during training."""
    for moment in (_starting, _training):
        process = _begun(bench, moment)
        family = _family(process)
        process.kill()
        process.wait()
        _require_end(family, moment.__name__)
        process.communicate()
    return Outcome(f"all processes end within {_SECONDS_OF_WORKERS:g} s", "the run since its start")


def _begun(bench: Bench, moment: _Moment) -> subprocess.Popen[str]:
    """Start an evaluation, and wait for a moment of it."""
    workdir = bench.new("in_time")
    process = bench.command(
        "launch.evaluate",
        f"--workdir={workdir}",
        f"--suite={_SUITE}",
        "--baselines=ppo",
        "--config.seeds=1",
        "--config.budget=400000",
    )
    wait_until(process, lambda: moment(process, workdir))
    time.sleep(bench.rng.uniform(0.0, 0.5))
    return process


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def _require_end(family: list[psutil.Process], where: str) -> None:
    """Check that processes end within the time that they have after their parent's end."""
    end = time.monotonic() + _SECONDS_OF_WORKERS
    while alive := [one for one in family if _lives(one)]:
        assert time.monotonic() < end, f"{len(alive)} processes live on after {where}"
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False

"""Commands as a user runs them: in a process of their own."""

import atexit
import functools
import json
import os
import pathlib
import re
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace

REPOSITORY = pathlib.Path(__file__).parents[2]
TINY = "--config=tests/launch/discover_tiny.py"


def start(module: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """`python -m module arguments`, from the repository's root."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcomes(
    module: str, cases: Mapping[str, Sequence[object]], timeout: float = 300.0
) -> dict[str, tuple[int, str]]:
    """Exit status and output of `python -m module arguments` for several arguments, by name."""
    return outcomes_of({name: (module, *rest) for name, rest in cases.items()}, timeout)


def outcomes_of(
    cases: Mapping[str, Sequence[object]],
    timeout: float = 300.0,
    path: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[int, str]]:
    """Likewise, of commands whose modules stand before their arguments.

    They run in forks of one process (`tests.launch.forked`), with these folders in `sys.path` and
    with these environment variables, which must not be JAX's: that is imported there.
    """
    process = _forking()
    assert process.stdin is not None
    assert process.stdout is not None
    commands = [list(map(str, command)) for command in cases.values()]
    try:
        request = {"path": list(path), "environment": {**environment}, "commands": commands}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        has_answered, *_ = select.select([process.stdout], [], [], timeout)
        assert has_answered, f"After {timeout:g} seconds, one of these has not ended: {commands}"
        answer = process.stdout.readline()
        assert answer, f"The process that forks ended with status {process.wait()}."
    except BaseException:
        _end(process)
        raise
    return dict(zip(cases, map(tuple, json.loads(answer)), strict=True))


def evaluate_flags(*rules: object, **others: object) -> SimpleNamespace:
    """The flags of `launch.evaluate` by default, but for some, and without trackers."""
    values = {
        "agent": [],
        "tuned": "shipped",
        "references": "",
        "tensorboard": False,
        "wandb_project": "",
        "dry_run": False,
    }
    return SimpleNamespace(rule=list(map(str, rules)), **{**values, **others})


def after_start(output: str) -> str:
    """What a command prints after the line that it begins with, where it has a workdir."""
    return re.sub(r"\A\w+ \S+ (begins|goes on) in .*\n", "", output)


@functools.cache
def _forking() -> subprocess.Popen[str]:
    """The process that forks; one for all tests of this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.forked"],
        cwd=REPOSITORY,
        # With a number of devices, no other process has to find out which flags XLA has.
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    _forking.cache_clear()


def outcome(process: subprocess.Popen[str], timeout: float = 900.0) -> tuple[int, str]:
    """Its exit status, and all that it printed. Stops it if it takes too long."""
    try:
        out, error = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        raise AssertionError(f"{process.args} hangs; it said:\n{out}\n{error}") from None
    return process.returncode, out + error


def free_port() -> int:
    """Of this machine, for processes that are to find each other."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]

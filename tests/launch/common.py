"""Commands as a user runs them: in a process of their own."""

import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

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
    cases: Mapping[str, Sequence[object]], timeout: float = 300.0, **environment: str
) -> dict[str, tuple[int, str]]:
    """Likewise, of commands whose modules stand before their arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.forked"],
        cwd=REPOSITORY,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        input=json.dumps([list(map(str, command)) for command in cases.values()]),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    results = map(tuple, json.loads(done.stdout))
    return dict(zip(cases, results, strict=True))


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

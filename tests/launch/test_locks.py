"""One command at a time writes in a workdir."""

import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from launch.support import processes, workdirs
from launch.support.workdirs import WorkdirHeldError
from tests.launch.common import REPOSITORY, TINY, outcomes


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 10


HOLDER = """
import sys, time
from environments.processes import ProcessSimulators
from tests.agents.common import HostCorridor, HostCorridors
from functools import partial
from launch.support import workdirs
from tests.launch.test_locks import Settings

if __name__ == "__main__":
    with workdirs.opened(sys.argv[1], Settings()):
        make = partial(HostCorridor, 3, True)
        simulators = ProcessSimulators(make, HostCorridors(), 1, 0)
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A workdir, and the process that has it open, with a simulator of its own."""
    folder = tmp_path_factory.mktemp("held")
    script = folder / "holder.py"
    script.write_text(HOLDER)
    workdir = folder / "run"
    process = subprocess.Popen(
        [sys.executable, str(script), str(workdir)],
        cwd=REPOSITORY,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield workdir, process
    process.kill()
    process.communicate()


def test_another_process_is_refused_by_name(held):
    workdir, process = held
    before = (workdir / "config.json").read_bytes()
    with pytest.raises(WorkdirHeldError) as caught, workdirs.opened(workdir, Settings(steps=1)):
        pytest.fail("It is open twice.")
    message = str(caught.value)
    assert message.startswith(f"Workdir '{workdir}' is held by process {process.pid} on ")
    assert f" on {socket.gethostname()} since 2" in message
    assert f"+00:00 ({sys.executable} " in message
    assert f"holder.py {workdir})" in message
    assert (workdir / "config.json").read_bytes() == before


COMMANDS = {
    "launch.discover": [TINY],
    "launch.evaluate": ["--suite=catch/5x5"],
    "launch.robustness": ["--suite=catch/5x5", "--rule=grid57"],
    "launch.analyse": ["--suite=catch/5x5", "--rule=grid57"],
    "launch.sweep": [TINY, "--vary=config.seed=0"],
}


@pytest.mark.parametrize(
    "command",
    ["launch.discover", *(pytest.param(x, marks=pytest.mark.slow) for x in list(COMMANDS)[1:])],
)
def test_commands_are_refused_before_they_write(tmp_path, command):
    with workdirs.locked(tmp_path):
        before = sorted(path.name for path in tmp_path.iterdir())
        arguments = [f"--workdir={tmp_path}", *COMMANDS[command]]
        ((status, output),) = outcomes(command, {"held": arguments}).values()
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert f"Workdir '{tmp_path}' is held by process {os.getpid()} on " in output
    assert "Traceback" not in output
    assert status == os.EX_TEMPFAIL


def test_a_killed_holder_leaves_the_lock_and_a_note(held, caplog):
    """Also while its simulators live on."""
    workdir, process = held
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    for child in children:
        child.suspend()  # They end when they see that their parent is gone.
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        with workdirs.opened(workdir, Settings()):
            who = f"process {process.pid} on {socket.gethostname()} since "
            assert f"{workdir} was held by {who}" in caplog.text
            assert "has ended without releasing it; this command takes it over." in caplog.text
            assert all(child.is_running() for child in children)
    finally:
        for child in children:
            child.kill()
    caplog.clear()
    with workdirs.opened(workdir, Settings()):
        pass
    assert not caplog.text


def notes(folder: pathlib.Path) -> list[str]:
    """Files of the lock."""
    return [path.name for path in folder.glob(".lock*")]


@pytest.mark.parametrize("error", [None, ValueError, SystemExit, KeyboardInterrupt, OSError])
def test_released_whatever_ends_it(tmp_path, error):
    for _ in range(2):
        try:
            with workdirs.opened(tmp_path, Settings()) as folder:
                assert json.loads((folder / ".lock.json").read_text())["pid"] == os.getpid()
                with pytest.raises(WorkdirHeldError), workdirs.locked(tmp_path):
                    pytest.fail("It is open twice.")
                if error:
                    raise error("why")
        except BaseException as caught:
            assert type(caught) is error  # noqa: PT017
    assert notes(tmp_path) == [".lock"]


def test_released_where_the_settings_are_refused(tmp_path):
    with workdirs.opened(tmp_path, Settings()):
        pass
    for _ in range(2):
        with pytest.raises(ValueError, match="steps is 10 there"):
            workdirs.opened(tmp_path, Settings(steps=1)).__enter__()
    assert notes(tmp_path) == [".lock"]


@pytest.mark.parametrize(
    "note", ["", "{", "[]", '{"pid": 1}', "[" * 10**5, '{"pid":1,"host":2,"since":3,"command":4}']
)
def test_note_that_says_nothing(tmp_path, caplog, note):
    (tmp_path / ".lock.json").write_text(note)
    with workdirs.locked(tmp_path):
        said = "process 1 on 2 since 3 (4)" if "command" in note else "an unknown process"
        assert f"{tmp_path} was held by {said}" in caplog.text


def test_note_is_harmless_to_a_terminal(tmp_path, caplog):
    who = {"pid": 1, "host": "\x1b[2J", "since": "\n", "command": "x" * 10_000}
    (tmp_path / ".lock.json").write_text(json.dumps(who))
    with workdirs.locked(tmp_path):
        message = caplog.records[0].getMessage()
    assert "process 1 on \\x1b[2J since \\n (xxx" in message
    assert len(message) < 1000


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_file_system_that_cannot_lock(tmp_path, monkeypatch, caplog, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        with workdirs.opened(tmp_path, Settings()):
            pass
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    for warning in warnings:
        assert f"The file system of {tmp_path} cannot lock files (" in warning
        assert os.strerror(number) in warning


def test_lock_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=r"Workdir '.*' cannot be used: .*Input/output error\.$"):
        workdirs.locked(tmp_path).__enter__()


def test_of_several_processes_the_first_holds_it_for_all(tmp_path, monkeypatch):
    with workdirs.locked(tmp_path):
        monkeypatch.setattr(processes, "is_first", lambda: False)
        with workdirs.locked(tmp_path):
            assert notes(tmp_path)
        assert (tmp_path / ".lock.json").exists()

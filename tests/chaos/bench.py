"""The frame of all faults: folders, commands, the undisturbed run, and checks.

A fault is a function of a `Bench`. It runs a command, disturbs it, makes its checks, and returns
what happened and what was lost. It raises an `AssertionError` if a check fails.
"""

import contextlib
import dataclasses
import functools
import pathlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from disco_common.checkpoints import Checkpoints, steps
from meta.estimators.meta_gradient import MetaGradient
from tests.launch.common import TINY, free_port, outcome, start
from tests.launch.discover_tiny import META_STEPS, get_settings
from tests.launch.tiny_runs import (
    final_state,
    quickly,
    start_tiny,
    steps_logged,
    tiny_discovery,
    without_timings,
)

INTERVAL = get_settings().checkpoint_interval
# The next meta-steps run while a checkpoint is written; the checkpoint after it has to wait.
MOST_LOST = 2 * INTERVAL


class Outcome(NamedTuple):
    """A row of the table."""

    happened: str
    lost: str


@dataclasses.dataclass
class Bench:
    """The runs of a test, and its child processes.

    Attributes:
      folder: for all runs and their compilation cache.
      rng: draws the times of faults.
      processes: that were started.
    """

    folder: pathlib.Path
    rng: random.Random = dataclasses.field(default_factory=random.Random)
    processes: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)

    def new(self, name: str) -> pathlib.Path:
        """Return a path for a new workdir."""
        return pathlib.Path(tempfile.mkdtemp(prefix=f"{name}_", dir=self.folder)) / "run"

    def discover(self, workdir: pathlib.Path, *arguments: object) -> subprocess.Popen[str]:
        """Start or continue the tiny discovery."""
        return self._started(start_tiny(workdir, *arguments, compiled=self._compiled))

    def discover_together(self, workdir: pathlib.Path) -> list[subprocess.Popen[str]]:
        """Start or continue the tiny discovery in two processes, of one device each."""
        together = ["--num_processes=2", f"--coordinator=localhost:{free_port()}"]
        environment = quickly(self._compiled, num_devices=1)
        return [
            self._started(
                start(
                    "launch.discover",
                    f"--workdir={workdir}",
                    TINY,
                    *together,
                    f"--process_id={number}",
                    **environment,
                )
            )
            for number in range(2)
        ]

    def disturbed(
        self, disturbance: str, command: str, *arguments: object
    ) -> subprocess.Popen[str]:
        """Start a command under one of the disturbances of `tests.chaos.driver`."""
        config = [TINY] if command == "launch.discover" else []
        arguments = (disturbance, command, *config, *arguments)
        return self._started(start("tests.chaos.driver", *arguments, **quickly(self._compiled)))

    def command(self, module: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a command, as users do."""
        return self._started(start(module, *arguments, **quickly(self._compiled)))

    def evaluate(self, workdir: pathlib.Path, *arguments: object) -> subprocess.Popen[str]:
        """Start or continue an evaluation of one baseline."""
        return self.disturbed(
            "nothing",
            "launch.evaluate",
            f"--workdir={workdir}",
            "--config.baselines=('hand_set',)",
            *arguments,
        )

    def end_processes(self) -> None:
        """Kill the processes that a failed test left running."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    @functools.cached_property
    def uninterrupted(self) -> pathlib.Path:
        """The workdir of the undisturbed tiny discovery. Must be copied, not changed."""
        workdir = self.new("uninterrupted")
        finished(self.discover(workdir))
        return workdir

    def copy_of_uninterrupted(self, name: str) -> pathlib.Path:
        """Return a copy of the workdir of the undisturbed tiny discovery."""
        return shutil.copytree(self.uninterrupted, self.new(name))

    def _started(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.processes.append(process)
        return process

    @property
    def _compiled(self) -> pathlib.Path:
        return self.folder / "compiled"


Fault = Callable[[Bench], Outcome]


def finished(process: subprocess.Popen[str]) -> str:
    """Wait for a command that must succeed; return its output."""
    status, output = outcome(process)
    assert status == 0, f"exit status {status}, expected 0; output:\n{output}"
    assert "Traceback" not in output, output
    return output


def refused(process: subprocess.Popen[str], *sentences: str, status: int = 2) -> str:
    """Wait for a command that must fail with a user error; return its output.

    Args:
      process: of the command.
      *sentences: that the output must have.
      status: expected exit status.
    """
    found, output = outcome(process)
    assert found == status, f"exit status {found}, expected {status}; output:\n{output}"
    assert "Traceback" not in output, output
    for sentence in sentences:
        assert sentence in output, f"expected {sentence!r} in:\n{output}"
    return output


def newest_good(workdir: pathlib.Path, discovery: MetaGradient | None = None) -> int:
    """Check that all checkpoints can be read; return the newest one's step, 0 if there is none."""
    folder = workdir / "checkpoints"
    return max(states_of(folder, discovery), default=0) if folder.exists() else 0


def states_of(folder: pathlib.Path, discovery: MetaGradient | None = None) -> dict[int, Any]:
    """Return the state of each checkpoint of a folder, by its step; each must be undamaged.

    It reads a copy, as `Checkpoints` removes unfinished checkpoints.
    """
    discovery, states = discovery or tiny_discovery(), {}
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(folder, pathlib.Path(place) / "checkpoints")
        with contextlib.closing(Checkpoints(copy)) as checkpoints:
            for step in reversed(steps(copy)):
                restored = checkpoints.restore(discovery.abstract_state, discovery.agents_stacked)
                assert restored is not None
                assert restored[0] == step, f"checkpoint {step} cannot be read"
                states[step] = restored[1]
                shutil.rmtree(copy / str(step))
    return states


def lost_steps(workdir: pathlib.Path) -> int:
    """Return the number of logged meta-steps after the last checkpoint, which will be repeated."""
    lost = steps_logged(workdir) - newest_good(workdir)
    assert lost <= MOST_LOST, f"{lost} meta-steps are lost, expected at most {MOST_LOST}"
    return lost


def assert_continues(bench: Bench, workdir: pathlib.Path) -> None:
    """Continue a run; check that it starts at its newest checkpoint and ends as if undisturbed."""
    newest = newest_good(workdir)
    output = finished(bench.discover(workdir))
    assert f"discover: {newest}/{META_STEPS}, compiling" in output, (newest, output)
    assert_as_uninterrupted(bench, workdir)


def assert_as_uninterrupted(bench: Bench, workdir: pathlib.Path) -> None:
    """Check that a finished run has the state, metrics and files of the undisturbed one."""
    assert_same(bench, workdir, bench.uninterrupted)


def assert_same(bench: Bench, workdir: pathlib.Path, undisturbed: pathlib.Path) -> None:
    """Check that a finished run has the state, metrics and files of another one."""
    assert newest_good(workdir) == META_STEPS, f"{workdir} ends at {newest_good(workdir)}"
    expected = final_state(shutil.copytree(undisturbed, bench.new("expected")))
    jax.tree.map(np.testing.assert_array_equal, final_state(workdir), expected)
    same = without_timings(workdir) == without_timings(undisturbed)
    assert same, f"{workdir} has other metrics than {undisturbed}"
    expected_files = {path.name for path in undisturbed.iterdir()} | {"damaged"}
    files = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    assert files <= expected_files, f"unexpected files {files - expected_files}"


def assert_finite(tree) -> None:
    """Check that all floating-point numbers of a tree are finite."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        is_float = np.issubdtype(leaf.dtype, np.floating)
        is_finite = not is_float or np.isfinite(leaf).all()
        assert is_finite, f"{jax.tree_util.keystr(path)} is not finite"

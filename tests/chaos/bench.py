"""What all faults need: a place to run in, the undisturbed run, and what was promised of both.

A fault is a function of a `Bench`. It runs a command, disturbs it, checks what was promised, and
returns what happened and what was lost; a promise that was broken is an `AssertionError`.
"""

import dataclasses
import functools
import pathlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from disco_common.checkpoints import Checkpoints
from meta.discovery import Discovery
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
# While one checkpoint is written the next meta-steps are made, and the one after it waits.
MOST_LOST = 2 * INTERVAL


class Outcome(NamedTuple):
    """A row of the table."""

    happened: str
    lost: str


@dataclasses.dataclass
class Bench:
    """Where faults happen.

    Attributes:
      folder: of all runs and of what they compile.
      rng: of the moments at which faults happen.
      processes: that were started.
    """

    folder: pathlib.Path
    rng: random.Random = dataclasses.field(default_factory=random.Random)
    processes: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)

    def new(self, name: str) -> pathlib.Path:
        """A workdir that does not exist yet."""
        return pathlib.Path(tempfile.mkdtemp(prefix=f"{name}_", dir=self.folder)) / "run"

    def discover(self, workdir: pathlib.Path, *arguments: object) -> subprocess.Popen[str]:
        """Starts or continues the tiny discovery."""
        return self._started(start_tiny(workdir, *arguments, compiled=self._compiled))

    def discover_together(self, workdir: pathlib.Path) -> list[subprocess.Popen[str]]:
        """Starts or continues the tiny discovery in two processes, of one device each."""
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
        """Starts a command under one of the disturbances of `tests.chaos.driver`."""
        config = [TINY] if command == "launch.discover" else []
        arguments = (disturbance, command, *config, *arguments)
        return self._started(start("tests.chaos.driver", *arguments, **quickly(self._compiled)))

    def evaluate(self, workdir: pathlib.Path, *arguments: object) -> subprocess.Popen[str]:
        """Starts or continues an evaluation of one baseline."""
        return self.disturbed(
            "nothing",
            "launch.evaluate",
            f"--workdir={workdir}",
            "--config.baselines=('actor_critic',)",
            "--config.baseline_learning_rates=(1e-3,)",
            *arguments,
        )

    def end_processes(self) -> None:
        """Kills what a fault that broke a promise left running."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    @functools.cached_property
    def uninterrupted(self) -> pathlib.Path:
        """The workdir of the tiny discovery that nobody disturbed. To be copied, not changed."""
        workdir = self.new("uninterrupted")
        finished(self.discover(workdir))
        return workdir

    def copy_of_uninterrupted(self, name: str) -> pathlib.Path:
        """A finished run to harm."""
        return shutil.copytree(self.uninterrupted, self.new(name))

    def _started(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.processes.append(process)
        return process

    @property
    def _compiled(self) -> pathlib.Path:
        return self.folder / "compiled"


Fault = Callable[[Bench], Outcome]


def finished(process: subprocess.Popen[str]) -> str:
    """What a command printed that must end well."""
    status, output = outcome(process)
    assert status == 0, f"exit status {status}, expected 0; it said:\n{output}"
    assert "Traceback" not in output, output
    return output


def refused(process: subprocess.Popen[str], *sentences: str, status: int = 2) -> str:
    """What a command printed that must end with a user's error, in these words."""
    found, output = outcome(process)
    assert found == status, f"exit status {found}, expected {status}; it said:\n{output}"
    assert "Traceback" not in output, output
    for sentence in sentences:
        assert sentence in output, f"expected {sentence!r} in:\n{output}"
    return output


def newest_good(workdir: pathlib.Path, discovery: Discovery | None = None) -> int:
    """The newest checkpoint's step, 0 if there is none. All that count as one can be read.

    Looks at a copy: whoever opens a folder of checkpoints cleans it.
    """
    if not (workdir / "checkpoints").exists():
        return 0
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(workdir / "checkpoints", pathlib.Path(folder) / "checkpoints")
        checkpoints = Checkpoints(copy)
        discovery = discovery or tiny_discovery()
        for step in steps:
            checkpoints.load(step, discovery.abstract_state, discovery.agents_stacked)
        checkpoints.close()
    return max(steps, default=0)


def lost_steps(workdir: pathlib.Path) -> int:
    """Meta-steps that were logged and are to be made again: those after the last checkpoint."""
    lost = steps_logged(workdir) - newest_good(workdir)
    assert lost <= MOST_LOST, f"{lost} meta-steps are lost, expected at most {MOST_LOST}"
    return lost


def assert_goes_on(bench: Bench, workdir: pathlib.Path) -> None:
    """Started again, a run goes on from its newest checkpoint and ends as if undisturbed."""
    newest = newest_good(workdir)
    output = finished(bench.discover(workdir))
    assert f"discover: {newest}/{META_STEPS}, compiling" in output, (newest, output)
    assert_as_uninterrupted(bench, workdir)


def assert_as_uninterrupted(bench: Bench, workdir: pathlib.Path) -> None:
    """A run that ended has the same state, metrics and files as the one that nobody disturbed."""
    assert_same(bench, workdir, bench.uninterrupted)


def assert_same(bench: Bench, workdir: pathlib.Path, undisturbed: pathlib.Path) -> None:
    """A run that ended has the same state, metrics and files as another one."""
    assert newest_good(workdir) == META_STEPS, f"{workdir} ends at {newest_good(workdir)}"
    expected = final_state(shutil.copytree(undisturbed, bench.new("expected")))
    jax.tree.map(np.testing.assert_array_equal, final_state(workdir), expected)
    same = without_timings(workdir) == without_timings(undisturbed)
    assert same, f"{workdir} has other metrics than {undisturbed}"
    expected_files = {path.name for path in undisturbed.iterdir()} | {"damaged"}
    files = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    assert files <= expected_files, f"unexpected files {files - expected_files}"


def assert_finite(tree) -> None:
    """That all floating-point numbers are."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        is_float = np.issubdtype(leaf.dtype, np.floating)
        assert not is_float or np.isfinite(leaf).all(), f"{jax.tree_util.keystr(path)} is not"

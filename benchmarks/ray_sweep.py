"""An evaluation on a local Ray cluster that is interrupted, and whose worker is killed.

    python -m benchmarks.ray_sweep --rules=3 --tasks=4 --seeds=3

Evaluates random rules and the random policy, one job per run. The command is interrupted (SIGINT)
and started again. Then the worker of one run is killed twice (SIGKILL). The benchmark checks that
all results exist at the end, and that no finished run was repeated.
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import psutil
from absl import flags

import disco
from environments import registry
from launch.support import commands

_TASKS = [name for name in registry.members_of("grid_heldout") if "/chain_" in name]
_SIZES = disco.MetaNetworkSizes(
    prediction=4, prediction_embedding=4, action_hidden=4, trajectory=4, lifetime=4
)
_SETTINGS = (
    "--config.baselines=()",
    "--config.agent.num_environments=2",
    "--config.agent.unroll_length=5",
    "--config.agent.batch_size=2",
    "--config.agent.network.torso=(8,)",
    "--config.agent.network.model=8",
    "--config.agent.network.head=()",
)
_TIMEOUT = 1200.0

T = TypeVar("T")


class ResultMonitor:
    """A monitor of the results in a workdir, none of which may be written twice."""

    def __init__(self, workdir: pathlib.Path):
        """Start without results."""
        self._workdir = workdir
        self._inodes: dict[pathlib.Path, int] = {}

    def count(self) -> int:
        """Return the number of results.

        Raises:
          AssertionError: if a result was replaced since an earlier call.
        """
        for path in self._workdir.glob("runs/*/*/seed_*/result.json"):
            inode = path.stat().st_ino
            if self._inodes.setdefault(path, inode) != inode:
                raise AssertionError(f"{path} was written twice.")
        return len(self._inodes)


def write_rules(folder: pathlib.Path, number: int) -> list[str]:
    """Write random rules; return their files."""
    files = [folder / f"rule{i}.npz" for i in range(number)]
    for i, file in enumerate(files):
        rule = disco.DiscoveredRule.create(jax.random.key(i), _SIZES, num_bins=11, max_value=5.0)
        disco.save(rule, file, {})
    return [str(file) for file in files]


def start(
    workdir: pathlib.Path, rules: list[str], tasks: int, seeds: int, budget: int, *more: str
) -> subprocess.Popen[str]:
    """Start the command, with a Ray cluster of its own."""
    if not 1 <= tasks <= len(_TASKS):
        raise ValueError(f"--tasks is {tasks}; expected 1 to {len(_TASKS)}.")
    arguments = [
        f"--rule={','.join(rules)}",
        f"--suite={','.join(_TASKS[:tasks])}",
        f"--workdir={workdir}",
        f"--config.seeds={seeds}",
        f"--config.budget={budget}",
        "--executor=ray",
        "--runs_per_job=1",
        *_SETTINGS,
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "launch.evaluate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def worker(command: subprocess.Popen[str], job: str) -> psutil.Process | None:
    """Return the process that runs a job, given the beginning of the job's name; None if none."""
    for process in psutil.Process(command.pid).children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(f"ray::{job}"):
                return process
        except psutil.Error:  # It has ended.
            pass
    return None


def wait_for(
    command: subprocess.Popen[str], monitor: ResultMonitor, condition: Callable[[], T | None]
) -> T:
    """Wait until a condition returns a true value; return this value."""
    end = time.monotonic() + _TIMEOUT
    while not (value := condition()):
        monitor.count()
        if command.poll() is not None or time.monotonic() > end:
            command.kill()
            raise AssertionError(
                f"The command ended too early, or hangs: {command.communicate()[0]}"
            )
        time.sleep(0.02)
    return value


def interrupt_restart_and_kill(
    folder: pathlib.Path, num_rules: int, tasks: int, seeds: int, budget: int
) -> tuple[int, int]:
    """Interrupt the evaluation, restart it, and kill one worker twice.

    Returns:
      The number of results at the interrupt, and at the end.

    Raises:
      AssertionError: if a check fails.
    """
    workdir = folder / "sweep"
    rules = write_rules(folder, num_rules)
    expected = (num_rules + 1) * tasks * seeds
    monitor = ResultMonitor(workdir)
    command = start(workdir, rules, tasks, seeds, budget)
    wait_for(command, monitor, lambda: monitor.count() >= expected // 4)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=_TIMEOUT)
    if command.returncode != 128 + signal.SIGINT:
        raise AssertionError(
            f"The command ended with status {command.returncode} after SIGINT: {output}"
        )
    interrupted = monitor.count()

    command = start(workdir, rules, tasks, seeds, budget)
    victim = f"rule{num_rules - 1} on {_TASKS[0]} (seed {seeds - 1})"
    for _ in range(2):
        process = wait_for(command, monitor, lambda: worker(command, victim))
        time.sleep(0.2)
        process.kill()
        process.wait(60)
    wait_for(command, monitor, lambda: monitor.count() == expected)
    output, _ = command.communicate(timeout=_TIMEOUT)
    if command.returncode:
        raise AssertionError(f"The command ended with status {command.returncode}: {output}")
    if f"{interrupted} of {expected} runs are finished." not in output:
        raise AssertionError(f"The command did not continue from {interrupted} runs: {output}")
    if not (workdir / "results.json").exists():
        raise AssertionError(f"There is no report: {output}")
    return interrupted, monitor.count()


def main() -> None:
    """Make the test, and print a summary."""
    values = flags.FLAGS
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        interrupted, results = interrupt_restart_and_kill(
            pathlib.Path(folder), values.rules, values.tasks, values.seeds, values.budget
        )
    print(
        f"{values.rules} rules and the random policy, {values.tasks} tasks, {values.seeds} seeds:"
        f" interrupted with {interrupted} results, restarted, one worker killed twice; {results}"
        f" results, none written twice. {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    flags.DEFINE_integer("rules", 3, "Number of random rules.", lower_bound=1)
    flags.DEFINE_integer("tasks", 4, "Number of tasks.", lower_bound=1)
    flags.DEFINE_integer("seeds", 3, "Seeds of each rule on each task.", lower_bound=1)
    flags.DEFINE_integer("budget", 20_000, "Environment steps of a run.", lower_bound=10)
    commands.run(main)

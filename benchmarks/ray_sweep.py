"""A sweep on a local Ray cluster whose worker is killed, and which is interrupted.

    python -m benchmarks.ray_sweep --rules=3 --tasks=4 --seeds=3

Evaluates random rules and the random policy, a job per run. The command is interrupted (SIGINT) and
started again, and then the worker of one run is killed twice while it works (SIGKILL). At the end
all results must be there, none made twice, and after the restart only what was missing.
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
from launch import commands

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


class Watch:
    """The results of a workdir, which must not be written again."""

    def __init__(self, workdir: pathlib.Path):
        """Of results to come."""
        self._workdir = workdir
        self._seen: dict[pathlib.Path, int] = {}

    def look(self) -> int:
        """How many results there are.

        Raises:
          AssertionError: if one is another file than when it was first seen.
        """
        for path in self._workdir.glob("runs/*/*/seed_*/result.json"):
            inode = path.stat().st_ino
            if self._seen.setdefault(path, inode) != inode:
                raise AssertionError(f"{path} was made twice.")
        return len(self._seen)


def write_rules(folder: pathlib.Path, number: int) -> list[str]:
    """Random rules; their files."""
    files = [folder / f"rule{i}.npz" for i in range(number)]
    for i, file in enumerate(files):
        rule = disco.DiscoveredRule.create(jax.random.key(i), _SIZES, num_bins=11, max_value=5.0)
        disco.save(rule, file, {})
    return [str(file) for file in files]


def start(
    workdir: pathlib.Path, rules: list[str], tasks: int, seeds: int, budget: int, *more: str
) -> subprocess.Popen[str]:
    """The command, on a Ray cluster of its own."""
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
    """The process that does a job at the moment, by the beginning of its name."""
    for process in psutil.Process(command.pid).children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(f"ray::{job}"):
                return process
        except psutil.Error:  # It ended meanwhile.
            pass
    return None


def wait_for(command: subprocess.Popen[str], watch: Watch, condition: Callable[[], T | None]) -> T:
    """What a condition gives, once that is true."""
    end = time.monotonic() + _TIMEOUT
    while not (value := condition()):
        watch.look()
        if command.poll() is not None or time.monotonic() > end:
            command.kill()
            raise AssertionError(f"It ended too early, or hangs: {command.communicate()[0]}")
        time.sleep(0.02)
    return value


def interrupt_restart_and_kill(
    folder: pathlib.Path, num_rules: int, tasks: int, seeds: int, budget: int
) -> tuple[int, int]:
    """The whole story.

    Returns:
      How many results there were when the command was interrupted, and at the end.

    Raises:
      AssertionError: if anything went otherwise than it should.
    """
    workdir = folder / "sweep"
    rules = write_rules(folder, num_rules)
    expected = (num_rules + 1) * tasks * seeds
    watch = Watch(workdir)
    command = start(workdir, rules, tasks, seeds, budget)
    wait_for(command, watch, lambda: watch.look() >= expected // 4)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=_TIMEOUT)
    if command.returncode != 128 + signal.SIGINT:
        raise AssertionError(f"Ctrl-C ended it with status {command.returncode}: {output}")
    interrupted = watch.look()

    command = start(workdir, rules, tasks, seeds, budget)
    victim = f"rule{num_rules - 1} on {_TASKS[0]} (seed {seeds - 1})"
    for _ in range(2):
        process = wait_for(command, watch, lambda: worker(command, victim))
        time.sleep(0.2)
        process.kill()
        process.wait(60)
    wait_for(command, watch, lambda: watch.look() == expected)
    output, _ = command.communicate(timeout=_TIMEOUT)
    if command.returncode:
        raise AssertionError(f"It ended with status {command.returncode}: {output}")
    if f"{interrupted} of {expected} runs are finished." not in output:
        raise AssertionError(f"It did not go on from {interrupted} runs: {output}")
    if not (workdir / "results.json").exists():
        raise AssertionError(f"There is no report: {output}")
    return interrupted, watch.look()


def main() -> None:
    """Prints what happened."""
    values = flags.FLAGS
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        interrupted, results = interrupt_restart_and_kill(
            pathlib.Path(folder), values.rules, values.tasks, values.seeds, values.budget
        )
    print(
        f"{values.rules} rules and the random policy, {values.tasks} tasks, {values.seeds} seeds:"
        f" interrupted with {interrupted} results, restarted, one worker killed twice; {results}"
        f" results, none made twice. {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    flags.DEFINE_integer("rules", 3, "Random rules.", lower_bound=1)
    flags.DEFINE_integer("tasks", 4, "Tasks.", lower_bound=1)
    flags.DEFINE_integer("seeds", 3, "Seeds of each.", lower_bound=1)
    flags.DEFINE_integer("budget", 20_000, "Environment steps of a run.", lower_bound=10)
    commands.run(main)

"""`--dry_run`: what a command would run, how long it would take and how large it would be.

Times are measured here, on the machine that asks: each contender's first steps, or a discovery's
first meta-steps, in a folder that is deleted afterwards. Nothing is written in the workdir.
"""

import contextlib
import dataclasses
import itertools
import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import psutil
from rich.table import Column, Table

from disco_common.checkpoints import CheckpointReader, Checkpoints
from disco_common.terminal import console
from environments import Environment
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.evaluate import runs_of
from evaluation.report.texts import number_of
from evaluation.training import Run, job_groups, train_runs
from launch.support.settings import DiscoverSettings
from launch.support.workdirs import CHECKPOINTS
from meta.discovery import Discovery
from meta.run import RunMetrics, run
from training.passes import runs_per_pass
from training.schedule import schedules

_SECONDS = 2.0  # That an agent is measured after all of its updates have begun.
_MOST_SECONDS = 20.0  # After which an agent that has not begun to learn is measured as it is.
_INTERVAL = 1_000  # Environment steps between two reports.
_META_STEPS = 4


def show_evaluation(
    tasks: Sequence[Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    workdir: str,
    runs_per_job: int | None,
) -> None:
    """Print a table of the contenders: runs to make, environment steps, and estimated time.

    Arguments are those of `evaluation.evaluate.evaluate`; the workdir need not exist. The first job
    of a contender is begun, and is ended some seconds after all of the agent's updates have begun;
    other tasks may be slower. Of an agent that does not learn in that time, only a lower bound is
    known.
    """
    table = Table(
        Column("contender", overflow="fold"),
        "runs",
        "finished",
        "steps",
        "starts in",
        "steps/s",
        "takes about",
    )
    total, is_least = 0.0, False
    for contender in contenders:
        runs = list(itertools.chain(*runs_of(contender, tasks, config)))
        missing = [x for x in runs if not _is_finished(pathlib.Path(workdir), x)]
        numbers = ("", "", "")
        if missing:
            groups = list(job_groups(missing, runs_per_job))
            at_once = _runs_at_once(groups[0], config)
            found = _measured(groups[0][:at_once], config)
            seconds = sum(
                found.seconds(math.ceil(len(x) / at_once), config.num_steps) for x in groups
            )
            total += seconds
            is_least |= not found.learns
            taken = in_words(seconds) if found.learns else f"more than {in_words(seconds)}"
            rate = min(at_once, len(groups[0])) / found.seconds_per_step
            numbers = in_words(found.start_seconds), f"{rate:,.0f}", taken
        done, steps = len(runs) - len(missing), len(missing) * config.num_steps
        table.add_row(contender.name, str(len(runs)), str(done), f"{steps:,}", *numbers)
    console(log_width=100).print(table)
    about = "more than" if is_least else "about"
    tasks_and_seeds = f"{number_of('task', len(tasks))}, {number_of('seed', config.seeds)}"
    print(
        f"{tasks_and_seeds}, {config.num_steps:,} environment steps each: {about}"
        f" {in_words(total)} on {_devices()}, one job after the other. Memory of this process:"
        f" {_memory()}. Nothing was written."
    )


def _is_finished(workdir: pathlib.Path, one: Run) -> bool:
    try:
        found = storage.read(one.folder(workdir))
    except storage.DamagedResultError:
        return False
    return found is not None


def _runs_at_once(group: Sequence[Run], config: EvaluationConfig) -> int:
    """Return how many runs of a job are made at the same time, on all devices."""
    devices = jax.local_device_count()
    return devices * runs_per_pass(config.runs_at_once, len(group), devices)


class _Measured(NamedTuple):
    """The speed of a job.

    Attributes:
      start_seconds: until the first report, compilation included.
      seconds_per_step: per environment step of each run, once all of its agent's updates have
        begun.
      learns: whether they had when the measurement ended.
    """

    start_seconds: float
    seconds_per_step: float
    learns: bool

    def seconds(self, passes: int, steps: int) -> float:
        """Return the seconds of a job whose runs are made in so many passes, of so many steps."""
        return self.start_seconds + passes * steps * self.seconds_per_step


class _Enough(Exception):
    """Ends a job that was begun to be measured."""


def _measured(group: Sequence[Run], config: EvaluationConfig) -> _Measured:
    """Begin a job, in a folder that is deleted."""
    learns_from = 0
    if group[0].contender.own_training is None:
        experience = group[0].contender.make(group[0].task).experience
        first = [x.first for x in schedules(experience, config.num_steps).values()]
        learns_from = experience.steps_per_unroll * (1 + max(first, default=0))
    started, reports = time.monotonic(), list[tuple[int, float]]()  # Steps, and seconds.

    def begun() -> tuple[int, float]:
        return next((x for x in reports if x[0] >= learns_from), reports[0])

    def report(steps: int, *_: Any) -> None:
        reports.append((steps, time.monotonic() - started))
        passed = reports[-1][1] - begun()[1]
        if passed > (_SECONDS if steps >= learns_from else _MOST_SECONDS):
            raise _Enough

    # In host environments, reports are made at the ends of intervals.
    per_call = min(config.updates_per_call, -(-_INTERVAL // config.agent.steps_per_update))
    often = dataclasses.replace(config, updates_per_call=per_call)
    with tempfile.TemporaryDirectory() as name:
        folders = [pathlib.Path(name, str(i)) for i in range(len(group))]
        for folder in folders:
            folder.mkdir()
        try:
            train_runs(
                group,
                often if group[0].task.is_host else config,
                folders,
                pathlib.Path(name, "group"),
                report,
            )
        except _Enough:
            (steps, seconds), (last_steps, last) = begun(), reports[-1]
            per_step = (last - seconds) / (last_steps - steps)
            return _Measured(reports[0][1], per_step, last_steps >= learns_from)
    seconds = time.monotonic() - started - reports[0][1]
    return _Measured(reports[0][1], seconds / config.num_steps, learns=True)


def show_discovery(
    settings: DiscoverSettings,
    discovery: Discovery,
    workdir: str,
    should_stop: Callable[[int], bool],
) -> None:
    """Print what a discovery would do, by its first meta-steps; nothing if it is stopped."""
    reports: list[RunMetrics] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(pathlib.Path(folder), keep=1)
        run(
            discovery,
            meta_steps=_META_STEPS,
            checkpoints=checkpoints,
            checkpoint_interval=_META_STEPS,
            log_interval=1,
            on_report=reports.append,
            should_stop=should_stop,
        )
        checkpoints.close()
        files = [x for x in pathlib.Path(folder).rglob("*") if x.is_file()]
        size = sum(x.stat().st_size for x in files)
    if len(reports) < _META_STEPS:
        return
    seconds = min(x["seconds"] for x in reports[1:])
    with contextlib.closing(CheckpointReader(pathlib.Path(workdir, CHECKPOINTS))) as there:
        missing = max(0, settings.meta_steps - max(there.steps(), default=0))
    steps = discovery.steps_per_meta_step * discovery.population_size
    print(
        f"{missing:,} of {settings.meta_steps:,} meta-steps of {discovery.population_size} agents"
        f" on {settings.suite}, {steps * missing:,} environment steps, in {workdir}: about"
        f" {in_words(seconds * missing)} on {_devices()}, after the compilation"
        f" ({seconds:.2g} s per meta-step; without probes"
        f"{f', each of {settings.probe.interval} meta-steps' if settings.probe.interval else ''})."
        f"\nMemory of this process: {_memory()}. A checkpoint: {size / 2**20:.0f} MiB, of which the"
        f" newest {settings.checkpoints_kept} are kept. Nothing was written."
    )


def in_words(seconds: float) -> str:
    """Return a duration in words, to about two digits: 40 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _devices() -> str:
    return f"{len(jax.local_devices())} x {jax.local_devices()[0].device_kind}"


def _memory() -> str:
    return f"{psutil.Process().memory_info().rss / 2**30:.1f} GiB"

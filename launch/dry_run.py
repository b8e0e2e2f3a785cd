"""`--dry_run`: what a command would run, how long it would take and how large it would be.

Times are measured here, on the machine that asks: each contender's first steps, or a discovery's
first meta-steps, in a folder that is deleted afterwards. Nothing is written in the workdir.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import psutil
from absl import flags
from rich.table import Column, Table

from disco_common.checkpoints import CheckpointReader, Checkpoints
from disco_common.terminal import console
from environments import Environment
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.evaluate import runs_of
from evaluation.job_groups import job_groups
from evaluation.pace import in_words
from evaluation.report.texts import number_of
from evaluation.training import Run, make_agent, train_runs
from launch.settings import DiscoverSettings
from launch.workdirs import CHECKPOINTS
from meta.discovery import Discovery
from meta.run import RunMetrics, run
from training.schedule import schedules

# Of a contender's measurement: enough for agents that fill a replay first to begin to learn.
_LEAST_STEPS = 2_048
_LEAST_SECONDS = 0.5  # Of training; of less, too much is overhead.
_META_STEPS = 4


def define_flag() -> None:
    """Define `--dry_run`."""
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Say what would run, how long (measured by its first steps, for about a minute) and how"
        " large, and end.",
    )


def show_evaluation(
    tasks: Sequence[Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    workdir: str,
    runs_per_job: int | None,
) -> None:
    """Print a table of the contenders: runs to make, environment steps, and estimated time.

    Arguments are those of `evaluation.evaluate.evaluate`; the workdir need not exist. A contender
    is measured on its first job, on CPUs on as many runs of it as there are devices; other tasks
    may be slower. Of one that begins to learn later than it is measured, only a lower bound is
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
        steps = len(missing) * config.num_steps
        numbers = ("", "", "")
        if missing:
            groups = list(job_groups(missing, runs_per_job))
            first = _measured(groups[0][: _runs_at_once()], config)
            # In host environments all runs of a contender use the programs of its first one.
            compiled = 1 if missing[0].task.is_host else len(groups)
            seconds = first.start_seconds * compiled + steps * first.seconds_per_step
            total += seconds
            is_least |= not first.learns
            taken = in_words(seconds) if first.learns else f"more than {in_words(seconds)}"
            rate = f"{1 / first.seconds_per_step:,.0f}"
            numbers = in_words(first.start_seconds), rate, taken
        done = len(runs) - len(missing)
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
        found = storage.read(workdir, one.contender.name, one.task.name, one.seed_index)
    except storage.DamagedResultError:
        return False
    return found is not None


def _runs_at_once() -> int | None:
    """Return how many of a job's runs are made at the same time; None for all, on accelerators."""
    return jax.local_device_count() if jax.default_backend() == "cpu" else None


class _Measured(NamedTuple):
    """What a job's first steps take.

    Attributes:
      start_seconds: until it is compiled and started, and to end it.
      seconds_per_step: of training.
      learns: whether all its updates that ever begin do so in the steps that were measured.
    """

    start_seconds: float
    seconds_per_step: float
    learns: bool


def _measured(group: Sequence[Run], config: EvaluationConfig) -> _Measured:
    one, unroll, first = group[0], config.agent.steps_per_update, [0]
    untimed = 0
    if not one.contender.trains_itself:
        experience = make_agent(one.contender, one.task).experience
        unroll = experience.steps_per_unroll
        first = [x.first for x in schedules(experience, config.num_steps).values()]
        untimed = unroll if one.task.is_host else 0  # Programs are compiled in the first unroll.
    steps, start = max(_LEAST_STEPS, 3 * unroll), None
    while True:
        short = dataclasses.replace(config, budget=min(config.num_steps, steps), strip_frames=0)
        whole, training = _seconds(group, short)
        timed = short.num_steps - untimed
        if timed <= 0:  # All of the budget is the first unroll.
            training, timed = whole, short.num_steps
        start = whole - training if start is None else start
        is_whole = short.num_steps == config.num_steps
        if is_whole or training > _LEAST_SECONDS:
            learns = is_whole or all(x < short.num_steps // unroll for x in first)
            return _Measured(start, training / (len(group) * timed), learns)
        steps *= 8


def _seconds(group: Sequence[Run], config: EvaluationConfig) -> tuple[float, float]:
    """Return the seconds of a job, and those of its training."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        folders = [pathlib.Path(folder, str(i)) for i in range(len(group))]
        for one in folders:
            one.mkdir()
        results = train_runs(group, config, folders, pathlib.Path(folder, "group"))
    return time.monotonic() - started, sum(x.train_seconds for x in results)


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


def _devices() -> str:
    return f"{len(jax.local_devices())} x {jax.local_devices()[0].device_kind}"


def _memory() -> str:
    return f"{psutil.Process().memory_info().rss / 2**30:.1f} GiB"

"""Evaluations and studies in a workdir: what flags say of them, and what identifies them."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.filesize import decimal
from rich.table import Table

from agents.search_space import Settings
from disco_common.configuration import from_config
from disco_common.terminal import console
from environments import Environment, registry
from evaluation import storage, tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    ALGORITHMS,
    AlgorithmContender,
    Contender,
    RuleContender,
    fingerprints,
    make_contenders,
    rule_contenders,
)
from evaluation.evaluate import Execution, check, evaluate, resolve, runs_of
from evaluation.executors import Executor
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.rules import copies_in, copy_of_rule, find_plugin
from evaluation.scoring import references
from evaluation.training import ContenderRun, job_groups, train_runs
from evaluation.tuned_settings import SHIPPED, TUNED_FILE, find_tuned, settings_by_contender
from launch.support import commands, tracking, workdirs
from launch.support.command_flags import config_overrides, listed_paths
from launch.support.display import ProgressBar, print_needs
from launch.support.evaluation_flags import (
    RUNS_PER_RAY_JOB,
    first_suite,
    listed,
    opened_executor,
    suites_of,
)
from launch.support.rules import keep_rule
from launch.support.workdirs import code_version
from training.memory_budget import bytes_of_run
from training.passes import runs_per_pass

_SECONDS = 10.0  # That a job is measured by `--dry_run`, after its first report.
_CHANGEABLE = ("config.runs_at_once", "config.checkpoint_seconds", "config.strip_frames")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What identifies an evaluation or a study in a workdir. Only the same one may continue in it.

    Attributes:
      tasks: names.
      rules: fingerprints of the rules, by the contenders' names.
      config: of the evaluation.
      agents: settings of agents that learn without a rule, by name.
      command: name of the command.
      task_files: SHA-256 of the files that tasks are read from, by the tasks' names.
      tuned: settings of contenders, by their names; empty without tuned settings.
      search: of `launch.evolve`, its settings.
      ranges: of `launch.tune`, the ranges of each baseline's settings.
      rule_ranges: of `launch.tune`, the ranges of the settings of rules' agents.
    """

    tasks: tuple[str, ...]
    rules: dict[str, str]
    config: EvaluationConfig
    agents: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: str = "evaluate"
    task_files: dict[str, str] = dataclasses.field(default_factory=dict)
    tuned: dict[str, Any] = dataclasses.field(default_factory=dict)
    search: Any = None
    ranges: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    rule_ranges: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        command: str,
        tasks: Sequence[Environment],
        config: EvaluationConfig,
        contenders: Sequence[Contender] = (),
        tuned: Mapping[str, Settings] = MappingProxyType({}),
        **others: Any,
    ) -> "Identity":
        """Return the identity of a command's tasks, config and contenders, with further fields."""
        return cls(
            tasks=tuple(task.name for task in tasks),
            rules=fingerprints(contenders),
            config=config,
            agents={
                x.name: dict(x.settings)
                for x in contenders
                if isinstance(x, AlgorithmContender) and not x.is_random
            },
            command=command,
            task_files={task.name: task.sha256 for task in tasks if task.sha256},
            tuned={name: dict(settings) for name, settings in tuned.items()},
            **others,
        )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An evaluation of contenders on tasks in a workdir, as `prepare` makes it.

    Attributes:
      config: its settings.
      tasks, contenders: all, with different names.
      workdir: of its results.
      tuned: settings of some contenders, if any has some.
      scales: reference scores by task; None for the shipped ones.
    """

    config: EvaluationConfig
    tasks: tuple[Environment, ...]
    contenders: tuple[Contender, ...]
    workdir: str
    tuned: tuned_settings.TunedSettings | None
    scales: Mapping[str, references.Reference] | None

    @property
    def identity(self) -> Identity:
        tuned = settings_by_contender(self.tuned)
        return Identity.of("evaluate", self.tasks, self.config, self.contenders, tuned)


def of_flags(values: Any) -> Experiment:
    """Return the evaluation that the flags of `launch.evaluate` describe; errors as of `prepare`.

    It must be called before JAX computes anything (`read_flags`).
    """
    tasks, config = read_flags(values)
    return prepare(
        tasks,
        config,
        values.workdir,
        listed_paths(values.rule),
        agents=values.agent,
        tuned=values.tuned,
        table=values.references,
        changes=config_overrides(),
    )


def prepare(
    tasks: tuple[Environment, ...],
    config: EvaluationConfig,
    workdir: str,
    rules: Sequence[str] = (),
    *,
    agents: Sequence[str] = (),
    tuned: str = SHIPPED,
    table: str = "",
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Experiment:
    """Return the evaluation of rules, by name or file, and of agents, by name.

    `tuned` is as of `find_tuned`, `changes` as of `make_contenders`; `table` is a file of reference
    scores, of `launch.references`, or empty for the shipped ones.

    Raises:
      ValueError, OSError, ImportError: if a name, a file or a setting does not fit.
    """
    own = rule_contenders(rules, config, copies_in(workdir))
    chosen = find_tuned(tuned, workdir, config, tasks, own)
    contenders = make_contenders(own, config, agents, settings_by_contender(chosen), changes)
    scales = None
    if table:
        path = pathlib.Path(os.path.expanduser(table))
        scales = references.read(path)
        references.require_fit(tasks, config.num_steps, scales, path)
    return Experiment(config, tasks, contenders, workdir, chosen, scales)


def run(experiment: Experiment, how: Execution | None = None) -> WrittenEvaluation:
    """Run or continue an evaluation, by default in this process, with a progress bar.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      WorkdirHeldError: if another command has the workdir open.
      ValueError, OSError: as `opened_workdir` and `evaluation.evaluate.evaluate` do.
    """
    contenders, tuned = experiment.contenders, experiment.tuned
    with opened_workdir(experiment.workdir, experiment.identity, contenders) as folder:
        if tuned is not None and not (folder / TUNED_FILE).exists():
            tuned_settings.write(folder / TUNED_FILE, tuned)
        return evaluate(
            experiment.tasks,
            contenders,
            experiment.config,
            folder,
            provenance(),
            how or shown(),
            experiment.scales,
        )


def run_tracked(values: Any) -> WrittenEvaluation:
    """Run or continue the evaluation that the flags of `launch.evaluate` describe (`run`)."""
    trackers, experiment = tracking.of_flags(values), of_flags(values)
    folder, settings = pathlib.Path(experiment.workdir), dataclasses.asdict(experiment.config)
    with opened(values) as how:
        return run(experiment, tracking.tracked(how, folder, trackers, settings))


@contextlib.contextmanager
def opened_workdir(
    workdir: str,
    identity: Identity,
    contenders: Sequence[Contender] = (),
    changeable: Sequence[str] = (),
) -> Iterator[pathlib.Path]:
    """Open and lock the workdir of an evaluation or study, and keep the contenders' rule files.

    `changeable` are fields of the identity that may differ when it is continued, besides those that
    never matter.

    Raises:
      WorkdirHeldError: if another command has the workdir open.
      ValueError: if it is of another evaluation, or a rule's file has changed since it was read.
      OSError: if a copy cannot be written.
    """
    with workdirs.opened(workdir, identity, (*_CHANGEABLE, *changeable)) as folder:
        keep_rules(folder, contenders, identity.config)
        yield folder


def show_dry_run(experiment: Experiment, runs_per_job: int | None) -> None:
    """Say what `run` would do; refuse what it would refuse.

    It prints a table of the contenders: their runs, and their speed in the first seconds. Speed is
    measured on this machine, by the first job of each, in a folder that is deleted. How large
    learning states and replays are is known of the same jobs.
    """
    config, tasks = experiment.config, experiment.tasks
    check(tasks, experiment.contenders, config)
    workdirs.require_same_settings(experiment.workdir, experiment.identity, _CHANGEABLE)
    table, total = Table("contender", "runs", "finished", "steps", "steps/s"), 0.0
    held, checkpoints, agents = 0, 0, 0  # Bytes.
    for contender in experiment.contenders:
        runs = list(itertools.chain(*runs_of(contender, tasks, config)))
        missing = [x for x in runs if not _is_finished(pathlib.Path(experiment.workdir), x)]
        steps, rate = len(missing) * config.num_steps, ""
        if missing:
            group = next(iter(job_groups(missing, runs_per_job)))
            speed = _steps_per_second(group, config)
            total += steps / speed
            if contender.own_training is None:
                agent, dynamics = contender.make(group[0].task), group[0].task.dynamics
                state, stored, saved = bytes_of_run(agent, dynamics, config.num_steps)
                held = max(held, len(group) * (state + stored))
                checkpoints = max(checkpoints, 2 * len(group) * saved)  # The newest two.
                agents += len(missing) * state
            rate = f"{speed:,.0f}"
        finished = str(len(runs) - len(missing))
        table.add_row(contender.name, str(len(runs)), finished, f"{steps:,}", rate)
    console(log_width=100).print(table)
    print(
        f"About {datetime.timedelta(seconds=round(total))} on {jax.local_device_count()} x"
        f" {jax.devices()[0].device_kind}, one job after the other, and the compilation;"
        " longer for agents that begin to learn later."
    )
    print_needs(
        f"learning states and full replays of {decimal(held)} at once, in the largest of these"
        " jobs",
        f"final agents of {decimal(agents)}, and checkpoints of up to {decimal(checkpoints)} of a"
        " job that is under way; episodes and pictures are small",
    )


class _Enough(Exception):
    """Ends a job that was begun to be measured."""


def _is_finished(workdir: pathlib.Path, one: ContenderRun) -> bool:
    with contextlib.suppress(storage.DamagedResultError):
        found = storage.read(one.folder(workdir))
        return found is not None
    return False


def _steps_per_second(group: Sequence[ContenderRun], config: EvaluationConfig) -> float:
    """Return the environment steps per second of a job's first pass, of all its runs together."""
    devices = jax.local_device_count()
    group = group[: devices * runs_per_pass(config.runs_at_once, len(group), devices)]
    started, reports = time.monotonic(), list[tuple[int, float]]()  # Steps, and seconds.

    def report(steps: int, *_: Any) -> None:
        reports.append((steps, time.monotonic() - started))
        if reports[-1][1] - reports[0][1] > _SECONDS:
            raise _Enough

    with tempfile.TemporaryDirectory() as name, contextlib.suppress(_Enough):
        folders = [pathlib.Path(name, str(i)) for i in range(len(group))]
        for folder in folders:
            folder.mkdir()
        train_runs(group, config, folders, pathlib.Path(name, "group"), report)
    (first, before), (last, after) = reports[0], reports[-1]
    if last == first:  # Its only report came at its end.
        first, before = 0, 0.0
    return len(group) * (last - first) / (after - before)


def keep_rules(
    folder: pathlib.Path, contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Copy the rule files of contenders to a locked workdir, so that it can continue without them.

    Raises:
      ValueError: if a file has changed since.
      OSError: if a copy cannot be written.
    """
    changes = {} if config.rule_discount is None else {"discount": config.rule_discount}
    for contender in contenders:
        name = contender.source.get("file", "")
        if isinstance(contender, RuleContender) and find_plugin(name) is None:
            copy = copy_of_rule(copies_in(folder), contender.name)
            keep_rule(name, copy, contender.loaded, **changes)


def read_flags(values: Any) -> tuple[tuple[Environment, ...], EvaluationConfig]:
    """Return the tasks and the config that the flags give.

    Must be called before JAX computes anything. If this process makes the runs, it gets a device
    per core; but runs in host environments, one after the other, have all cores each. The driver of
    a Ray cluster leaves the accelerators to the workers.
    """
    if values.executor == "ray":
        commands.leave_accelerators()
    elif not registry.is_host(first_suite(values.suite)):
        commands.use_all_cores()
    own = ConfigDict({name: x for name, x in values.config.items() if name != ALGORITHMS})
    config = from_config(EvaluationConfig, own)
    if values.baselines is not None:
        config = dataclasses.replace(config, baselines=tuple(listed(values.baselines)))
    return resolve(suites_of(values.suite, values.env_kwargs)), config


def provenance() -> dict[str, Any]:
    """Return what made an evaluation: the version of the code, and the command."""
    return {"code_version": code_version(), "command": sys.argv}


def runs_per_job(values: Any) -> int | None:
    """Return the number of runs per job at most that the flags give."""
    return values.runs_per_job or (RUNS_PER_RAY_JOB if values.executor == "ray" else None)


@contextlib.contextmanager
def opened(values: Any) -> Iterator[Execution]:
    """Open the executor that the flags name (`opened_executor`), shown on the terminal."""
    with opened_executor(values) as executor:
        yield shown(executor, runs_per_job(values))


def shown(executor: Executor | None = None, most_runs: int | None = None) -> Execution:
    """Return an execution that is shown on the terminal."""
    return Execution(executor, most_runs, ProgressBar, functools.partial(print, flush=True))

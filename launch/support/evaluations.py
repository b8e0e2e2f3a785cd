"""Evaluations and studies in a workdir: what flags say of them, and what identifies them."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import logging
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
from environments import registry
from evaluation import storage, tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    ALGORITHMS,
    TUNED_SETTINGS,
    Contender,
    make_contenders,
    rule_contenders,
)
from evaluation.evaluate import (
    Experiment,
    check,
    evaluate,
    require_trainable,
    runs_of,
    tasks_of,
)
from evaluation.executors import Executor, LocalExecutor, RayExecutor
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.rules import copy_of_rule, find_plugin
from evaluation.runs import ContenderRun, job_groups, train_runs
from evaluation.scoring import references
from evaluation.tuned_settings import SHIPPED, TUNED_FILE, TunedSettings
from launch.support import tracking, workdirs
from launch.support.command_flags import listed_paths
from launch.support.discovery_rules import keep_rule
from launch.support.display import print_needs, progress_bar
from launch.support.evaluation_flags import (
    RUNS_PER_RAY_JOB,
    choose_devices,
    executor_of,
    first_suite,
    listed,
    opened_executor,
    suites_of,
)
from launch.support.workdirs import code_version
from training.memory_budget import bytes_of_run
from training.passes import runs_per_pass

_log = logging.getLogger(__name__)
_SECONDS = 10.0  # That a job is measured by `--dry_run`, after its first report.
_CHANGEABLE = ("config.runs_at_once", "config.checkpoint_seconds")


def prepare(values: Any) -> Experiment:
    """Do what `prepare_tasks` does, by the flags of `define_flags`."""
    executor = executor_of(values)
    default = RUNS_PER_RAY_JOB if isinstance(executor, RayExecutor) else None
    named = values.baselines
    changes = {} if named is None else {"baselines": tuple(listed(named))}
    return prepare_tasks(values, executor, values.runs_per_job or default, **changes)


def prepare_tasks(
    values: Any,
    executor: Executor = LocalExecutor(),
    runs_per_job: int | None = None,
    **changes: Any,
) -> Experiment:
    """Choose the devices, and return what flags describe; nothing is opened yet.

    Must be called before JAX computes anything.

    Args:
      values: of the flags of `define_task_flags`.
      executor: of the runs.
      runs_per_job: at most.
      changes: fields of the config that other flags give.

    Raises:
      ValueError, ImportError: if a name or a setting does not fit.
    """
    choose_devices(executor, is_host=registry.is_host(first_suite(values.suite)))
    own = {name: x for name, x in values.config.items() if name != ALGORITHMS}
    config = from_config(EvaluationConfig, ConfigDict(own | changes))
    return Experiment(
        tasks_of(suites_of(values.suite, values.env_kwargs)),
        config,
        pathlib.Path(values.workdir),
        executor=executor,
        runs_per_job=runs_per_job,
    )


def run_evaluation(
    values: Any, experiment: Experiment, changes: Mapping[str, Any] = MappingProxyType({})
) -> WrittenEvaluation | None:
    """Run or continue the evaluation that the flags of `launch.evaluate` describe.

    With `--dry_run`, only say what would be run. `changes` are as of `make_contenders`.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      ValueError, OSError, ImportError: if a name, a file or a setting does not fit; further ones as
        `opened` and `evaluation.evaluate.evaluate` do.
    """
    rules = listed_paths(values.rule)
    contenders, tuned = contenders_of(values.tuned, experiment, rules, values.agent, changes)
    scales = None
    if values.references:
        path = pathlib.Path(os.path.expanduser(values.references))
        scales = references.read(path)
        references.require_fit(experiment.tasks, experiment.config.num_steps, scales, path)
    if values.dry_run:
        show_dry_run(experiment, contenders)
        return None
    trackers = tracking.of_flags(values)
    with opened("evaluate", experiment, contenders) as started:
        if tuned is not None and not (started.folder / TUNED_FILE).exists():
            tuned_settings.write(started.folder / TUNED_FILE, tuned)
        return evaluate(tracking.tracked(started, trackers), contenders, scales)


def contenders_of(
    tuned_file: str,
    experiment: Experiment,
    rules: Sequence[str],
    agents: Sequence[str] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[tuple[Contender, ...], TunedSettings | None]:
    """Return the contenders of rules, the config and agents, and the tuned settings of some.

    `tuned_file` is what `--tuned` says. Errors and other arguments are those of `rule_contenders`,
    `tuned_settings.find` and `make_contenders`; there is one for a file of tuned settings that no
    contender reads, too.
    """
    config = experiment.config
    own = rule_contenders(rules, config, experiment.folder)
    tuned = tuned_settings.find(tuned_file, experiment.folder)
    contenders = make_contenders(own, config, agents, tuned, changes)
    used = tuned_of(contenders)
    if tuned is not None and tuned_file != SHIPPED:
        if not (used or rules):
            raise ValueError(
                f"--tuned={tuned_file} is given, and no contender reads it; expected a --rule or"
                " a tuned baseline, such as ppo_tuned."
            )
        for name in sorted({x.name for x in own} - set(tuned.contenders)):
            said = "%s has no settings for the rule %s, which keeps its own."
            _log.warning(said, tuned_file, name)
    kept = tuned.used_by(used, experiment.tasks) if tuned is not None and used else None
    return contenders, kept


def tuned_of(contenders: Sequence[Contender]) -> dict[str, Settings]:
    """Return the settings that a search has found, by the algorithm's or the rule's name."""
    return {
        x.name if x.is_rule else x.kind: x.source[TUNED_SETTINGS]
        for x in contenders
        if TUNED_SETTINGS in x.source
    }


@contextlib.contextmanager
def opened(
    command: str,
    experiment: Experiment,
    contenders: Sequence[Contender] = (),
    changeable: Sequence[str] = (),
    **others: Any,
) -> Iterator[Experiment]:
    """Open an evaluation or a study: lock its workdir, keep its rules, open its executor.

    It is shown on the terminal. How signals stop it, `opened_executor` says. `changeable` are
    fields of the identity that may differ when it is continued, besides those that never matter.
    The other arguments are those of `identity`.

    Raises:
      WorkdirHeldError: if another command has the workdir open.
      ValueError: if it is of another evaluation, or a rule's file has changed since it was read.
      OSError: if a copy cannot be written.
    """
    known = identity(command, experiment, contenders, **others)
    with (
        opened_executor(experiment.executor),
        workdirs.opened(experiment.folder, known, (*_CHANGEABLE, *changeable)) as folder,
    ):
        keep_rules(folder, contenders, experiment.config)
        yield dataclasses.replace(
            experiment,
            provenance={"code_version": code_version(), "command": sys.argv},
            open_progress=progress_bar,
            announce=functools.partial(print, flush=True),
        )


def identity(
    command: str, experiment: Experiment, contenders: Sequence[Contender] = (), **others: Any
) -> dict[str, Any]:
    """Return what identifies an evaluation or a study in a workdir: only the same may continue.

    Args:
      command: its name.
      experiment: of whose tasks the names count, and the SHA-256 of files that they are read from;
        its config.
      contenders: of rules the fingerprints count, of algorithms the settings.
      others: `ranges` of `launch.tune`, those of each
        baseline's settings, and `rule_ranges`, those of rules' agents; `tuned`, tuned settings by
        name, where they are not the contenders'.

    Returns:
      JSON values, and dataclasses of these.
    """
    return {
        "tasks": [task.name for task in experiment.tasks],
        "rules": {x.name: x.parameters_sha256 for x in contenders if x.is_rule},
        "config": experiment.config,
        "agents": {x.name: dict(x.settings) for x in contenders if x.is_baseline},
        "command": command,
        "task_files": {task.name: task.sha256 for task in experiment.tasks if task.sha256},
        "tuned": tuned_of(contenders),
        "search": None,
        "ranges": {},
        "rule_ranges": {},
        **others,
    }


def show_dry_run(experiment: Experiment, contenders: Sequence[Contender]) -> None:
    """Say what `evaluate` would do in a workdir; refuse what would be refused before a run starts.

    It prints a table of the contenders: their runs, and their speed in the first seconds. Speed is
    measured on this machine, by the first job of each, in a folder that is deleted. How large
    learning states and replays are is known of the same jobs.
    """
    config, folder = experiment.config, experiment.folder
    check(experiment, contenders)
    known = identity("evaluate", experiment, contenders)
    workdirs.require_same_settings(folder, known, _CHANGEABLE)
    runs = {x.name: runs_of(experiment, [x]) for x in contenders}
    left = {name: [x for x in own if not _is_finished(x)] for name, own in runs.items()}
    require_trainable(experiment, list(itertools.chain(*left.values())))
    table, total = Table("contender", "runs", "finished", "steps", "steps/s"), 0.0
    held, checkpoints, agents = 0, 0, 0  # Bytes.
    for contender in contenders:
        every, missing = runs[contender.name], left[contender.name]
        steps, rate = len(missing) * config.num_steps, ""
        if missing:
            group = next(iter(job_groups(missing, experiment.runs_per_job)))
            speed = _steps_per_second(group, config)
            total += steps / speed
            if not (first := group[0]).trains_itself:
                dynamics = first.task.dynamics
                state, stored, saved = bytes_of_run(first.agent, dynamics, config.num_steps)
                held = max(held, len(group) * (state + stored))
                checkpoints = max(checkpoints, 2 * len(group) * saved)  # The newest two.
                agents += len(missing) * state
            rate = f"{speed:,.0f}"
        finished = str(len(every) - len(missing))
        table.add_row(contender.name, str(len(every)), finished, f"{steps:,}", rate)
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
        " job that is under way; episodes are small",
    )


class _Enough(Exception):
    """Ends a job that was begun to be measured."""


def _is_finished(run: ContenderRun) -> bool:
    with contextlib.suppress(storage.DamagedResultError):
        found = storage.read(run.folder)
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
        group = [dataclasses.replace(x, folder=y) for x, y in zip(group, folders, strict=True)]
        train_runs(group, config, pathlib.Path(name, "group"), report)
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
        if contender.is_rule and find_plugin(name) is None:
            keep_rule(name, copy_of_rule(folder, contender.name), contender.rule, **changes)

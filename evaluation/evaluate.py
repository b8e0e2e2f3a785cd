"""An evaluation from end to end: train all contenders, score them, and write the results.

`evaluate`, in order:

1. `check` refuses contenders that cannot act, or learn, on a task;
2. the reference scores of the tasks are found, between which returns are normalised
   (`scoring.references`);
3. `runs_of` lists the runs: a contender on a task with a seed. Those without a result are trained
   in jobs (`_train_runs`, `runs.train_runs`), and all results are read from the folder;
4. the results are scored (`scoring.evaluation`), and scores, tables and figures are written
   (`report.evaluation_files`).
"""

import dataclasses
import datetime
import functools
import itertools
import os
import pathlib
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

import environments
from disco_common.terminal import require_printable
from environments import registry
from evaluation import executors, storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.executors import (
    Executor,
    Job,
    JobsFailedError,
    LocalExecutor,
    OpenProgress,
    silent,
)
from evaluation.report.evaluation_files import WrittenEvaluation, write_evaluation
from evaluation.report.stored import write_manifest
from evaluation.results import LearningCurves, RunResult
from evaluation.runs import (
    ContenderRun,
    job_groups,
    train_runs,
    unfinished_folder,
    with_compute,
)
from evaluation.scoring import references
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.references import Reference
from training.memory_budget import require_memory_for_runs
from training.schedule import require_consistent, schedules

_SECONDS_TO_STOP = 60.0  # For a job to write a checkpoint when it is stopped.


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Tasks and settings of an evaluation or a study, its folder, and how its runs are made.

    Attributes:
      tasks: with different names.
      config: by which contenders are made.
      folder: for all results (`evaluation.storage`). Runs whose results are there are not repeated;
        the caller must make sure that these are of the same tasks and config.
      provenance: to record with the results; JSON values.
      executor: of the runs, open while they are made.
      runs_per_job: number of runs at most that are trained together; None for no limit.
      open_progress: opens a progress display; its unit is an environment step of a run.
      announce: called with a sentence on the number of runs that are already finished.
    """

    tasks: Sequence[environments.Environment]
    config: EvaluationConfig
    folder: pathlib.Path
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    executor: Executor = LocalExecutor()
    runs_per_job: int | None = None
    open_progress: OpenProgress = silent
    announce: Callable[[str], None] = lambda sentence: None


def tasks_of(suites: Sequence[str]) -> tuple[environments.Environment, ...]:
    """Return the tasks of suites and single environments, without duplicates.

    Raises:
      ValueError: if a name is unknown, if there is none, or if the results on two tasks would be in
        one folder.
      ImportError: if a package that an environment needs is not installed.
    """
    if not suites:
        raise ValueError("The suite is empty; expected a suite or environment, or several.")
    for name in suites:  # Before one is made, which can take long.
        registry.check_name(name)
    by_name = {task.name: task for name in suites for task in environments.suite(name)}
    for name in by_name:
        require_printable("The environment", name)
    _require_own_folders(by_name)
    return tuple(by_name.values())


def _require_own_folders(tasks: Iterable[str]) -> None:
    owners: dict[str, str] = {}
    for task in tasks:
        owner = owners.setdefault(storage.task_folder(task), task)
        if owner != task:
            raise ValueError(
                f"The results on {owner!r} and on {task!r} would be in one folder,"
                f" {storage.task_folder(task)!r}; expected tasks whose names differ in more than"
                " slashes."
            )


def evaluate(
    experiment: Experiment,
    contenders: Sequence[Contender],
    table: Mapping[str, Reference] | None = None,
) -> WrittenEvaluation:
    """Train each contender on each task, and write scores, curves and plots.

    Args:
      experiment: the tasks, the config, the folder, and how runs are made.
      contenders: from `evaluation.contenders.make_contenders`.
      table: reference scores by task; by default the shipped ones. Those that fit are written to
        the folder, too.

    Raises:
      JobsFailedError: if some runs failed at each attempt. The results of all others are kept.
      OutputError: if an environment returns something else than it declares.
      OSError: if something cannot be written.
      ValueError: if a rule cannot act in an environment, or the missing runs of a job do not fit in
        memory together.
    """
    started = time.perf_counter()
    tasks, config, folder = experiment.tasks, experiment.config, experiment.folder
    check(experiment, contenders)
    provenance = _provenance(experiment)
    contenders = [with_compute(contender, tasks) for contender in contenders]
    table = references.shipped() if table is None else table
    found, reasons = references.of_tasks(tasks, config.num_steps, table)
    folder.mkdir(parents=True, exist_ok=True)
    references.write(folder / storage.REFERENCES, found)
    runs = runs_of(experiment, contenders)
    contender_curves = _make_missing(experiment, contenders, runs, provenance)
    evaluation = Evaluation(
        config=config,
        tasks=tuple(task.name for task in tasks),
        contenders=tuple(contenders),
        contender_curves=contender_curves,
        seeds=config.all_seeds,
        references=found,
        reasons=reasons,
        folders={(run.contender.name, run.task.name, run.seed): run.folder for run in runs},
    )
    return write_evaluation(
        folder,
        evaluation,
        {c.name: _with_times(c, contender_curves[c.name], config) for c in contenders},
        {**provenance, "finished": _now(), "seconds": time.perf_counter() - started},
    )


def make_runs(experiment: Experiment, contenders: Sequence[Contender]) -> dict[str, LearningCurves]:
    """Train each contender on each task; write only the manifest and the runs' results.

    Arguments and errors are those of `evaluate`.

    Returns:
      Each contender's learning curves, by name.
    """
    check(experiment, contenders)
    runs = runs_of(experiment, contenders)
    return _make_missing(experiment, contenders, runs, _provenance(experiment))


def _make_missing(
    experiment: Experiment,
    contenders: Sequence[Contender],
    runs: Sequence[ContenderRun],
    provenance: Mapping[str, Any],
) -> dict[str, LearningCurves]:
    """Train the runs without a result, of checked contenders, and return all learning curves."""
    config, folder = experiment.config, experiment.folder
    missing = [run for run in runs if storage.load(run.folder) is None]
    require_trainable(experiment, missing)
    names = [task.name for task in experiment.tasks]
    write_manifest(folder, config, names, contenders, provenance)
    experiment.announce(f"{len(runs) - len(missing)} of {len(runs)} runs are finished.")
    if missing:
        _train_runs(experiment, missing)
    found = {(run.contender.name, run.task.name, run.index): _finished(run) for run in runs}
    return {
        one.name: LearningCurves.of(
            [[found[one.name, task, index] for index in range(config.seeds)] for task in names],
            config,
        )
        for one in contenders
    }


def runs_of(experiment: Experiment, contenders: Sequence[Contender]) -> list[ContenderRun]:
    """Return the runs of contenders, by contender, task and seed."""
    config, folder = experiment.config, experiment.folder
    every = itertools.product(contenders, experiment.tasks, range(config.seeds))
    return [ContenderRun.of(one, task, index, config, folder) for one, task, index in every]


def check(experiment: Experiment, contenders: Sequence[Contender]) -> None:
    """Refuse an evaluation with an impossible run, before any run starts.

    Raises:
      ValueError: if a rule or an agent cannot act in an environment; if it requires what the
        trainer does not support, or more than the budget; or if the results on two tasks would be
        in one folder.
    """
    _require_own_folders(task.name for task in experiment.tasks)
    settings = experiment.config.training
    for contender, task in itertools.product(contenders, experiment.tasks):
        configured = contender.configured
        task = configured.choose_images(task)
        configured.check(task, settings.num_steps)
        if not configured.trains_itself:
            requirements = configured.make(task).requirements
            require_consistent(requirements)
            schedules(requirements, settings.num_steps)
            settings.num_unrolls(requirements.steps_per_unroll)


def require_trainable(experiment: Experiment, runs: Sequence[ContenderRun]) -> None:
    """Refuse runs on environments that break their promises, or too large for the memory.

    Raises:
      OutputError: if an environment returns something else than it declares.
      ValueError: naming the contender and the task, if a job's runs do not fit in memory together.
    """
    for run in runs:
        environments.require_declared_outputs(run.task)
    config, checked = experiment.config, set()
    for group in job_groups(runs, experiment.runs_per_job):
        first = group[0]
        dynamics = first.task.dynamics
        if first.trains_itself or (first.contender.name, dynamics) in checked:
            continue
        checked.add((first.contender.name, dynamics))  # The first group is the largest.
        require_memory_for_runs(
            f"{first.contender.name} on {first.task.name}",
            first.agent,
            dynamics,
            len(group),
            config.num_steps,
            config.runs_at_once,
        )


def _train_runs(experiment: Experiment, runs: Sequence[ContenderRun]) -> None:
    """Make runs, and check that each one has a result."""
    config, folder = experiment.config, experiment.folder.absolute()
    groups = list(job_groups(runs, experiment.runs_per_job))
    jobs = [
        Job(
            _job_name(group),
            functools.partial(_train_group, group, config, folder),
            units=config.num_steps * len(group),
            seconds_to_stop=_SECONDS_TO_STOP,
        )
        for group in groups
    ]
    errors = experiment.executor.run_jobs("evaluate", jobs, experiment.open_progress)
    failed = []
    for error, group in zip(errors, groups, strict=True):
        if left := [run for run in group if storage.load(run.folder) is None]:
            reason = error or f"done, yet the result is not in {folder}"
            failed.append(f"{_job_name(left)}: {reason}")
    if failed:
        raise JobsFailedError(
            failed,
            len(jobs),
            "The other runs are kept; started again, the command tries only what is missing."
            f" Tracebacks are in the files {storage.FAILURE} of the runs' folders.",
        )
    # Some may be left: of groups of other sizes, in which an earlier call trained the runs.
    shutil.rmtree(unfinished_folder(folder), ignore_errors=True)


def _job_name(group: Sequence[ContenderRun]) -> str:
    return f"{group[0]}{f' and {len(group) - 1} more' if len(group) > 1 else ''}"


def _train_group(
    group: Sequence[ContenderRun],
    config: EvaluationConfig,
    folder: pathlib.Path,
    report: executors.ReportProgress,
) -> None:
    """Make the runs of a group that are not finished; the work of a job."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{platform.node()} has no folder {folder}; expected a workdir on a file system that"
            " all machines share."
        )
    group = [run for run in group if storage.load(run.folder) is None]
    if not group:
        return

    runs = len(group)

    def show(steps: int, steps_per_second: float | None, mean_return: float | None) -> None:
        report(steps * runs, {"steps/s": steps_per_second, "return": mean_return})

    checkpoints = unfinished_folder(folder, group)
    try:
        results = train_runs(group, config, checkpoints, show)
        for run, result in zip(group, results, strict=True):
            storage.save(run.folder, result)
    except Exception:
        storage.save_failure([run.folder for run in group], traceback.format_exc())
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)


def _finished(run: ContenderRun) -> RunResult:
    result = storage.load(run.folder)
    if result is None:
        raise OSError(f"The result of {run} has gone from {run.folder}; start the command again.")
    return result


def _with_times(
    contender: Contender, curves: LearningCurves, config: EvaluationConfig
) -> dict[str, Any]:
    """Return the description of a contender and the wall time of its jobs, as JSON values."""
    num_runs, steps_per_run = curves.is_finite.size, contender.num_steps(config)
    return {
        **contender.manifest_entry(),
        "runs": num_runs,
        "environment_steps_per_run": steps_per_run,
        "start_seconds": curves.start_seconds,
        "train_seconds": curves.train_seconds,
        "devices": curves.devices,
        "steps_per_second": num_runs * steps_per_run / curves.train_seconds,
    }


def _provenance(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's provenance with that of this process."""
    return {
        **experiment.provenance,
        "jax_version": jax.__version__,
        "python_version": platform.python_version(),
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "started": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

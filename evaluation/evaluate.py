"""An evaluation from end to end: train all contenders, score them, write it all down."""

import dataclasses
import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import jax

import environments
from evaluation import report
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.progress import ProgressReport
from evaluation.scores import Summary, summarize
from evaluation.training import History, Trainer
from evaluation.workdir import Workdir


def resolve(suites: Sequence[str]) -> tuple[environments.Environment, ...]:
    """The tasks of suites and single environments, each once.

    Raises:
      ValueError: if a name is unknown, or there is none.
    """
    if not suites:
        raise ValueError("--suite is empty; expected a suite or environment, or several.")
    by_name = {task.name: task for name in suites for task in environments.suite(name)}
    return tuple(by_name.values())


def evaluate(
    tasks: Sequence[environments.Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    workdir: str | os.PathLike,
) -> Summary:
    """Trains each contender on each task, and writes scores, curves and plots.

    Contenders whose runs are in the workdir already are not trained again.

    Args:
      tasks: with different names.
      contenders: as `evaluation.contenders.contenders` makes them.
      config: by which they were made.
      workdir: for all results (see `evaluation.report` for which).

    Raises:
      WorkdirError: if it cannot be written, or holds another evaluation.
    """
    folder = Workdir(workdir, _identity(tasks, contenders, config))
    started = time.perf_counter()
    histories = {}
    trainer = Trainer(tasks, config)
    for number, contender in enumerate(contenders, 1):
        title = f"[{number}/{len(contenders)}] {contender.name}"
        history = folder.load(contender.name)
        if history is None:
            history = _train(trainer, contender, title, len(tasks), config)
            folder.save(contender.name, history, describe(contender, history, config))
        else:
            print(f"{title}: finished before", flush=True)
        histories[contender.name] = history
    names = tuple(task.name for task in tasks)
    summary = summarize(names, contenders, histories, config)
    report.write(
        folder,
        summary,
        contenders,
        histories,
        config,
        provenance() | {"seconds_of_this_run": time.perf_counter() - started},
        [describe(contender, histories[contender.name], config) for contender in contenders],
    )
    return summary


def _train(
    trainer: Trainer, contender: Contender, title: str, num_tasks: int, config: EvaluationConfig
) -> History:
    steps = num_tasks * config.seeds * config.agent.steps_per_update
    with ProgressReport(title, config.num_updates, steps) as progress:
        return trainer.train(contender, progress)


def _identity(tasks, contenders, config: EvaluationConfig) -> dict[str, Any]:
    """All that decides the numbers, for a workdir to know whether it holds the same."""
    settings = dataclasses.asdict(config)
    for name in ("runs_at_once", "updates_per_call", "confidence", "resamples"):
        del settings[name]  # They leave the runs as they are.
    return {
        "config": settings,
        "tasks": [task.name for task in tasks],
        "rules": {
            c.name: c.source["parameters_sha256"] for c in contenders if c.kind == "discovered"
        },
    }


def describe(contender: Contender, history: History, config: EvaluationConfig) -> dict[str, Any]:
    """Who a contender is and how long its runs took, as JSON values."""
    num_runs = history.is_finite.size
    steps = num_runs * config.num_updates * config.agent.steps_per_update
    return {
        "name": contender.name,
        "kind": contender.kind,
        "agent": dataclasses.asdict(contender.agent),
        "source": contender.source,
        "runs": num_runs,
        "environment_steps_per_run": config.num_updates * config.agent.steps_per_update,
        "start_seconds": history.start_seconds,
        "train_seconds": history.train_seconds,
        "steps_per_second": steps / history.train_seconds,
    }


def provenance() -> dict[str, Any]:
    """Of the numbers: code, packages and machine."""
    return {
        "code": _code_version(),
        "packages": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "devices": [str(device) for device in jax.devices()],
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _code_version() -> str:
    """The commit of a checkout, or else the installed package's version."""
    folder = pathlib.Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return importlib.metadata.version("disco")

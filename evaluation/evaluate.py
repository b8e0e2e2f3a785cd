"""An evaluation from end to end: train all contenders, score them, write it all down."""

import contextlib
import dataclasses
import datetime
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

import environments
from disco.atomic import write_atomically
from evaluation import bsuite_scores, host_training, report, storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.scores import Summary, summarize
from evaluation.training import History, Trainer


class Progress(Protocol):
    """Shows how far something is."""

    def start(self, completed: int) -> None:
        """Begins at so many units done."""
        ...

    def update(self, completed: int, numbers: Mapping[str, float | None]) -> None:
        """Shows the units done, and numbers beside them."""
        ...


OpenProgress = Callable[[str, int], contextlib.AbstractContextManager[Progress | None]]
"""From a title and a number of units to a `Progress`, or to None for silence."""


def resolve(suites: Sequence[str]) -> tuple[environments.Environment, ...]:
    """The tasks of suites and single environments, each once.

    Raises:
      ValueError: if a name is unknown, or there is none.
      ImportError: if a package that an environment needs is not installed.
    """
    if not suites:
        raise ValueError("The suite is empty; expected a suite or environment, or several.")
    by_name = {task.name: task for name in suites for task in environments.suite(name)}
    return tuple(by_name.values())


def evaluate(
    tasks: Sequence[environments.Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    folder: pathlib.Path,
    provenance: Mapping[str, Any] | None = None,
    open_progress: OpenProgress = lambda title, total: contextlib.nullcontext(),
) -> Summary:
    """Trains each contender on each task, and writes scores, curves and plots.

    Contenders whose runs are in the folder already are not trained again; that they are of the
    same tasks and config is the caller's to see to.

    Args:
      tasks: with different names.
      contenders: as `evaluation.contenders.make_contenders` makes them.
      config: by which they were made.
      folder: for all results (see `evaluation.report` and `evaluation.storage`).
      provenance: to note beside the results; JSON values.
      open_progress: to show progress in, a unit for each update.

    Raises:
      OSError: if something cannot be written.
      ValueError: if a rule cannot act in an environment, or a replay does not fit in memory.
      SimulatorError: if a simulator failed, or died and could not be replaced.
    """
    started = time.perf_counter()
    trainer = Trainer(tasks, config, storage.runs_folder(folder))
    trainer.check(contenders)
    histories, descriptions = {}, {}
    for number, contender in enumerate(contenders, 1):
        name, title = contender.name, f"[{number}/{len(contenders)}] {contender.name}"
        history = storage.load(folder, name)
        if history is None:
            history = _train(trainer, contender, title, open_progress)
            storage.save(folder, name, history, _describe(contender, history, config))
        else:
            print(f"{title}: finished before", flush=True)
        histories[name] = history
        descriptions[name] = _describe(contender, history, config)
    summary = summarize([task.name for task in tasks], contenders, histories, config)
    report.write(
        folder,
        summary,
        contenders,
        histories,
        config,
        descriptions,
        {
            **(provenance or {}),
            **_circumstances(),
            "seconds": time.perf_counter() - started,
        },
    )
    _score_bsuite(tasks, contenders, config, folder)
    return summary


def _score_bsuite(
    tasks: Sequence[environments.Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    folder: pathlib.Path,
) -> None:
    """Writes `bsuite.csv`, if there are settings of bsuite and its scores are defined."""
    settings = [task for task in tasks if task.name.startswith("bsuite/")]
    if not settings:
        return
    if config.agent.num_environments != 1:
        print(
            "bsuite's scores are of runs in one environment; with agent.num_environments"
            f" {config.agent.num_environments} there are none."
        )
        return
    scores: dict[str, list[bsuite_scores.Scores]] = {}
    for contender in contenders:
        for seed in range(config.seeds):
            runs = {
                task.name: host_training.read_episodes(
                    host_training.run_folder(
                        storage.runs_folder(folder), contender.name, task, seed
                    )
                )
                for task in settings
            }
            if all(runs.values()):
                scores.setdefault(contender.name, []).append(bsuite_scores.score(runs))
    if scores:
        write_atomically(folder / "bsuite.csv", bsuite_scores.to_csv(scores))
        print(f"Written: {folder / 'bsuite.csv'}, bsuite's own scores, by experiment and tag.")


def _train(
    trainer: Trainer, contender: Contender, title: str, open_progress: OpenProgress
) -> History:
    with open_progress(title, trainer.num_updates) as progress:
        if progress is None:
            return trainer.train(contender)
        progress.start(0)

        def show(updates: int, steps_per_second: float | None, mean_return: float | None):
            progress.update(updates, {"steps/s": steps_per_second, "return": mean_return})

        return trainer.train(contender, show)


def _describe(contender: Contender, history: History, config: EvaluationConfig) -> dict[str, Any]:
    """Who a contender is and how long its runs took, as JSON values."""
    num_runs = history.is_finite.size
    steps_per_run = config.num_updates * config.agent.steps_per_update
    return {
        "name": contender.name,
        "kind": contender.kind,
        "agent": dataclasses.asdict(contender.agent),
        "source": contender.source,
        "runs": num_runs,
        "environment_steps_per_run": steps_per_run,
        "start_seconds": history.start_seconds,
        "train_seconds": history.train_seconds,
        "steps_per_second": num_runs * steps_per_run / history.train_seconds,
    }


def _circumstances() -> dict[str, Any]:
    return {
        "jax_version": jax.__version__,
        "python_version": platform.python_version(),
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "devices": [str(device) for device in jax.devices()],
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }

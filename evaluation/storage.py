"""The results of an evaluation on disk. Files are written atomically.

The workdir of an evaluation holds

    config.json, version.txt   settings and version of the code (`launch.support.workdirs`)
    .lock, .lock.json          the lock, and the process that holds it (`launch.support.locks`)
    rules/<contender>.npz      copies of the rule files (`launch.evaluate`)
    manifest.json              tasks, contenders and provenance (`evaluation.report.manifest`)
    runs/                      a folder for each run, see below
    unfinished/<crc32>/        of a job group (runs that are trained together), until it is done:
        checkpoints/           their checkpoints
        damaged/               checkpoints that could not be used
    results.json, scores.csv, curves.png, …
                               scores and plots, once all runs are finished
                               (`evaluation.report.evaluation_files`)
    bsuite.csv                 bsuite's own scores, if bsuite's settings are among the tasks

A run's folder, runs/<contender>/<task>/seed_<n>/, holds

    result.json                the run's result, once it is finished; the run is not repeated then
    failure.txt                the traceback of its newest failure, until it is finished
    result.json.damaged        a result that could not be read; its run was repeated
    result.json.repeated       the result before `repeat`
    strip.png                  frames of an episode of the trained agent, side by side in one
                               picture; for the first seed of agents that learn from images
    prediction.png, …
                               of agents with a world model: what it makes of frames, what it
                               predicts beside what happened, what it imagines
    film.gif, film.mp4, …      films of the trained agent (`launch.watch`), which reports play
    agent.npz                  the trained agent (`training.saved`)
    episodes.jsonl             the run's episodes (`training.records`)
    metrics.jsonl              the agent's metrics (`training.records`)
    checkpoints/               in a host environment, or of an agent that trains itself
    damaged/                   checkpoints that could not be used

and all else that an agent that trains itself keeps. Folder names are those of
`evaluation.folder_names`, or of older versions, whose folders keep their names.
"""

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_common import json_lines
from disco_common.files import write_atomically
from evaluation import folder_names
from evaluation.results import Episodes, RunResult
from evaluation.training import Run

_CHECKSUM = "crc32"
_RESULT = "result.json"
_UNFINISHED = "unfinished"
FAILURE = "failure.txt"
STRIP = "strip.png"
REFERENCES = "references.json"  # Of the tasks, in the folder of an evaluation.
_PICTURES = (STRIP, "prediction.png")
FILMS = (".gif", ".mp4")
_log = logging.getLogger(__name__)


class DamagedResultError(ValueError):
    """A run's result cannot be read; the message names the file and the reason."""


def run_folder(folder: pathlib.Path, run: Run) -> pathlib.Path:
    """Return the folder of a run in an evaluation's folder."""
    return run_path(folder, run.contender.name, run.task.name, run.seed_index)


def run_path(folder: pathlib.Path, contender: str, task: str, seed_index: int) -> pathlib.Path:
    """Return the folder of a run in an evaluation's folder, by the names of task and contender."""
    runs = _named(folder / "runs", folder_names.of_contender(contender), contender)
    return _named(runs, folder_names.of_task(task), task.replace("/", "_")) / f"seed_{seed_index}"


def picture_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the pictures in a run's folder: an episode, the world model's, all others."""
    found = {path.name: path for path in sorted(folder.glob("*.png"))}
    return list({name: found[name] for name in (*_PICTURES, *found) if name in found}.values())


def film_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the films in a run's folder, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in FILMS)


def _named(parent: pathlib.Path, name: str, older: str) -> pathlib.Path:
    """Return a folder by its name, or by its older name if only that folder exists."""
    is_plain = older not in ("", ".", "..") and "/" not in older  # Not another folder's path.
    if name != older and is_plain and not os.path.lexists(parent / name):
        return parent / (older if os.path.isdir(parent / older) else name)
    return parent / name


def require_own_folders(
    folder: pathlib.Path, contenders: Sequence[str], tasks: Sequence[str]
) -> None:
    """Refuse tasks whose runs would be in one folder.

    Folders of older versions may have such names.

    Raises:
      ValueError: naming two such tasks.
    """
    for contender in contenders:
        owners: dict[pathlib.Path, str] = {}
        for task in tasks:
            own = run_path(folder, contender, task, 0).parent
            if own in owners:
                raise ValueError(
                    f"The runs of {contender} on {owners[own]!r} and on {task!r} would be in one"
                    f" folder, {own}, and so be mistaken for one another; expected tasks of other"
                    " names, or an empty workdir."
                )
            owners[own] = task


def group_folder(folder: pathlib.Path, group: Sequence[Run]) -> pathlib.Path:
    """Return the folder for the checkpoints of a job group, runs that are trained together."""
    names = [[run.contender.name, run.task.name, run.seed_index] for run in group]
    return folder / _UNFINISHED / f"{json_lines.crc32(names):08x}"


def remove_group_checkpoints(folder: pathlib.Path, group: Sequence[Run]) -> None:
    """Remove the checkpoints of a job group whose runs are finished."""
    shutil.rmtree(group_folder(folder, group), ignore_errors=True)


def remove_all_group_checkpoints(folder: pathlib.Path) -> None:
    """Remove the checkpoints of all job groups, once all runs are finished.

    Some may be left: of groups of other sizes, in which an earlier call trained the runs.
    """
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)


def save(folder: pathlib.Path, run: Run, result: RunResult) -> None:
    """Write the result of a finished run.

    Raises:
      OSError: if it cannot be written.
    """
    values = json_lines.plain(
        {
            "curve": result.curve._asdict(),
            "window": result.window._asdict(),
            "results": result.results,
            "is_finite": result.is_finite,
            "start_seconds": result.start_seconds,
            "train_seconds": result.train_seconds,
            "devices": result.devices,
            "restarts": result.restarts,
        }
    )
    path = run_folder(folder, run) / _RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    if result.strip:
        write_atomically(path.with_name(STRIP), result.strip)
    text = json_lines.dumps(values | {_CHECKSUM: json_lines.crc32(values)})
    write_atomically(path, text + "\n")
    path.with_name(FAILURE).unlink(missing_ok=True)


def save_failure(folders: Sequence[pathlib.Path], trace: str) -> None:
    """Write the traceback of a failure of runs that were trained together in their folders."""
    for folder in folders:
        with contextlib.suppress(OSError):  # Which may be the failure.
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / FAILURE, trace)


def repeat(folder: pathlib.Path, run: Run) -> None:
    """Rename a run's result, so that the run is repeated."""
    path = run_folder(folder, run) / _RESULT
    if path.exists():
        _log.warning("%s is renamed, and its run is repeated.", path)
        os.replace(path, path.with_name(f"{path.name}.repeated"))


def load(folder: pathlib.Path, run: Run) -> RunResult | None:
    """Return the result of a run; None if it is not finished.

    A damaged file is renamed, with a warning; its run counts as not finished.
    """
    path = run_folder(folder, run) / _RESULT
    try:
        return read(folder, run.contender.name, run.task.name, run.seed_index)
    except DamagedResultError as error:
        aside = path.with_name(f"{path.name}.damaged")
        _log.warning("%s: renamed to %s; the run is repeated.", error, aside)
        os.replace(path, aside)
        return None


def read(folder: pathlib.Path, contender: str, task: str, seed_index: int) -> RunResult | None:
    """Return the result of a run, by names; None if it is not finished.

    Raises:
      DamagedResultError: if its file exists and cannot be read.
    """
    path = run_path(folder, contender, task, seed_index) / _RESULT
    try:
        values = json_lines.read_object(path)
        if values.pop(_CHECKSUM) != json_lines.crc32(values):
            raise ValueError("it does not have its checksum")
        return RunResult(
            curve=_of_json(values["curve"], axes=1),
            window=_of_json(values["window"], axes=0),
            results={k: np.nan if x is None else float(x) for k, x in values["results"].items()},
            is_finite=bool(values["is_finite"]),
            start_seconds=float(values["start_seconds"]),
            train_seconds=float(values["train_seconds"]),
            devices=str(values["devices"]),
            restarts=int(values["restarts"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedResultError(f"{path} is damaged ({error})") from error


def _of_json(values: dict[str, Any], axes: int) -> Episodes:
    found = Episodes(*(np.array(values[name], np.float64) for name in Episodes._fields))
    shapes = [x.shape for x in found]
    if len(set(shapes)) > 1 or len(shapes[0]) != axes:
        raise ValueError(f"episodes have the shapes {shapes}; expected equal ones of {axes} axes")
    return found

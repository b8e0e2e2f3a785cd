"""Results on disk: a folder for each run. Files are replaced only once the new ones are complete.

runs/<contender>/<task>/seed_<n>/ has

    result.json      what became of the run, written when it is complete, which is never repeated
    strip.png        pictures of what the agent did at its end, of some runs
    prediction.png   pictures of what an agent that has a model expected then
    ...              what the trainer keeps: `training.records`, `training.saved`

whose names are those of `evaluation.folder_names`, or as older code made them.

unfinished/<checksum>/ has checkpoints of runs that are trained together, until they are finished.
"""

import json
import logging
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_common import json_lines
from disco_common.atomic import write_atomically
from evaluation import folder_names
from evaluation.results import Episodes, RunResult
from evaluation.training import Run

_CHECKSUM = "crc32"
_RESULT = "result.json"
_UNFINISHED = "unfinished"
STRIP = "strip.png"
PICTURES = (STRIP, "prediction.png")
_log = logging.getLogger(__name__)


class DamagedResultError(ValueError):
    """A run's result cannot be read; the message names the file, and says why."""


def run_folder(folder: pathlib.Path, run: Run) -> pathlib.Path:
    """Where an evaluation keeps a run."""
    return run_path(folder, run.contender.name, run.task.name, run.seed_index)


def run_path(folder: pathlib.Path, contender: str, task: str, seed_index: int) -> pathlib.Path:
    """Where an evaluation keeps a run, by names."""
    runs = _named(folder / "runs", folder_names.of_contender(contender), contender)
    return _named(runs, folder_names.of_task(task), task.replace("/", "_")) / f"seed_{seed_index}"


def _named(parent: pathlib.Path, name: str, older: str) -> pathlib.Path:
    """A folder by its name, or by the one that older code gave it where only that is there."""
    is_plain = older not in ("", ".", "..") and "/" not in older  # It does not lead elsewhere.
    if name != older and is_plain and not os.path.lexists(parent / name):
        return parent / (older if os.path.isdir(parent / older) else name)
    return parent / name


def require_own_folders(
    folder: pathlib.Path, contenders: Sequence[str], tasks: Sequence[str]
) -> None:
    """Refuses tasks whose runs would be in one folder, as older code left some.

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
                    f" folder, {own}, so that one would count as the other; expected tasks of other"
                    " names, or an empty workdir."
                )
            owners[own] = task


def pack_folder(folder: pathlib.Path, pack: Sequence[Run]) -> pathlib.Path:
    """Where an evaluation keeps what runs that are trained together need to go on."""
    names = [[run.contender.name, run.task.name, run.seed_index] for run in pack]
    return folder / _UNFINISHED / f"{json_lines.crc32(names):08x}"


def forget_pack(folder: pathlib.Path, pack: Sequence[Run]) -> None:
    """Removes it, once the runs are finished."""
    shutil.rmtree(pack_folder(folder, pack), ignore_errors=True)


def forget_packs(folder: pathlib.Path) -> None:
    """Removes what is left of packs that were not finished as they were, but otherwise."""
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)


def save(folder: pathlib.Path, run: Run, result: RunResult) -> None:
    """Keeps a finished run.

    Raises:
      OSError: if it cannot be written.
    """
    values = {
        "curve": _to_json(result.curve),
        "window": _to_json(result.window),
        "results": result.results,
        "is_finite": result.is_finite,
        "start_seconds": result.start_seconds,
        "train_seconds": result.train_seconds,
        "devices": result.devices,
        "restarts": result.restarts,
    }
    path = run_folder(folder, run) / _RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    if result.strip:
        write_atomically(path.with_name(STRIP), result.strip)
    write_atomically(path, json.dumps(values | {_CHECKSUM: json_lines.crc32(values)}) + "\n")


def repeat(folder: pathlib.Path, run: Run) -> None:
    """Set a run's result aside, so that the run is made again."""
    path = run_folder(folder, run) / _RESULT
    if path.exists():
        _log.warning("%s is set aside, and its run is made again.", path)
        os.replace(path, path.with_name(f"{path.name}.repeated"))


def load(folder: pathlib.Path, run: Run) -> RunResult | None:
    """What became of a run, if it is finished. A damaged file is set aside with a warning."""
    path = run_folder(folder, run) / _RESULT
    try:
        return read(folder, run.contender.name, run.task.name, run.seed_index)
    except DamagedResultError as error:
        aside = path.with_name(f"{path.name}.damaged")
        _log.warning("%s: kept as %s, and run again.", error, aside)
        os.replace(path, aside)
        return None


def read(folder: pathlib.Path, contender: str, task: str, seed_index: int) -> RunResult | None:
    """What became of a run, if it is finished.

    Raises:
      DamagedResultError: if its file is there and cannot be used.
    """
    path = run_path(folder, contender, task, seed_index) / _RESULT
    try:
        values = json_lines.read_object(path)
        if values.pop(_CHECKSUM) != json_lines.crc32(values):
            raise ValueError("it is not what was written")
        return RunResult(
            curve=_of_json(values["curve"], axes=1),
            window=_of_json(values["window"], axes=0),
            results={name: float(x) for name, x in values["results"].items()},
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


def _to_json(episodes: Episodes) -> dict[str, Any]:
    return {name: np.asarray(x).tolist() for name, x in episodes._asdict().items()}


def _of_json(values: dict[str, Any], axes: int) -> Episodes:
    found = Episodes(*(np.array(values[name], np.float64) for name in Episodes._fields))
    shapes = [x.shape for x in found]
    if len(set(shapes)) > 1 or len(shapes[0]) != axes:
        raise ValueError(f"episodes have the shapes {shapes}; expected equal ones of {axes} axes")
    return found

"""The results of an evaluation on disk. Files are written atomically.

The workdir of an evaluation holds

    config.json, version.txt, arguments.json
                               settings, version of the code, and the command's arguments
                               (`launch.support.workdirs`)
    .lock, .lock.json          the lock, and the process that holds it (`launch.support.workdirs`)
    rules/<contender>.npz      copies of the rule files (`launch.evaluate`)
    tuned.json                 tuned settings of its contenders (`evaluation.tuned_settings`)
    references.json            scores between which it normalises (`evaluation.scoring.references`)
    manifest.json              tasks, contenders and provenance (`evaluation.report.stored`)
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
    prediction.png, …
                               of agents with a world model: what it makes of frames, what it
                               predicts beside what happened, what it imagines
    film.gif, …                films of the trained agent (`launch.watch`), which reports play
    agent.npz                  the trained agent (`training.records`)
    episodes.jsonl             the run's episodes (`training.records`)
    metrics.jsonl              the agent's metrics (`training.records`)
    checkpoints/               in a host environment, or of an agent that trains itself
    damaged/                   checkpoints that could not be used

and all else that an agent that trains itself keeps.
"""

import contextlib
import hashlib
import logging
import os
import pathlib
import urllib.parse
from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_common import json_lines
from disco_common.files import write_atomically
from evaluation.results import Episodes, RunResult

_CHECKSUM = "crc32"
_RESULT = "result.json"
FAILURE = "failure.txt"
REFERENCES = "references.json"  # Of the tasks, in the folder of an evaluation.
_PICTURES = (".png", ".gif", ".mp4")
# Characters that are not percent-encoded in names of folders, besides letters, digits and `_.-~`.
_ORDINARY = " !#$&'()+,:;=@[]^{}"
_LONGEST = 200  # Bytes. File systems allow 255, of which some are for suffixes.
_log = logging.getLogger(__name__)


class DamagedResultError(ValueError):
    """A run's result cannot be read; the message names the file and the reason."""


def run_path(folder: pathlib.Path, contender: str, task: str, seed_index: int) -> pathlib.Path:
    """Return the folder of a run in an evaluation's folder, by the names of contender and task."""
    return folder / "runs" / contender_folder(contender) / task_folder(task) / f"seed_{seed_index}"


def contender_folder(name: str) -> str:
    """Return the name of a contender's folder.

    A name may hold any character. The folder's leads out of no folder, and is short enough for a
    file system. Different names have different folders.
    """
    return _limited(_quoted(name), name)


def task_folder(name: str) -> str:
    """Return the name of a task's folder, `family_rest` for `family/rest`.

    It is as of `contender_folder`, but that `a/b_c` and `a_b/c` have the same one.
    """
    return _limited("_".join(map(_quoted, name.split("/", 1))), name)


def _quoted(text: str) -> str:
    # File names that are not UTF-8 have surrogates.
    return urllib.parse.quote(text, safe=_ORDINARY, errors="surrogatepass")


def _limited(quoted: str, name: str) -> str:
    """Return a quoted name, changed if it is reserved by the file system or too long."""
    if not quoted.strip("."):  # Also the empty name.
        return quoted.replace(".", "%2E") or "%"
    if len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    # No other quoted name has a percent sign before a hyphen.
    return f"{quoted[: _LONGEST - len(digest) - 2]}%-{digest}"


def picture_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the pictures and films in a run's folder, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in _PICTURES)


def save(run: pathlib.Path, result: RunResult) -> None:
    """Write the result of a finished run to its folder.

    Raises:
      OSError: if it cannot be written.
    """
    found = {
        name: value._asdict() if isinstance(value, Episodes) else value
        for name, value in vars(result).items()
    }
    values = json_lines.plain(found)
    run.mkdir(parents=True, exist_ok=True)
    text = json_lines.dumps(values | {_CHECKSUM: json_lines.crc32(values)})
    write_atomically(run / _RESULT, text + "\n")
    (run / FAILURE).unlink(missing_ok=True)


def save_failure(runs: Sequence[pathlib.Path], trace: str) -> None:
    """Write the traceback of a failure of runs that were trained together in their folders."""
    for run in runs:
        with contextlib.suppress(OSError):  # Which may be the failure.
            run.mkdir(parents=True, exist_ok=True)
            write_atomically(run / FAILURE, trace)


def load(run: pathlib.Path) -> RunResult | None:
    """Return the result in a run's folder; None if it is not finished.

    A damaged file is renamed, with a warning; its run counts as not finished.
    """
    try:
        return read(run)
    except DamagedResultError as error:
        aside = run / f"{_RESULT}.damaged"
        _log.warning("%s: renamed to %s; the run is repeated.", error, aside)
        os.replace(run / _RESULT, aside)
        return None


def read(run: pathlib.Path) -> RunResult | None:
    """Return the result in a run's folder; None if it is not finished.

    Raises:
      DamagedResultError: if its file exists and cannot be read.
    """
    path = run / _RESULT
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

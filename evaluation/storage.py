"""Results on disk. Files are replaced only once the new ones are complete.

runs/<contender>.npz     the episodes of its runs, written when all of them are finished
runs/<contender>.json    who it is, and how long it took
runs/<contender>/        what `evaluation.host_training` keeps of each run in a host environment
"""

import io
import json
import os
import pathlib
import zipfile
from typing import Any

import numpy as np
from absl import logging

from disco.atomic import write_atomically
from evaluation.training import Episodes, History

_ARRAYS = (
    "updates",
    "curve_count",
    "curve_return_sum",
    "window_count",
    "window_return_sum",
    "is_finite",
    "start_seconds",
    "train_seconds",
)
_RESULTS = "results/"


def save(folder: pathlib.Path, name: str, history: History, description: dict[str, Any]) -> None:
    """Keeps a contender's finished runs.

    Raises:
      OSError: if they cannot be written.
    """
    values = (
        history.updates,
        *history.curve,
        *history.window,
        history.is_finite,
        history.start_seconds,
        history.train_seconds,
    )
    buffer = io.BytesIO()
    arrays = {key: np.asarray(value) for key, value in zip(_ARRAYS, values, strict=True)}
    arrays |= {f"{_RESULTS}{name}": value for name, value in history.results.items()}
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    runs_folder(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(runs_folder(folder) / f"{name}.json", json.dumps(description, indent=2))
    write_atomically(_runs(folder, name), buffer.getvalue())


def load(folder: pathlib.Path, name: str) -> History | None:
    """A contender's runs, if they are finished. A damaged file is set aside with a warning."""
    path = _runs(folder, name)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in _ARRAYS}
            results = {
                key.removeprefix(_RESULTS): archive[key]
                for key in archive.files
                if key.startswith(_RESULTS)
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        aside = path.with_name(f"{path.name}.damaged")
        logging.warning("%s is damaged (%s): kept as %s, and run again.", path, error, aside)
        os.replace(path, aside)
        return None
    return History(
        updates=arrays["updates"],
        curve=Episodes(arrays["curve_count"], arrays["curve_return_sum"]),
        window=Episodes(arrays["window_count"], arrays["window_return_sum"]),
        results=results,
        is_finite=arrays["is_finite"],
        start_seconds=float(arrays["start_seconds"]),
        train_seconds=float(arrays["train_seconds"]),
    )


def runs_folder(folder: pathlib.Path) -> pathlib.Path:
    """Of all contenders' runs."""
    return folder / "runs"


def _runs(folder: pathlib.Path, name: str) -> pathlib.Path:
    return runs_folder(folder) / f"{name}.npz"

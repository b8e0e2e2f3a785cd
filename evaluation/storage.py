"""Results on disk. Files are replaced only once the new ones are complete.

runs/<contender>.npz     the episodes of its runs, written when all of them are finished
runs/<contender>.json    who it is, and how long it took
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
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "runs" / f"{name}.json", json.dumps(description, indent=2))
    write_atomically(_runs(folder, name), buffer.getvalue())


def load(folder: pathlib.Path, name: str) -> History | None:
    """A contender's runs, if they are finished. A damaged file is set aside with a warning."""
    path = _runs(folder, name)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        aside = path.with_name(f"{path.name}.damaged")
        logging.warning("%s is damaged (%s): kept as %s, and run again.", path, error, aside)
        os.replace(path, aside)
        return None
    return History(
        updates=arrays["updates"],
        curve=Episodes(arrays["curve_count"], arrays["curve_return_sum"]),
        window=Episodes(arrays["window_count"], arrays["window_return_sum"]),
        is_finite=arrays["is_finite"],
        start_seconds=float(arrays["start_seconds"]),
        train_seconds=float(arrays["train_seconds"]),
    )


def _runs(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / "runs" / f"{name}.npz"

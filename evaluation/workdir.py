"""Where an evaluation keeps its results, so that no finished run is repeated.

    evaluation.json          what is evaluated
    runs/<contender>.npz     its runs' episodes, written when all of them are finished
    runs/<contender>.json    who it is, and how long it took

Files are replaced only once the new ones are complete.
"""

import io
import json
import os
import pathlib
import tempfile
import zipfile
from typing import Any

import numpy as np
from absl import logging

from evaluation.training import Episodes, History

_IDENTITY = "evaluation.json"
_ARRAYS = ("updates", "curve_count", "curve_return_sum", "window_count", "window_return_sum",
           "is_finite", "start_seconds", "train_seconds")  # fmt: skip


class WorkdirError(ValueError):
    """A workdir cannot be used; the message says which, why, and what was expected."""


class Workdir:
    """An evaluation's folder."""

    def __init__(self, path: str | os.PathLike, identity: dict[str, Any]):
        """Opens a folder, made if it does not exist.

        Args:
          path: of the folder.
          identity: all that the numbers depend on, as JSON values.

        Raises:
          WorkdirError: if the folder cannot be written, or holds another evaluation.
        """
        self.path = pathlib.Path(path)
        self._runs = self.path / "runs"
        identity = json.loads(json.dumps(identity))
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            found = self._identity()
            if found is None:
                self.write(_IDENTITY, json.dumps(identity, indent=2))
            else:
                # Says now whether the folder can be written, rather than when all is computed.
                with tempfile.TemporaryFile(dir=self._runs):
                    pass
        except OSError as error:
            raise WorkdirError(
                f"--workdir {str(path)!r} cannot be written ({error.strerror or error}); expected"
                " a folder of yours, or a path where one can be made."
            ) from error
        differing = _differences(found, identity) if found is not None else []
        if differing:
            raise WorkdirError(
                f"--workdir {str(path)!r} holds another evaluation, which differs in"
                f" {'; '.join(differing)}. Use another workdir, or the same settings."
            )

    def _identity(self) -> dict[str, Any] | None:
        path = self.path / _IDENTITY
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise WorkdirError(
                f"{path} is not the JSON that an evaluation writes ({error}); use another workdir."
            ) from error

    def write(self, name: str, content: str | bytes) -> pathlib.Path:
        """Writes a file of the folder, whole or not at all."""
        path = self.path / name
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            pathlib.Path(temporary).unlink(missing_ok=True)
            raise
        return path

    def save(self, name: str, history: History, description: dict[str, Any]) -> None:
        """Keeps a contender's finished runs."""
        values = (
            history.updates,
            *history.curve,
            *history.window,
            history.is_finite,
            history.start_seconds,
            history.train_seconds,
        )
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, **{key: np.asarray(x) for key, x in zip(_ARRAYS, values, strict=True)}
        )
        self.write(f"runs/{name}.json", json.dumps(description, indent=2))
        self.write(f"runs/{name}.npz", buffer.getvalue())

    def load(self, name: str) -> History | None:
        """A contender's runs, if they are finished. A damaged file is set aside with a warning."""
        path = self._runs / f"{name}.npz"
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in _ARRAYS}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            aside = path.with_suffix(".npz.damaged")
            logging.warning("%s is damaged (%s); kept as %s, run again.", path, error, aside)
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


def _differences(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Sentences on the leaves in which two JSON values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return [
            sentence
            for key in sorted({*found, *wanted})
            for sentence in _differences(
                found.get(key), wanted.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if found == wanted else [f"{path} ({found} there, {wanted} now)"]

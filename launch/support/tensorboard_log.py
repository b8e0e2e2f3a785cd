"""Event files for TensorBoard, written without its writer's thread."""

import contextlib
import os
import pathlib
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.record_writer import RecordWriter

_VERSION = "brain.Event:2"  # Of the format: TensorBoard drops the steps after a restart.


class TensorBoardLog:
    """A folder's event file: a tracker (`launch.support.tracking`).

    Events are written synchronously: `SummaryWriter`s queue them for a thread, which dies when the
    disk is full.
    """

    def __init__(self, folder: pathlib.Path, metrics: Sequence[str] = ()):
        """Store the folder, which is made with the first file.

        Args:
          folder: of the event files. Its name is that of the run.
          metrics: tags of the numbers that TensorBoard shows beside hyper-parameters.
        """
        self._folder = folder
        self._metrics = metrics
        self._writer: RecordWriter | None = None

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Begin a new file.

        Args:
          step: the last one that is kept; TensorBoard drops those after it of earlier files.
          settings: shown as hyper-parameters; nested ones by dotted names.

        Raises:
          OSError: if the file cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        self._writer = RecordWriter((self._folder / name).open("wb"))
        self._add(Event(file_version=_VERSION))
        if step:
            self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        values = flattened(settings)
        if values:
            self._add(Event(summary=self._experiment(values)))
            name = self._folder.resolve().parent.name
            self._add(Event(summary=hparams.hparams_pb(values, trial_id=name)))
        self._writer.flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by tag; raises as `start`."""
        assert self._writer is not None, "start comes first"
        for tag, value in values.items():
            number = Summary.Value(tag=tag, simple_value=value)
            self._add(Event(step=step, summary=Summary(value=[number])))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # `log` has raised it already.
                self._writer.close()

    def _add(self, event: Event) -> None:
        assert self._writer is not None
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())

    def _experiment(self, values: Mapping[str, Any]) -> Summary:
        return hparams.hparams_config_pb(
            hparams=[hparams.HParam(name) for name in values],
            metrics=[hparams.Metric(tag) for tag in self._metrics],
        )


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings by dotted names; what is neither a number nor text, as text."""
    found: dict[str, bool | float | str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        else:
            is_plain = isinstance(value, bool | int | float | str)
            found[prefix + name] = value if is_plain else str(value)
    return found

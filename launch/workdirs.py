"""Folders of runs: their settings, and their metrics on disk."""

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.summary import scalar

from disco.atomic import write_atomically
from disco.json_lines import JsonLines
from launch import processes
from launch.provenance import code_version


def open_workdir(
    workdir: str | os.PathLike, settings: Any, changeable: Sequence[str] = ()
) -> pathlib.Path:
    """Creates a run's folder, or opens it again, and keeps its settings in `config.json`.

    Of several processes, the first one writes. A run that was started before some field was
    invented has that field's default. `version.txt` has the version of the code; when another one
    goes on, a warning says so.

    Args:
      workdir: the folder.
      settings: a dataclass of JSON values and further dataclasses.
      changeable: fields, with dots, that may differ from those the run was started with.

    Raises:
      ValueError: if the folder belongs to a run of other settings, or cannot be written.
    """
    folder = pathlib.Path(workdir)
    wanted = json.loads(json.dumps(dataclasses.asdict(settings)))
    file = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(file.read_text()) if file.exists() else None
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"Workdir {str(folder)!r} cannot be used: {error}.") from error
    if found is not None:
        differences = [
            f"{name} is {theirs!r} there and {ours!r} here"
            for name, theirs, ours in _differences(_completed(found, settings), wanted)
            if name not in changeable
        ]
        if differences:
            raise ValueError(
                f"Workdir {str(folder)!r} is of a run with another config: "
                + "; ".join(differences)
                + ". Choose another workdir, or those values."
            )
    if not processes.is_first():
        return folder
    version, ours = folder / "version.txt", code_version()
    try:
        theirs = version.read_text().strip() if version.exists() else ours
        if theirs != ours:
            logging.warning(
                "%s was made by version %s of the code so far, and goes on by %s.",
                folder,
                theirs,
                ours,
            )
        write_atomically(file, json.dumps(wanted, indent=2) + "\n")
        write_atomically(version, f"{ours}\n")
    except OSError as error:
        raise ValueError(f"Workdir {str(folder)!r} cannot be written: {error}.") from error
    return folder


class MetricsLog:
    """A run's metrics: a JSON object per line in `metrics.jsonl`, and TensorBoard events.

    Both are written at once: tensorboardX's own `SummaryWriter` has a thread write, upon whose
    death by a full disk everybody waits for ever.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens the log in a run's folder."""
        self._folder = folder
        self._lines = JsonLines(folder / "metrics.jsonl")
        self._events: EventsWriter | None = None

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception) -> None:
        if self._events is not None:
            with contextlib.suppress(OSError):  # What could not be written was reported then.
                self._events.close()

    def continue_from(self, step: int) -> None:
        """Forgets what was logged after a step: it is about to be computed again.

        Raises:
          OSError: naming the folder, if it cannot be written.
        """
        with self._explained():
            self._lines.keep("meta_step", step)
            events = self._folder / "tensorboard"
            events.mkdir(exist_ok=True)
            self._events = EventsWriter(str(events / "events"))
            if step:  # From here on, TensorBoard is to forget what it read in other files.
                start = SessionLog(status=SessionLog.START)
                self._add(Event(step=step + 1, session_log=start))
            self._events.flush()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Logs the metrics of a step; numbers go to TensorBoard too.

        Raises:
          OSError: naming the folder, if they cannot be written.
        """
        assert self._events is not None, "continue_from comes first"
        with self._explained():
            self._lines.append([metrics])
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    self._add(Event(step=step, summary=scalar(name, value)))
            self._events.flush()

    def _add(self, event: Event) -> None:
        assert self._events is not None
        event.wall_time = time.time()
        self._events.write_event(event)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"Cannot write metrics in {self._folder}: {error}.") from error

    def read(self) -> list[dict[str, Any]]:
        """All that was logged, a step each."""
        return self._lines.read()


def _completed(found: Any, settings: Any) -> Any:
    """Settings on disk, with the defaults of fields that they do not have."""
    if not isinstance(found, dict) or not dataclasses.is_dataclass(settings):
        return found
    completed = dict(found)
    for field in dataclasses.fields(settings):
        if field.name in found:
            ours = getattr(settings, field.name)
            completed[field.name] = _completed(found[field.name], ours)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is not dataclasses.MISSING:
            if dataclasses.is_dataclass(default):
                default = dataclasses.asdict(default)  # pyright: ignore
            completed[field.name] = json.loads(json.dumps(default))
    return completed


def _differences(found: Any, wanted: Any, prefix: str = ""):
    """(name, found, wanted) of the leaves in which two nested dictionaries differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(set(found) | set(wanted)):
            yield from _differences(
                found.get(name), wanted.get(name), f"{prefix}.{name}" if prefix else name
            )
    elif found != wanted:
        yield prefix, found, wanted

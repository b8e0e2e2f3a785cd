"""Folders of runs: their settings, and their metrics on disk."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX import SummaryWriter

from disco.atomic import write_atomically
from disco.json_lines import JsonLines
from launch import processes


def open_workdir(
    workdir: str | os.PathLike, settings: Any, changeable: Sequence[str] = ()
) -> pathlib.Path:
    """Creates a run's folder, or opens it again, and keeps its settings in `config.json`.

    Args:
      workdir: the folder.
      settings: a dataclass of JSON values and further dataclasses.
      changeable: top-level fields that may differ from those the run was started with.

    Of several processes, one writes.

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
            for name, theirs, ours in _differences(found, wanted)
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
    try:
        write_atomically(file, json.dumps(wanted, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"Workdir {str(folder)!r} cannot be written: {error}.") from error
    return folder


class MetricsLog:
    """A run's metrics: a JSON object per line in `metrics.jsonl`, and TensorBoard events."""

    def __init__(self, folder: pathlib.Path):
        """Opens the log in a run's folder."""
        self._lines = JsonLines(folder / "metrics.jsonl")
        self._events = folder / "tensorboard"
        self._writer: SummaryWriter | None = None

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception) -> None:
        if self._writer is not None:
            self._writer.close()

    def continue_from(self, step: int) -> None:
        """Forgets what was logged after a step: it is about to be computed again."""
        self._lines.keep("meta_step", step)
        self._writer = SummaryWriter(str(self._events), purge_step=step + 1 if step else None)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Logs the metrics of a step; numbers go to TensorBoard too.

        Raises:
          OSError: naming the folder, if they cannot be written.
        """
        assert self._writer is not None, "continue_from comes first"
        try:
            self._lines.append([metrics])
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()
        except OSError as error:
            raise OSError(f"Cannot write metrics in {self._lines.path.parent}: {error}.") from error

    def read(self) -> list[dict[str, Any]]:
        """All that was logged, a step each."""
        return self._lines.read()


def _differences(found: Any, wanted: Any, prefix: str = ""):
    """(name, found, wanted) of the leaves in which two nested dictionaries differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(set(found) | set(wanted)):
            yield from _differences(
                found.get(name), wanted.get(name), f"{prefix}.{name}" if prefix else name
            )
    elif found != wanted:
        yield prefix, found, wanted

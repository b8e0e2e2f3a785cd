"""The returns of an evaluation's runs, while they are made, for trackers (`support.tracking`).

A run's records grow in its folder (`training.records`), whoever makes it: this process, or a worker
of a Ray cluster that shares the file system. They are read from there, at most every ten seconds.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from disco_common import files, json_lines
from disco_common.files import write_atomically
from evaluation import storage
from evaluation.contenders import Contender
from evaluation.evaluate import Execution
from evaluation.executors import Numbers, Progress
from evaluation.report.manifest import read_manifest
from launch.support.tracking import Tracker, Tracking
from training.records import METRICS, STEPS

_SECONDS_BETWEEN_READS = 10.0
_LOGGED = "logged.json"  # In a tracker's folder: the last step of each task that was logged.
_GROUP, _RETURN = "return", "episode_return"


class ReturnCurves:
    """The mean returns of an evaluation's runs by environment steps.

    Each contender and seed is a run of the trackers, with a curve `return/<task>` for each task.
    """

    def __init__(self, workdir: pathlib.Path, tracking: Tracking):
        """Open the first run's trackers, so that what does not work is said at once.

        Args:
          workdir: of the evaluation, whose manifest is written.
          tracking: which trackers there are.

        Raises:
          OSError, ValueError: if the manifest cannot be read, or a tracker does not start.
        """
        self._workdir = workdir
        self._tracking = tracking
        self._evaluation = read_manifest(workdir)
        self._runs: dict[tuple[str, int], list[_Logged]] = {}
        self._offsets: dict[pathlib.Path, int] = {}
        self._last_read = 0.0
        self._opened(self._evaluation.contenders[0], 0)

    def read_if_due(self) -> None:
        """Do as `read`, unless that was done in the last ten seconds."""
        if time.monotonic() - self._last_read >= _SECONDS_BETWEEN_READS:
            self.read()

    def read(self) -> None:
        """Log what is new in the runs' records.

        Raises:
          OSError: if a file cannot be read or written.
        """
        for contender in self._evaluation.contenders:
            for seed in range(self._evaluation.config.seeds):
                for task in self._evaluation.tasks:
                    self._read(contender, task, seed)
                for one in self._runs.get((contender.name, seed), ()):
                    one.keep()
        self._last_read = time.monotonic()

    def close(self) -> None:
        """Close all trackers."""
        for trackers in self._runs.values():
            for one in trackers:
                one.tracker.close()

    def _read(self, contender: Contender, task: str, seed: int) -> None:
        path = storage.run_path(self._workdir, contender.name, task, seed) / METRICS
        lines, self._offsets[path] = _new_lines(path, self._offsets.get(path, 0))
        points = [(line[STEPS], line[_RETURN]) for line in lines if _is_point(line)]
        if points:
            for one in self._opened(contender, seed):
                one.log(task, points)

    def _opened(self, contender: Contender, seed: int) -> "list[_Logged]":
        """Return the trackers of a contender's seed, started."""
        key = contender.name, seed
        if key not in self._runs:
            part = f"{storage.contender_folder(contender.name)}/seed_{seed}"
            found = self._tracking.trackers(
                self._workdir,
                f"{contender.name}, seed {seed}",
                part,
                metrics=[f"{_GROUP}/{task}" for task in self._evaluation.tasks],
                step_name=STEPS,
            )
            settings = {
                "contender": contender.name,
                **{name: x for name, x in contender.described().items() if name != "name"},
                "seed": self._evaluation.config.all_seeds[seed],
                "budget": self._evaluation.config.budget,
            }
            self._runs[key] = [_Logged(folder, one) for folder, one in found.items()]
            for one in self._runs[key]:
                one.tracker.start(0, settings)
        return self._runs[key]


class _Logged:
    """A tracker, and what it was given: a continued evaluation logs nothing twice."""

    def __init__(self, folder: pathlib.Path, tracker: Tracker):
        self.tracker = tracker
        self._file = folder / _LOGGED
        self._steps: dict[str, int] = {}
        self._is_changed = False
        # A damaged file has curves logged from the start.
        with contextlib.suppress(OSError, OverflowError, TypeError, ValueError):
            self._steps = {x: int(y) for x, y in json_lines.read_object(self._file).items()}

    def log(self, task: str, points: list[tuple[int, float]]) -> None:
        last = self._steps.get(task, 0)
        for step, value in points:
            if step > last:
                self.tracker.log(step, {f"{_GROUP}/{task}": value})
                self._steps[task] = last = step
                self._is_changed = True

    def keep(self) -> None:
        if self._is_changed:
            write_atomically(self._file, json.dumps(self._steps) + "\n")
            self._is_changed = False


@dataclasses.dataclass(frozen=True)
class _Display:
    """A display of progress that has the curves read."""

    shown: Progress | None
    curves: ReturnCurves

    def start(self, completed: int) -> None:
        if self.shown is not None:
            self.shown.start(completed)
        self.curves.read_if_due()

    def update(self, completed: int, numbers: Numbers, doing: str = "") -> None:
        if self.shown is not None:
            self.shown.update(completed, numbers, doing)
        self.curves.read_if_due()


def tracked(how: Execution, workdir: str | pathlib.Path, tracking: Tracking) -> Execution:
    """Return an execution whose runs are also tracked.

    Args:
      how: the runs are made.
      workdir: of the evaluation.
      tracking: which trackers there are; none changes nothing.
    """
    if not (tracking.tensorboard or tracking.wandb_project):
        return how

    @contextlib.contextmanager
    def open_progress(title: str, total: int) -> Iterator[Progress]:
        curves = ReturnCurves(pathlib.Path(workdir), tracking)
        with contextlib.closing(curves), how.open_progress(title, total) as shown:
            yield _Display(shown, curves)
            curves.read()

    return how._replace(open_progress=open_progress)


def _new_lines(path: pathlib.Path, offset: int) -> tuple[list[Any], int]:
    """Return the complete lines after an offset, as JSON values, and the offset after them.

    A file that is shorter now was cut to the records of a checkpoint: it is read from the start.
    """
    try:
        size = path.stat().st_size
        if size == offset:
            return [], offset
        with files.opened(path, files.MOST_ARRAYS) as file:
            file.seek(offset if size > offset else 0)
            data = file.read()
            end = file.tell()
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    rest = len(data) - data.rfind(b"\n") - 1
    lines = data[: len(data) - rest].splitlines()
    return [json_lines.parse_line(line) for line in lines], end - rest


def _is_point(line: Any) -> bool:
    """Return whether a record has a step and a return."""
    if not isinstance(line, dict):
        return False
    return isinstance(line.get(STEPS), int) and isinstance(line.get(_RETURN), int | float)

"""The metrics of a discovery on disk, and for its trackers."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from disco_common.json_lines import JsonLines
from launch.support import metric_tags
from launch.support.tracking import Tracking

# Tags of the numbers that tell one discovery from another, beside their settings.
_RESULTS = (metric_tags.PROBE, "score/validation_reward", "meta/loss")


class MetricsLog:
    """A run's metrics: a JSON object per line in `metrics.jsonl`, and what trackers show.

    The file is written synchronously.
    """

    def __init__(self, folder: pathlib.Path, tracking: Tracking = Tracking(), settings: Any = None):
        """Open the log in a run's folder.

        Args:
          folder: of the run.
          tracking: which trackers it has.
          settings: of the run for the trackers, a dictionary of JSON values; None for none.
        """
        self._folder = folder
        self._settings = settings or {}
        self._lines = JsonLines(folder / "metrics.jsonl")
        name = folder.resolve().name
        self._trackers = tuple(tracking.trackers(folder, name, metrics=_RESULTS).values())

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception) -> None:
        for tracker in self._trackers:
            tracker.close()

    def continue_from(self, step: int) -> None:
        """Delete what was logged after a step, as it will be computed again.

        Raises:
          OSError: naming the folder, if it cannot be written.
          ValueError: if a tracker's service does not accept the run.
        """
        with self._explained():
            self._lines.keep("meta_step", step)
            for tracker in self._trackers:
                tracker.start(step, self._settings)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step; numbers also for the trackers.

        Raises:
          OSError: naming the folder, if they cannot be written.
        """
        with self._explained():
            self._lines.append([metrics])
        self.show(step, metrics)

    def show(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log numbers of a step for the trackers only; raises as `write`."""
        values = metric_tags.by_tag(metrics)
        with self._explained():
            for tracker in self._trackers:
                tracker.log(step, values)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"Cannot write metrics in {self._folder}: {error}.") from error

    def read(self) -> list[dict[str, Any]]:
        """Return the logged metrics of each step."""
        return self._lines.read()

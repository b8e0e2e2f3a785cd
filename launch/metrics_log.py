"""The metrics of a discovery on disk, and for TensorBoard."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.summary import scalar

from disco_common.json_lines import JsonLines


class MetricsLog:
    """A run's metrics: a JSON object per line in `metrics.jsonl`, and TensorBoard events.

    Both are written synchronously. The thread of tensorboardX's `SummaryWriter` dies when the disk
    is full, and its callers then wait forever.
    """

    def __init__(self, folder: pathlib.Path):
        """Open the log in a run's folder."""
        self._folder = folder
        self._lines = JsonLines(folder / "metrics.jsonl")
        self._events: EventsWriter | None = None

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception) -> None:
        if self._events is not None:
            with contextlib.suppress(OSError):  # `write` has raised it already.
                self._events.close()

    def continue_from(self, step: int) -> None:
        """Delete what was logged after a step, as it will be computed again.

        Raises:
          OSError: naming the folder, if it cannot be written.
        """
        with self._explained():
            self._lines.keep("meta_step", step)
            events = self._folder / "tensorboard"
            events.mkdir(exist_ok=True)
            self._events = EventsWriter(str(events / "events"))
            if step:  # Tells TensorBoard to drop later steps of its other files.
                start = SessionLog(status=SessionLog.START)
                self._add(Event(step=step + 1, session_log=start))
            self._events.flush()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step; numbers also for TensorBoard.

        Raises:
          OSError: naming the folder, if they cannot be written.
        """
        with self._explained():
            self._lines.append([metrics])
        self.show(step, metrics)

    def show(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log numbers of a step for TensorBoard only; raises as `write`."""
        assert self._events is not None, "continue_from comes first"
        with self._explained():
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
        """Return the logged metrics of each step."""
        return self._lines.read()

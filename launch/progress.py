"""Progress of a long command: a live bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Shows how far a command is, with the numbers that matter."""

    def __init__(self, name: str, total: int):
        """Shows progress of `name` towards `total` units."""
        self._name = name
        self._total = total
        self._console = Console()
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=total, numbers="compiling")
        self._first = (0, time.monotonic())
        self._last_line = 0.0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def start(self, completed: int) -> None:
        """Begins, or continues, at a number of units done."""
        self._first = (completed, time.monotonic())
        self._bar.update(self._task, completed=completed)
        if not self._console.is_terminal:
            print(f"{self._name}: {completed}/{self._total}, compiling", flush=True)

    def update(self, completed: int, numbers: Mapping[str, float | None]) -> None:
        """Shows the units done, and numbers beside them."""
        text = ", ".join(
            f"{name} {'-' if value is None else format(value, '.4g')}"
            for name, value in numbers.items()
        )
        self._bar.update(self._task, completed=completed, numbers=text)
        now = time.monotonic()
        is_due = now - self._last_line >= _SECONDS_BETWEEN_LINES or completed == self._total
        if not self._console.is_terminal and is_due:
            self._last_line = now
            first, started = self._first
            rate = (completed - first) / max(now - started, 1e-9)
            left = f"{(self._total - completed) / rate:.0f} s left" if rate > 0 else ""
            parts = filter(None, (f"{self._name}: {completed}/{self._total}", text, left))
            print(", ".join(parts), flush=True)

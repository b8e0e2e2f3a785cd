"""Progress of a long command: a bar on a terminal, and regular lines elsewhere."""

import time
from collections.abc import Mapping

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from disco_common.terminal import console, printable

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A display of the progress of a command, with some numbers (`evaluation.executors`)."""

    def __init__(self, name: str, total: int):
        """Prepare the display of the work `name`, of `total` units."""
        self._name = printable(name)
        self._total = total
        self._console = console()
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(self._name, total=total, numbers="compiling")
        self._last_line = 0.0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def start(self, completed: int) -> None:
        """Show the progress from a number of completed units on."""
        self._bar.update(self._task, completed=completed)
        if not self._console.is_terminal:
            print(f"{self._name}: {completed}/{self._total}, compiling", flush=True)

    def update(self, completed: int, numbers: Mapping[str, float | None], doing: str = "") -> None:
        """Show the number of completed units, and numbers with it.

        Args:
          completed: number of units.
          numbers: by name; None if unknown, which are not shown.
          doing: description of the current work.
        """
        shown = ", ".join(
            f"{name} {value:.4g}" for name, value in numbers.items() if value is not None
        )
        text = printable(": ".join(filter(None, (doing, shown))))
        now = time.monotonic()
        self._bar.update(self._task, completed=completed, numbers=text)
        is_due = now - self._last_line >= _SECONDS_BETWEEN_LINES or completed == self._total
        if not self._console.is_terminal and is_due:
            self._last_line = now
            print(
                ", ".join(filter(None, (f"{self._name}: {completed}/{self._total}", text))),
                flush=True,
            )

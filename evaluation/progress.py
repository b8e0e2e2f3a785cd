"""Telling how training goes: a bar on a terminal, else a plain line now and then."""

import math
import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

_SECONDS_BETWEEN_LINES = 10.0


class ProgressReport:
    """The progress of one contender's runs. A context manager; call it with each advance."""

    def __init__(self, title: str, num_updates: int, steps_per_update: int):
        """Prepares.

        Args:
          title: the contender, and its place among all.
          num_updates: of each run.
          steps_per_update: environment steps that one update of all runs takes.
        """
        self._title = title
        self._num_updates = num_updates
        self._steps_per_update = steps_per_update
        self._bar = None
        self._started: float | None = None
        self._first_done = 0
        self._last_line = time.monotonic()
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("updates, {task.fields[rate]} steps/s, left"),
                TimeRemainingColumn(),
                TextColumn("return {task.fields[mean_return]}"),
                console=Console(),
            )
            self._task = self._bar.add_task(title, total=num_updates, rate="-", mean_return="-")

    def __enter__(self) -> "ProgressReport":
        if self._bar is not None:
            self._bar.start()
        else:
            print(f"{self._title}: compiling", flush=True)
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self) -> None:
        """Training starts now: what came before was compiling."""
        self._started = time.monotonic()

    def __call__(self, updates: int, mean_return: float) -> None:
        """So many updates are made, with this mean return lately (NaN if no episode ended)."""
        now = time.monotonic()
        elapsed = now - (self._started or now)
        rate = updates * self._steps_per_update / elapsed if elapsed else 0.0
        latest = "-" if math.isnan(mean_return) else f"{mean_return:.3f}"
        if self._bar is not None:
            self._bar.update(
                self._task, completed=updates, rate=f"{rate:,.0f}", mean_return=latest
            )
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES or updates == self._num_updates:
            self._last_line = now
            left = elapsed / updates * (self._num_updates - updates)
            print(
                f"{self._title}: {updates}/{self._num_updates} updates, {rate:,.0f} steps/s,"
                f" {left:.0f} s left, mean return {latest}",
                flush=True,
            )

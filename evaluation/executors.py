"""Executors of independent jobs: this process, one job after the other, or another executor.

`evaluation.ray_executor` runs them on a Ray cluster.

A job that fails by chance (`Attempts`) is retried, up to `ATTEMPTS` attempts in all. A job that
fails each time is reported, and the others continue. A job must therefore be restartable: it skips
or continues what an earlier attempt did.

This module does not import JAX: a Ray worker sets environment variables before JAX reads them.
"""

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from disco_common import stopping
from evaluation.pace import Pace

ATTEMPTS = 3

Numbers = Mapping[str, float | None]
Report = Callable[[int, Numbers], None]
"""Called regularly with the number of completed units of work, and numbers to show with it."""

_log = logging.getLogger(__name__)


@runtime_checkable
class Progress(Protocol):
    """A display of progress."""

    def start(self, completed: int) -> None:
        """Show the progress from a number of completed units on."""
        ...

    def update(
        self, completed: int, numbers: Numbers, doing: str = "", left: str | None = None
    ) -> None:
        """Show the number of completed units, and numbers with it.

        Args:
          completed: number of units.
          numbers: by name.
          doing: description of the current work, or the name of the job that the numbers are of.
          left: the remaining time in words; by default estimated from the rate so far.
        """
        ...


OpenProgress = Callable[[str, int], contextlib.AbstractContextManager[Progress | None]]
"""Maps a title and a total number of units to a `Progress`, or to None for no display."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Work that one process does in one call.

    Attributes:
      name: for messages.
      work: does the work; must be picklable for Ray.
      units: number of units of work, for the progress.
      kind: jobs of one kind take about as long per unit; for the estimate of the remaining time.
      seconds_to_stop: for the job to end gracefully when it is interrupted.
    """

    name: str
    work: Callable[[Report], None]
    units: int
    kind: str = ""
    seconds_to_stop: float = 0.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that failed at each of some attempts, with its last error."""

    job: Job
    error: str
    attempts: int = ATTEMPTS

    def __str__(self) -> str:
        number = f"{self.attempts} attempt{'s' * (self.attempts > 1)}"
        return f"{self.job.name}: {self.error} ({number})"


class Attempts:
    """The failed attempts of a job.

    Another one is made after an error of the system, of memory, of a device or of a simulator,
    which may pass, unless the job has failed in the same way before. Other errors are of the code
    that runs, and would be repeated.
    """

    def __init__(self, job: Job):
        self._job, self._errors = job, list[str]()

    def failed(self, error: BaseException, trace: str) -> Failure | None:
        """Note a failure, and log its traceback if it is a new one.

        Returns:
          The failure of the job; None if there is to be another attempt.
        """
        found = sentence(error)
        is_new = found not in self._errors
        self._errors.append(found)
        number = len(self._errors)
        if is_new:
            _log.warning("%s failed (attempt %d):\n%s", self._job.name, number, trace.rstrip())
        if is_new and number < ATTEMPTS and _may_pass(error):
            return None
        return Failure(self._job, found, number)


def _may_pass(error: BaseException) -> bool:
    from jax.errors import JaxRuntimeError  # Jobs have imported both.

    from environments.errors import SimulatorError

    return isinstance(error, OSError | EOFError | MemoryError | JaxRuntimeError | SimulatorError)


class JobsFailedError(Exception):
    """Some jobs failed at each attempt; all others are done."""

    def __init__(self, failures: Sequence[Failure | str], total: int, advice: str):
        """Compose the message.

        Args:
          failures: a line of the message each.
          total: number of jobs.
          advice: a sentence on what is kept and what the user can do.
        """
        lines = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(f"{len(failures)} of {total} jobs failed:\n{lines}\n{advice}")


@runtime_checkable
class Executor(Protocol):
    """An executor of jobs; a context manager."""

    def __enter__(self) -> "Executor": ...

    def __exit__(self, *exception: Any) -> None: ...

    def run(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[Failure]:
        """Run all jobs; return those that failed. An interrupt of this process ends all jobs."""
        ...


class LocalExecutor:
    """An executor that runs jobs in this process, one after the other."""

    def __enter__(self) -> "LocalExecutor":
        stopping.set_unsaved(False)  # Until a job has learned something.
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def run(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[Failure]:
        """See `Executor`."""
        failures = []
        done = 0
        pace = Pace([(job.kind, job.units) for job in jobs])
        with open_progress(title, sum(job.units for job in jobs)) as progress:
            if progress is not None:
                progress.start(0)
            for job in jobs:
                stopping.raise_if_requested()
                pace.begin()
                if progress is not None:
                    progress.update(done, {}, f"{job.name}: starting, compiling", pace.left())

                def report(
                    units: int, numbers: Numbers, done: int = done, name: str = job.name
                ) -> None:
                    pace.at(units)
                    if progress is not None:
                        progress.update(done + units, numbers, name, pace.left())

                if failure := _try(job, report):
                    failures.append(failure)
                done += job.units
        return failures


def _try(job: Job, report: Report) -> Failure | None:
    attempts = Attempts(job)
    while True:
        try:
            job.work(report)
        except Exception as error:
            if stopping.is_requested():
                raise
            if failure := attempts.failed(error, traceback.format_exc()):
                return failure
        else:
            return None


def sentence(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0]}" if message else type(error).__name__

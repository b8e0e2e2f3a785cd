"""Who does jobs that are independent of one another: this process in turn, or a Ray cluster.

A job that fails is tried again, `ATTEMPTS` times in all; one that fails each time is reported, and
the others go on. A job must therefore be one that can be started again: it skips, or continues,
what an earlier attempt did.

This module imports neither JAX nor Ray when it is imported: a worker of Ray sets up its
environment variables before JAX reads them, and Ray is an optional package.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from disco_common import stopping
from evaluation.pace import Pace

ATTEMPTS = 3

Numbers = Mapping[str, float | None]
Report = Callable[[int, Numbers], None]
"""Called now and then with the units of work done, and numbers to show beside them."""

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_CONNECT = 5.0
_SETTINGS = 4  # HTTP/2's type of a frame.


@runtime_checkable
class Progress(Protocol):
    """Shows how far something is."""

    def start(self, completed: int) -> None:
        """Begins at so many units done."""
        ...

    def update(
        self, completed: int, numbers: Numbers, doing: str = "", left: str | None = None
    ) -> None:
        """Shows the units done, and numbers beside them.

        Args:
          completed: units.
          numbers: by name.
          doing: whose they are, or what is being done.
          left: the time left, in words; by default as it follows from the units so far.
        """
        ...


OpenProgress = Callable[[str, int], contextlib.AbstractContextManager[Progress | None]]
"""From a title and a number of units to a `Progress`, or to None for silence."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Some work that one process does in one go.

    Attributes:
      name: to report it by.
      work: does it; must be picklable for Ray.
      units: of work, for the progress.
      kind: of jobs that take about as long per unit, for the time left.
      seconds_to_stop: that it may take to end in order, when all is stopped.
    """

    name: str
    work: Callable[[Report], None]
    units: int
    kind: str = ""
    seconds_to_stop: float = 0.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that failed at each attempt, and its last error."""

    job: Job
    error: str

    def __str__(self) -> str:
        return f"{self.job.name}: {self.error} ({ATTEMPTS} attempts)"


class JobsFailedError(Exception):
    """Some jobs failed at each attempt; those that did not are done."""

    def __init__(self, failures: Sequence[Any], total: int, advice: str):
        """Makes the message.

        Args:
          failures: one line each.
          total: number of jobs, for comparison.
          advice: what is kept, and what to do.
        """
        lines = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(f"{len(failures)} of {total} jobs failed:\n{lines}\n{advice}")


@runtime_checkable
class Executor(Protocol):
    """Does jobs. Opened and closed by `with`."""

    def __enter__(self) -> "Executor": ...

    def __exit__(self, *exception: Any) -> None: ...

    def run(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[Failure]:
        """Does all jobs; tells which failed. What stops the process ends them all."""
        ...


class LocalExecutor:
    """Does jobs in this process, one after the other."""

    def __enter__(self) -> "LocalExecutor":
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
    error = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            job.work(report)
        except Exception as caught:
            error = caught
            if stopping.is_requested():
                raise
            _log.warning("%s failed (attempt %d): %s", job.name, attempt, _sentence(caught))
            _log.info("%s", traceback.format_exc())
        else:
            return None
    assert error is not None
    return Failure(job, _sentence(error))


class RayExecutor:
    """Does jobs as tasks of a Ray cluster, which decides where and when.

    Each worker is a process with as many single-threaded XLA devices as it has processors, or with
    the accelerators that Ray gives it. Folders that jobs write to must be on a file system that
    all machines share, and this package must be installed on each.
    """

    def __init__(
        self,
        address: str = "",
        *,
        num_cpus: int,
        cpus_per_job: int = 1,
        gpus_per_job: float | None = None,
    ):
        """Connects to nothing yet.

        Args:
          address: of a cluster: `"host:port"`, `"auto"` for the one that runs on this machine or
            that the environment variable RAY_ADDRESS names, or empty to start one here.
          num_cpus: processors of a cluster that is started here.
          cpus_per_job: processors of each job.
          gpus_per_job: accelerators of each job; a fraction if several are to share one. By
            default 1 where the cluster has any.
        """
        self._address = address
        self._num_cpus = num_cpus
        self._cpus_per_job = cpus_per_job
        self._gpus_per_job = gpus_per_job
        self._ray: Any = None

    def __enter__(self) -> "RayExecutor":
        """Connects.

        Raises:
          ImportError: if Ray is not installed.
          ConnectionError: if there is no cluster at the address.
          ValueError: if no machine of the cluster could do a job.
        """
        # Read when Ray is imported: report nothing to its makers; ask a cluster that does not
        # answer so many times, a second apart; give up on jobs that do not fit in memory.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
        os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))
        try:
            import ray
        except ImportError as error:
            from environments.errors import how_to_install

            raise ImportError(
                f"The executor 'ray' needs Ray, which cannot be imported ({error})."
                f" {how_to_install('ray')}"
            ) from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address:
            self._connect(ray, options)
        else:
            ray.init("local", num_cpus=self._num_cpus, include_dashboard=False, **options)
        self._ray = ray
        try:
            self._check_resources()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._ray.shutdown()

    def run(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[Failure]:
        """See `Executor`."""
        ray = self._ray
        with open_progress(title, sum(job.units for job in jobs)) as progress:
            if progress is not None:
                progress.start(0)
            board = ray.remote(num_cpus=0)(_Board).remote()
            submit = ray.remote(
                num_cpus=self._cpus_per_job,
                num_gpus=self._gpus_per_job,
                max_retries=ATTEMPTS - 1,
                retry_exceptions=True,
            )(_work)
            environment = self._environment()
            pending = {
                submit.options(name=job.name).remote(
                    _pickled(job.work), environment, board, number
                ): number
                for number, job in enumerate(jobs)
            }
            try:
                return self._wait(jobs, pending, board, progress)
            except BaseException:
                self._stop(jobs, pending)
                raise

    def _wait(
        self,
        jobs: Sequence[Job],
        pending: dict[Any, int],
        board: Any,
        progress: Progress | None,
    ) -> list[Failure]:
        """Takes jobs out of `pending` as they end, until there are none."""
        ray = self._ray
        failures, done = [], 0
        while pending:
            stopping.raise_if_requested()
            ready, _ = ray.wait(list(pending), timeout=_SECONDS_BETWEEN_LOOKS)
            for reference in ready:
                job = jobs[pending.pop(reference)]
                done += job.units
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    failures.append(Failure(job, _sentence(getattr(error, "cause", None) or error)))
                    _log.warning("%s failed: %s", job.name, failures[-1].error)
                    _log.info("%s", error)
            if progress is not None:
                under_way, numbers = 0, {}
                with contextlib.suppress(ray.exceptions.RayError):  # Its machine may have died.
                    under_way, numbers = ray.get(board.read.remote(list(pending.values())))
                progress.update(done + under_way, {"jobs left": len(pending), **numbers})
        return failures

    def _stop(self, jobs: Sequence[Job], pending: Mapping[Any, int]) -> None:
        """Interrupts the jobs, as Ctrl-C would, and gives them the time that they may need."""
        seconds = max((jobs[number].seconds_to_stop for number in pending.values()), default=0.0)
        if seconds:
            for reference in pending:
                self._ray.cancel(reference)
            self._ray.wait(list(pending), num_returns=len(pending), timeout=seconds)

    def _connect(self, ray: Any, options: dict[str, Any]) -> None:
        """Connects to the cluster at the address."""
        address = self._address
        if address == "auto":
            address = os.environ.get("RAY_ADDRESS", address)
        try:
            if address != "auto":
                _require_cluster(address)
            ray.init(address, **options)
        except (OSError, RuntimeError) as error:
            tried = (
                "the environment variable RAY_ADDRESS, which is not set, and the clusters that were"
                " started on this machine, of which none runs"
                if address == "auto"
                else f"a connection to {address} ({_sentence(error)})"
            )
            raise ConnectionError(
                f"There is no Ray cluster at --ray_address={self._address} that lets this process"
                f" in; tried {tried}. Expected the address of one, as `ray start --head` prints it,"
                " and RAY_AUTH_MODE=token if it asks for a token; or no address, to start one on"
                " this machine."
            ) from error

    def _check_resources(self) -> None:
        """Refuses jobs that would wait for ever; decides about accelerators."""
        ray = self._ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if self._gpus_per_job is None:
            self._gpus_per_job = 1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0
        if not any(
            node.get("CPU", 0) >= self._cpus_per_job and node.get("GPU", 0) >= self._gpus_per_job
            for node in nodes
        ):
            have = ", ".join(
                f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
            )
            raise ValueError(
                f"--ray_cpus_per_job={self._cpus_per_job} and --ray_gpus_per_job="
                f"{self._gpus_per_job:g}: no machine of the Ray cluster has so many; they have"
                f" {have}."
            )

    def _environment(self) -> dict[str, str]:
        """Variables of a worker, for JAX to read."""
        environment = {"DISCO_PROCESSORS": str(self._cpus_per_job)}
        found = os.environ.get("XLA_FLAGS", "")
        if "device_count" not in found:  # As `launch.commands.use_all_cores`.
            from agents import compilation

            environment["JAX_NUM_CPU_DEVICES"] = str(self._cpus_per_job)
            environment["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)
        if not self._gpus_per_job:
            environment["JAX_PLATFORMS"] = "cpu"
        elif self._gpus_per_job < 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * self._gpus_per_job:.3f}"
        return environment


class _Board:
    """An actor where workers write how far they are."""

    def __init__(self):
        self._units: dict[int, int] = {}
        self._numbers: Numbers = {}

    def write(self, job: int, units: int, numbers: Numbers) -> None:
        """A job's units done, and numbers beside them."""
        self._units[job], self._numbers = units, numbers

    def read(self, jobs: Sequence[int]) -> tuple[int, Numbers]:
        """Units done of some jobs together, and whichever numbers came last."""
        return sum(self._units.get(job, 0) for job in jobs), self._numbers


def _work(pickled: bytes, environment: Mapping[str, str], board: Any, number: int) -> None:
    """A task of Ray. What it is to do is unpickled, and JAX imported, in its environment."""
    os.environ.update(environment)
    from ray import cloudpickle

    from agents import compilation

    compilation.keep_programs()
    last = 0.0

    def report(units: int, numbers: Numbers) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LOOKS:
            last = time.monotonic()
            board.write.remote(number, units, dict(numbers))

    with stopping.noting(signal.SIGINT):  # What Ray sends to a task that is cancelled.
        cloudpickle.loads(pickled)(report)


def _pickled(work: Callable[[Report], None]) -> bytes:
    from ray import cloudpickle

    return cloudpickle.dumps(work)  # pyright: ignore[reportPrivateImportUsage]


def _require_cluster(address: str) -> None:
    """Fails quickly where nobody speaks as Ray does, which itself would try for minutes.

    Ray speaks gRPC, thus HTTP/2, whose server answers the client's greeting (RFC 9113, section
    3.4) with a frame of settings. Where Ray is told to use TLS, only the connection is tried.

    Raises:
      OSError: if so.
    """
    host, _, port = address.rpartition(":")
    if "/" in host or not (host and port.isdigit()):
        raise OSError("it is not of the form host:port")
    empty_settings = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
    with socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings)
        answer = connection.recv(len(empty_settings))
    if answer[3:4] != bytes([_SETTINGS]):
        raise ConnectionError("something else than Ray answers there")


def _sentence(error: BaseException) -> str:
    """An error's kind and the first line of its message."""
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0]}" if message else type(error).__name__

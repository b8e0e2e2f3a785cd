"""Executors of independent jobs: this process, one job after the other, or a Ray cluster.

An error of the system, of memory, of a device or of a simulator may pass: its job is tried again,
up to `ATTEMPTS` times in all, in this process until the same error returns. A job that fails is
reported, and the others continue. A job must therefore be restartable: it skips or continues what
an earlier attempt did.

This module imports neither JAX nor Ray when it is imported: a Ray worker sets environment variables
before JAX reads them, and Ray is an optional package.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco_common import plugins, stopping

ATTEMPTS = 3

Numbers = Mapping[str, float | None]
ReportProgress = Callable[[int, Numbers], None]
"""Called regularly with the number of completed units of work, and numbers to show with it."""

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_SECONDS_TO_CONNECT = 5.0


Show = Callable[[int, Numbers, str], None]
"""Shows the number of completed units, numbers by name, and the current work, if it has a name."""

OpenProgress = Callable[[str, int], contextlib.AbstractContextManager[Show]]
"""Opens the display of some work, given its title and its total number of units."""


def silent(title: str, total: int) -> contextlib.AbstractContextManager[Show]:
    """Open a display that shows nothing."""
    del title, total
    return contextlib.nullcontext(lambda *_: None)


@dataclasses.dataclass(frozen=True)
class Job:
    """Work that one process does in one call.

    Attributes:
      name: for messages.
      work: does the work; must be picklable for Ray.
      units: number of units of work, for the progress.
      seconds_to_stop: for the job to end gracefully when it is interrupted.
    """

    name: str
    work: Callable[[ReportProgress], None]
    units: int
    seconds_to_stop: float = 0.0


class JobsFailedError(Exception):
    """Some jobs failed at each attempt; all others are done."""

    def __init__(self, failures: Sequence[str], total: int, advice: str):
        """Compose the message: lines on failures of all jobs, and what the user can do."""
        lines = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(f"{len(failures)} of {total} jobs failed:\n{lines}\n{advice}")


class LocalExecutor:
    """A context manager that runs jobs in this process, one after the other."""

    def __enter__(self) -> "LocalExecutor":
        stopping.set_unsaved(False)  # Until a job has learned something.
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def run_jobs(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[str]:
        """Run all jobs; return each one's last error, empty if it is done.

        An interrupt of this process ends all jobs.
        """
        errors, done = [], 0
        with open_progress(title, sum(job.units for job in jobs)) as show:
            for job in jobs:
                stopping.raise_if_requested()
                show(done, {}, f"{job.name}: starting, compiling")

                def report(
                    units: int, numbers: Numbers, done: int = done, name: str = job.name
                ) -> None:
                    show(done + units, numbers, name)

                errors.append(_error_of(job, report))
                done += job.units
        return errors


def _error_of(job: Job, report: ReportProgress) -> str:
    """Do a job; return its last error, empty if an attempt succeeds."""
    error = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            job.work(report)
            return ""
        except Exception as raised:
            if stopping.is_requested():
                raise
            before, error = error, _sentence(raised)
            if error == before:  # It does not pass.
                break
            trace = traceback.format_exc().rstrip()
            _log.warning("%s failed (attempt %d):\n%s", job.name, attempt, trace)
            if not isinstance(raised, _errors_that_may_pass()):
                break
    return error


def _errors_that_may_pass() -> tuple[type[BaseException], ...]:
    from jax.errors import JaxRuntimeError

    from environments.errors import SimulatorError

    return OSError, EOFError, MemoryError, JaxRuntimeError, SimulatorError


def _sentence(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0]}" if message else type(error).__name__


@dataclasses.dataclass
class RayExecutor:
    """A context manager, connected to a Ray cluster, whose tasks are the jobs.

    Each worker is a process with one single-threaded XLA device per processor, or with the
    accelerators that Ray assigns to it. Folders that jobs write to must be on a file system that
    all machines share, and this package must be installed on each machine. The progress is that of
    completed jobs.

    Attributes:
      address: of a cluster: `"host:port"`, `"auto"` for the one that runs on this machine or that
        the environment variable RAY_ADDRESS names, or empty to start one here.
      num_cpus: processors of a cluster that is started here.
      cpus_per_job: processors of each job.
      gpus_per_job: accelerators of each job, or the fraction of one if several jobs share it. By
        default 1 if the cluster has any, else 0.
    """

    address: str = ""
    _: dataclasses.KW_ONLY
    num_cpus: int
    cpus_per_job: int = 1
    gpus_per_job: float | None = None
    _ray: Any = dataclasses.field(default=None, init=False)

    def __enter__(self) -> "RayExecutor":
        """Connect to the cluster, or start one.

        Raises:
          ImportError: if Ray is not installed.
          ConnectionError: if there is no cluster at the address.
          ValueError: if no machine of the cluster has the resources for a job.
        """
        # Ray reads these when it is imported: no usage statistics, and a bound on the retries of
        # jobs that do not fit in memory.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
        if self.address:
            self._connect(ray, options)
        else:
            ray.init("local", num_cpus=self.num_cpus, include_dashboard=False, **options)
        self._ray = ray
        try:
            self._check_resources()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._ray.shutdown()

    def run_jobs(self, title: str, jobs: Sequence[Job], open_progress: OpenProgress) -> list[str]:
        """Do as `LocalExecutor.run_jobs` does."""
        ray = self._ray
        work = ray.remote(
            num_cpus=self.cpus_per_job,
            num_gpus=self.gpus_per_job,
            max_retries=ATTEMPTS - 1,
            retry_exceptions=list(_errors_that_may_pass()),
        )(_work)
        environment = self._environment()
        with open_progress(title, sum(job.units for job in jobs)) as show:
            show(0, {}, "compiling")
            pending = {
                work.options(name=job.name).remote(
                    ray.cloudpickle.dumps(job.work), plugins.imported(), environment
                ): number
                for number, job in enumerate(jobs)
            }
            try:
                return self._wait(jobs, pending, show)
            except BaseException:
                self._stop(jobs, pending)
                raise

    def _wait(self, jobs: Sequence[Job], pending: dict[Any, int], show: Show) -> list[str]:
        """Remove jobs from `pending` as they end, until none is left; return the errors."""
        ray = self._ray
        errors, done = [""] * len(jobs), 0
        while pending:
            stopping.raise_if_requested()
            ready, _ = ray.wait(list(pending), timeout=_POLL_SECONDS)
            for reference in ready:
                number = pending.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    # There is no cause after the death of a worker.
                    errors[number] = _sentence(getattr(error, "cause", None) or error)
                    _log.warning("%s failed:\n%s", jobs[number].name, str(error).rstrip())
                done += jobs[number].units
            show(done, {"jobs left": len(pending)}, "")
        return errors

    def _stop(self, jobs: Sequence[Job], pending: Mapping[Any, int]) -> None:
        """Interrupt the jobs by SIGINT, and wait until they end or their time to stop is over."""
        seconds = max((jobs[number].seconds_to_stop for number in pending.values()), default=0.0)
        if seconds:
            for reference in pending:
                self._ray.cancel(reference)
            self._ray.wait(list(pending), num_returns=len(pending), timeout=seconds)

    def _connect(self, ray: Any, options: dict[str, Any]) -> None:
        """Connect to the cluster at the address."""
        address = self.address
        if address == "auto":
            address = os.environ.get("RAY_ADDRESS", address)
        try:
            if address != "auto":  # Within seconds; Ray itself takes minutes, and ends the process.
                host, _, port = address.rpartition(":")
                if "/" in host or not (host and port.isdigit()):
                    raise OSError("it is not of the form host:port")
                socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
            ray.init(address, **options)
        except (OSError, RuntimeError, SystemExit) as error:
            raise ConnectionError(
                f"There is no Ray cluster at --ray_address={self.address} that accepts this"
                f" process; tried {address} ({_sentence(error)}). Expected the address of one, as"
                " `ray start --head` prints it, and RAY_AUTH_MODE=token if it asks for a token; or"
                " no address, to start one on this machine."
            ) from error

    def _check_resources(self) -> None:
        """Refuse jobs that no machine has the resources for; set the accelerators of a job."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        have = [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes]
        if self.gpus_per_job is None:
            self.gpus_per_job = 1.0 if any(gpus >= 1 for _, gpus in have) else 0.0
        if not any(cpus >= self.cpus_per_job and gpus >= self.gpus_per_job for cpus, gpus in have):
            found = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in have)
            raise ValueError(
                f"--ray_cpus_per_job={self.cpus_per_job} and --ray_gpus_per_job="
                f"{self.gpus_per_job:g}: no machine of the Ray cluster has these resources; they"
                f" have {found}."
            )

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of a worker, which JAX reads."""
        environment = {"DISCO_PROCESSORS": str(self.cpus_per_job)}
        if "device_count" not in os.environ.get("XLA_FLAGS", ""):
            # As in `launch.support.commands.use_all_cores`.
            from disco_common import compilation

            environment["JAX_NUM_CPU_DEVICES"] = str(self.cpus_per_job)
            environment["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)
        if not self.gpus_per_job:
            environment["JAX_PLATFORMS"] = "cpu"
        elif self.gpus_per_job < 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * self.gpus_per_job:.3f}"
        return environment


Executor = LocalExecutor | RayExecutor


def _work(pickled: bytes, modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a job; the function of a Ray task.

    The work is unpickled, which imports JAX, after the environment variables are set.
    """
    os.environ.update(environment)
    from ray import cloudpickle

    from disco_common import compilation

    compilation.keep_programs()
    plugins.import_modules(modules)
    with stopping.noting(signal.SIGINT):  # Ray sends it to a task that is cancelled.
        cloudpickle.loads(pickled)(lambda units, numbers: None)

"""An executor of independent jobs on a Ray cluster.

This module imports neither JAX nor Ray when it is imported: a Ray worker sets environment variables
before JAX reads them, and Ray is an optional package.
"""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco_common import plugins, stopping
from evaluation.executors import (
    ATTEMPTS,
    Attempts,
    Failure,
    Job,
    Numbers,
    OpenProgress,
    Progress,
    Report,
    sentence,
)

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_SECONDS_TO_CONNECT = 5.0
_SETTINGS = 4  # The type of a SETTINGS frame in HTTP/2.


class RayExecutor:
    """An executor that runs jobs as tasks of a Ray cluster.

    Each worker is a process with one single-threaded XLA device per processor, or with the
    accelerators that Ray assigns to it. Folders that jobs write to must be on a file system that
    all machines share, and this package must be installed on each machine.
    """

    def __init__(
        self,
        address: str = "",
        *,
        num_cpus: int,
        cpus_per_job: int = 1,
        gpus_per_job: float | None = None,
    ):
        """Store the arguments; `__enter__` connects.

        Args:
          address: of a cluster: `"host:port"`, `"auto"` for the one that runs on this machine or
            that the environment variable RAY_ADDRESS names, or empty to start one here.
          num_cpus: processors of a cluster that is started here.
          cpus_per_job: processors of each job.
          gpus_per_job: accelerators of each job, or the fraction of one if several jobs share it.
            By default 1 if the cluster has any, else 0.
        """
        self._address = address
        self._num_cpus = num_cpus
        self._cpus_per_job = cpus_per_job
        self._gpus_per_job = gpus_per_job
        self._ray: Any = None

    def __enter__(self) -> "RayExecutor":
        """Connect to the cluster, or start one.

        Raises:
          ImportError: if Ray is not installed.
          ConnectionError: if there is no cluster at the address.
          ValueError: if no machine of the cluster has the resources for a job.
        """
        # Ray reads these when it is imported: no usage statistics, few attempts to connect (a
        # second apart), and a bound on the retries of jobs that do not fit in memory.
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
            board = ray.remote(num_cpus=0)(_ProgressBoard).remote()
            submit = ray.remote(
                num_cpus=self._cpus_per_job,
                num_gpus=self._gpus_per_job,
                max_retries=ATTEMPTS - 1,  # After the death of a worker.
            )(_work)
            environment = self._environment()

            def begin(number: int) -> Any:
                named = submit.options(name=jobs[number].name)
                work = _pickled(jobs[number].work)
                return named.remote(work, plugins.imported(), environment, board, number)

            pending = {begin(number): number for number in range(len(jobs))}
            try:
                return self._wait(jobs, pending, begin, board, progress)
            except BaseException:
                self._stop(jobs, pending)
                raise

    def _wait(
        self,
        jobs: Sequence[Job],
        pending: dict[Any, int],
        begin: Callable[[int], Any],
        board: Any,
        progress: Progress | None,
    ) -> list[Failure]:
        """Remove jobs from `pending` as they end, until none is left; return the failed jobs.

        `begin` starts a job, for another attempt, and returns its reference.
        """
        ray = self._ray
        failures, done = [], 0
        attempts = [Attempts(job) for job in jobs]
        while pending:
            stopping.raise_if_requested()
            ready, _ = ray.wait(list(pending), timeout=_POLL_SECONDS)
            for reference in ready:
                number = pending.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)  # None after the death of a worker.
                    failure = attempts[number].failed(cause or error, str(error))
                    if failure is None:
                        pending[begin(number)] = number
                        continue
                    failures.append(failure if cause else Failure(failure.job, failure.error))
                done += jobs[number].units
            if progress is not None:
                partial, numbers = 0, {}
                with contextlib.suppress(ray.exceptions.RayError):  # Its machine may have died.
                    partial, numbers = ray.get(board.read.remote(list(pending.values())))
                progress.update(done + partial, {"jobs left": len(pending), **numbers})
        return failures

    def _stop(self, jobs: Sequence[Job], pending: Mapping[Any, int]) -> None:
        """Interrupt the jobs by SIGINT, and wait until they end or their time to stop is over."""
        seconds = max((jobs[number].seconds_to_stop for number in pending.values()), default=0.0)
        if seconds:
            for reference in pending:
                self._ray.cancel(reference)
            self._ray.wait(list(pending), num_returns=len(pending), timeout=seconds)

    def _connect(self, ray: Any, options: dict[str, Any]) -> None:
        """Connect to the cluster at the address."""
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
                else f"a connection to {address} ({sentence(error)})"
            )
            raise ConnectionError(
                f"There is no Ray cluster at --ray_address={self._address} that accepts this"
                f" process; tried {tried}. Expected the address of one, as `ray start --head`"
                " prints it, and RAY_AUTH_MODE=token if it asks for a token; or no address, to"
                " start one on this machine."
            ) from error

    def _check_resources(self) -> None:
        """Refuse jobs that no machine has the resources for; set the accelerators of a job."""
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
                f"{self._gpus_per_job:g}: no machine of the Ray cluster has these resources; they"
                f" have {have}."
            )

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of a worker, which JAX reads."""
        environment = {"DISCO_PROCESSORS": str(self._cpus_per_job)}
        found = os.environ.get("XLA_FLAGS", "")
        if "device_count" not in found:  # As in `launch.support.commands.use_all_cores`.
            from agents import compilation

            environment["JAX_NUM_CPU_DEVICES"] = str(self._cpus_per_job)
            environment["XLA_FLAGS"] = compilation.xla_flags(compilation.ONE_THREAD)
        if not self._gpus_per_job:
            environment["JAX_PLATFORMS"] = "cpu"
        elif self._gpus_per_job < 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * self._gpus_per_job:.3f}"
        return environment


class _ProgressBoard:
    """A Ray actor to which the workers report their progress."""

    def __init__(self):
        self._units: dict[int, int] = {}
        self._numbers: Numbers = {}

    def write(self, job: int, units: int, numbers: Numbers) -> None:
        """Store a job's number of completed units, and numbers to show with it."""
        self._units[job], self._numbers = units, numbers

    def read(self, jobs: Sequence[int]) -> tuple[int, Numbers]:
        """Return the sum of some jobs' completed units, and the newest numbers of any job."""
        return sum(self._units.get(job, 0) for job in jobs), self._numbers


def _work(
    pickled: bytes, modules: Sequence[str], environment: Mapping[str, str], board: Any, number: int
) -> None:
    """Run a job; the function of a Ray task.

    The work is unpickled, which imports JAX, after the environment variables are set.
    """
    os.environ.update(environment)
    from ray import cloudpickle

    from agents import compilation

    compilation.keep_programs()
    plugins.import_modules(modules)
    last = 0.0

    def report(units: int, numbers: Numbers) -> None:
        nonlocal last
        if time.monotonic() - last > _POLL_SECONDS:
            last = time.monotonic()
            board.write.remote(number, units, dict(numbers))

    with stopping.noting(signal.SIGINT):  # Ray sends it to a task that is cancelled.
        cloudpickle.loads(pickled)(report)


def _pickled(work: Callable[[Report], None]) -> bytes:
    from ray import cloudpickle

    return cloudpickle.dumps(work)  # pyright: ignore[reportPrivateImportUsage]


def _require_cluster(address: str) -> None:
    """Check within seconds that a Ray cluster listens at an address; Ray itself takes minutes.

    Ray uses gRPC, and so HTTP/2. An HTTP/2 server answers the client's preface (RFC 9113, section
    3.4) with a SETTINGS frame. If Ray uses TLS, only the connection is tried.

    Raises:
      OSError: if no cluster answers.
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
        raise ConnectionError("a server other than Ray answers there")

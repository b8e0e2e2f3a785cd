"""Flags for the executor of a command's jobs: this process, or a Ray cluster."""

import contextlib
from collections.abc import Iterator
from typing import Any

from absl import flags

from disco_common import stopping
from evaluation.executors import Executor, LocalExecutor, RayExecutor

flags.disclaim_key_flags()

_EXECUTORS = ("local", "ray")


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_enum(
        "executor",
        "local",
        _EXECUTORS,
        "Executor of the jobs: 'local' for this process, one job after the other, or 'ray' for a"
        " Ray cluster. This package must be installed on all of its machines, and the workdir must"
        " be on a file system that they share.",
    )
    flags.DEFINE_string(
        "ray_address",
        "",
        "Address of the Ray cluster: host:port, or 'auto' for the one that runs on this machine or"
        " that RAY_ADDRESS names. Without it, a cluster is started on this machine for the duration"
        " of the command.",
    )
    flags.DEFINE_integer("ray_cpus_per_job", 1, "Processors of each job.", lower_bound=1)
    flags.DEFINE_float(
        "ray_gpus_per_job",
        None,
        "GPUs of each job, or the fraction of one GPU; by default 1 if the cluster has any.",
        lower_bound=0.0,
    )


@contextlib.contextmanager
def opened_executor(values: Any) -> Iterator[Executor]:
    """Open the executor that the flags name.

    While it is open, SIGTERM and Ctrl-C make unfinished runs write a checkpoint, and then end the
    command with status 128 + the signal's number. If nothing has to be saved, it ends within 5
    seconds, whatever it does.

    Raises:
      ValueError: if flags contradict each other, or no machine has the resources for a job.
      ImportError, ConnectionError: if Ray is not installed, or there is no cluster at the address.
    """
    if values.executor == "local":
        named = [name for name in flags.FLAGS if name.startswith("ray_") and values[name].present]
        if named:
            raise ValueError(f"--{named[0]} is for --executor=ray; --executor is 'local'.")
        executor: Executor = LocalExecutor()
    else:
        from environments import available_processors

        executor = RayExecutor(
            values.ray_address,
            num_cpus=available_processors(),
            cpus_per_job=values.ray_cpus_per_job,
            gpus_per_job=values.ray_gpus_per_job,
        )

    # In this order, as Ray installs handlers of its own.
    with stopping.ending_in_time(), executor, stopping.noting():
        try:
            yield executor
        except BaseException:
            if stopping.is_requested():  # Ray raises other exceptions for it.
                raise stopping.StoppedBySignal from None
            raise
        stopping.raise_if_requested()

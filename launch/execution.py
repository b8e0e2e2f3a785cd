"""Flags that say who does the jobs of a command: this process, or a Ray cluster."""

import contextlib
from collections.abc import Iterator
from typing import Any

from absl import flags

from disco_common import stopping
from environments import available_processors
from evaluation.executors import Executor, LocalExecutor, RayExecutor
from launch import commands
from launch.flag_parsing import given

_EXECUTORS = ("local", "ray")


def define_flags() -> bool:
    """Defines the flags; to be called before JAX computes anything.

    Returns:
      Whether this process is to compute. The driver of a Ray cluster is not: it leaves the
      accelerators to the workers.
    """
    flags.DEFINE_enum(
        "executor",
        "local",
        _EXECUTORS,
        "Who does the jobs: this process, one after the other, or a Ray cluster, on whose"
        " machines this package must be installed, and the workdir must be on a file system that"
        " they share.",
    )
    flags.DEFINE_string(
        "ray_address",
        "",
        "Of the Ray cluster: host:port, or 'auto' for the one that runs on this machine or that"
        " RAY_ADDRESS names. Without it, one is started on this machine for as long as the"
        " command takes.",
    )
    flags.DEFINE_integer("ray_cpus_per_job", 1, "Processors of each job.", lower_bound=1)
    flags.DEFINE_float(
        "ray_gpus_per_job",
        None,
        "GPUs of each job, or the fraction of one that it shares; by default 1 where the cluster"
        " has any.",
        lower_bound=0.0,
    )
    is_local = given("executor") != "ray"
    if not is_local:
        commands.leave_accelerators()
    return is_local


@contextlib.contextmanager
def opened_executor(values: Any) -> Iterator[Executor]:
    """The executor that the flags ask for, while it is open.

    Meanwhile SIGTERM and Ctrl-C have runs that are under way write a checkpoint, and then end the
    command with status 128 + the signal's number.

    Raises:
      ValueError: if flags do not go together, or no machine could do a job.
      ImportError, ConnectionError: if there is no Ray, or no cluster at the address.
    """
    if values.executor == "local":
        named = [name for name in flags.FLAGS if name.startswith("ray_") and values[name].present]
        if named:
            raise ValueError(f"--{named[0]} is for --executor=ray; --executor is 'local'.")
        executor: Executor = LocalExecutor()
    else:
        executor = RayExecutor(
            values.ray_address,
            num_cpus=available_processors(),
            cpus_per_job=values.ray_cpus_per_job,
            gpus_per_job=values.ray_gpus_per_job,
        )

    with executor, stopping.noting():  # Only now, as Ray has handlers of its own.
        try:
            yield executor
        except BaseException:
            if stopping.is_requested():  # Ray makes other exceptions of it.
                raise stopping.StoppedBySignal from None
            raise
        stopping.raise_if_requested()

"""Flags of the commands that evaluate: tasks, settings, baselines, and how runs are made.

Nothing slow is imported until a flag's value needs it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from disco_common import json_lines, stopping
from evaluation.executors import Executor, LocalExecutor, RayExecutor
from launch.support import commands
from launch.support.command_flags import (
    define_config,
    define_imports,
    define_output_folder,
    split_values,
    value_of,
)

flags.disclaim_key_flags()

RUNS_PER_RAY_JOB = 16
_WITH_ARGUMENTS = "gymnasium/"  # Names of environments with arguments.


def define_task_flags(default_suite: str, *, has_algorithms: bool = False) -> None:
    """Define the flags of the suites, the workdir and the config.

    The config may take settings of algorithms, `--config.agents.NAME.FIELD`.
    """
    flags.DEFINE_string("suite", default_suite, "Suites or environments, by commas.")
    flags.DEFINE_string(
        "env_kwargs",
        None,
        "Arguments of the environments 'gymnasium/…' of --suite, as a JSON object, for example"
        """ '{"is_slippery": false}'. They become part of the names.""",
    )
    define_output_folder("workdir", "Folder for all results.")
    define_imports()
    extend = (_with_algorithms,) if has_algorithms else ()
    define_config("evaluate", lambda: _config_argument(first_suite(default_suite)), *extend)


def first_suite(default: str) -> str:
    """Return the first name of `--suite`, before flags are parsed."""
    return (listed(value_of("suite")) or listed(default))[0]


def _with_algorithms(config: ConfigDict, overridden: Sequence[str]) -> None:
    """Add the settings of the algorithms that flags `--config.agents.NAME.FIELD` name.

    Raises:
      ValueError, ImportError: if there is no such algorithm.
    """
    from agents import registry as algorithms
    from disco_common.configuration import to_config
    from evaluation.contenders import ALGORITHMS

    names = {x.split(".")[1] for x in overridden if x.startswith(f"{ALGORITHMS}.")}
    if names:
        with config.unlocked():
            config[ALGORITHMS] = ConfigDict(
                {name: to_config(algorithms.find(name).default) for name in sorted(names)}
            ).lock()


def _config_argument(suite: str) -> str:
    """Return the argument of the default config: a family, or that there are images."""
    import jax
    import numpy as np

    from environments import registry

    family = registry.family_of(suite)
    if not suite.startswith(_WITH_ARGUMENTS):
        return family
    (name,) = suites_of(suite, value_of("env_kwargs") or None)
    leaves = jax.tree.leaves(registry.make(name).dynamics.observation_spec())
    return "images" if any(len(x.shape) == 3 and x.dtype == np.uint8 for x in leaves) else family


def define_flags(default_suite: str, *, has_algorithms: bool = False) -> None:
    """Define the flags of tasks, settings, baselines and the executor."""
    define_task_flags(default_suite, has_algorithms=has_algorithms)
    flags.DEFINE_integer(
        "runs_per_job",
        None,
        "Number of runs, in JAX environments of equal dynamics, that are trained together at most."
        f" By default no limit, on Ray {RUNS_PER_RAY_JOB}. A run in a host environment is always"
        " trained alone.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "baselines",
        None,
        "Algorithms by commas, instead of those of the config (python -m launch agents lists them):"
        " ppo, with its literature's settings; ppo/cleanrl, with a preset; ppo/clip=0.1, with"
        " settings; ppo_tuned, with those of --tuned. Empty: none.",
    )
    define_executor_flags()


def define_executor_flags() -> None:
    """Define the flags of the executor of a command's jobs: this process, or a Ray cluster."""
    flags.DEFINE_enum(
        "executor",
        "local",
        ("local", "ray"),
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


def define_tuned() -> None:
    """Define the flag that names tuned settings."""
    flags.DEFINE_string(
        "tuned",
        "shipped",
        "File of tuned settings (launch.tune), for baselines as ppo_tuned, and for rules that were"
        " tuned. 'shipped': those that come with this package, for budgets and agents that they"
        " fit. Empty: none.",
    )


def suites_of(suite: str, env_kwargs: str | None = None) -> list[str]:
    """Return the names that `--suite` gives, with the arguments of `--env_kwargs`, if given.

    Raises:
      ValueError: if the arguments are no JSON object, or no environment of the suite takes any.
    """
    from environments import names

    suites = listed(suite)
    if env_kwargs is None:
        return suites
    try:
        arguments = json_lines.loads(env_kwargs)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(
            f"--env_kwargs={env_kwargs}; expected a JSON object, for example"
            """ '{"is_slippery": false}'."""
        )
    takes = [name.startswith(_WITH_ARGUMENTS) for name in suites]
    if not any(takes):
        raise ValueError(
            f"--env_kwargs is for environments '{_WITH_ARGUMENTS}…'; --suite={suite} has none."
        )
    found = zip(suites, takes, strict=True)
    return [names.with_arguments(name, arguments) if its else name for name, its in found]


def listed(*values: str) -> list[str]:
    """Return the names that a flag's values give, by commas or repetition."""
    return [name for value in values for name in split_values(value) if name]


def executor_of(values: Any) -> Executor:
    """Return the executor that the flags of `define_executor_flags` name, not yet open.

    Raises:
      ValueError: if flags contradict each other.
    """
    if values.executor == "ray":
        from environments import available_processors

        return RayExecutor(
            values.ray_address,
            num_cpus=available_processors(),
            cpus_per_job=values.ray_cpus_per_job,
            gpus_per_job=values.ray_gpus_per_job,
        )
    every = flags.FLAGS
    named = [name for name in every if name.startswith("ray_") and every[name].present]
    if named:
        raise ValueError(f"--{named[0]} is for --executor=ray; --executor is 'local'.")
    return LocalExecutor()


def choose_devices(executor: Executor, *, is_host: bool = False) -> None:
    """Choose the devices of this process; call it before JAX computes anything.

    If it makes the runs, it gets a device per core; but runs in host environments (`is_host`), one
    after the other, have all cores each. The driver of a Ray cluster leaves the accelerators to the
    workers.
    """
    if isinstance(executor, RayExecutor):
        commands.leave_accelerators()
    elif not is_host:
        commands.use_all_cores()


@contextlib.contextmanager
def opened_executor(executor: Executor) -> Iterator[Executor]:
    """Open an executor.

    While it is open, SIGTERM and Ctrl-C make unfinished runs write a checkpoint, and then end the
    command with status 128 + the signal's number. If nothing has to be saved, it ends within 5
    seconds, whatever it does.

    Raises:
      ValueError: if no machine has the resources for a job.
      ImportError, ConnectionError: if Ray is not installed, or there is no cluster at the address.
    """
    # In this order, as Ray installs handlers of its own.
    with stopping.ending_in_time(), executor, stopping.noting():
        try:
            yield executor
        except BaseException:
            if stopping.is_requested():  # Ray raises other exceptions for it.
                raise stopping.StoppedBySignal from None
            raise
        stopping.raise_if_requested()

"""Flags of the commands that evaluate: tasks, settings, baselines, and how runs are made.

Nothing slow is imported until a flag's value needs it.
"""

from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from disco_common import json_lines
from launch.support import execution
from launch.support.flag_parsing import (
    define_config,
    define_imports,
    define_output_folder,
    given,
    split_values,
)

flags.disclaim_key_flags()

# Settings that an update's memory grows with. The first one changes only speed.
SHRINK = (
    "config.runs_at_once",
    "config.agent.batch_size",
    "config.agent.unroll_length",
    "config.agent.network.model",
    "config.agent.network.torso",
    "config.agent.network.head",
    "config.agent.num_environments",
    "config.agent.replay_capacity",
)

ALGORITHMS = "agents"  # In the config, settings of algorithms by name.
RUNS_PER_RAY_JOB = 16
_WITH_ARGUMENTS = "gymnasium/"  # Names of environments with arguments.


def define_task_flags(default_suite: str, *, has_algorithms: bool = False) -> None:
    """Define the flags of the suites, the workdir and the config.

    Args:
      default_suite: suites if the flag is not given.
      has_algorithms: whether the config takes settings of algorithms, `--config.agents.NAME.FIELD`.
    """
    flags.DEFINE_string("suite", default_suite, "Suites or environments, separated by commas.")
    flags.DEFINE_string(
        "env_kwargs",
        None,
        "Arguments of the environments 'gymnasium/…' of --suite, as a JSON object, for example"
        """ '{"is_slippery": false}'. They become part of the names.""",
    )
    define_output_folder("workdir", "Folder for all results.")
    define_imports()
    extend = (_with_algorithms,) if has_algorithms else ()
    define_config("evaluate", lambda: _settings_for(first_suite(default_suite)), *extend)


def first_suite(default: str) -> str:
    """Return the first name of `--suite`, before flags are parsed."""
    return (given("suite") or default).partition(",")[0].strip()


def _with_algorithms(config: ConfigDict, overridden: Sequence[str]) -> None:
    """Add the settings of the algorithms that flags `--config.agents.NAME.FIELD` name.

    Raises:
      ValueError, ImportError: if there is no such algorithm.
    """
    from agents import registry as algorithms
    from disco_common.configuration import to_config

    names = {x.split(".")[1] for x in overridden if x.startswith(f"{ALGORITHMS}.")}
    if names:
        with config.unlocked():
            config[ALGORITHMS] = ConfigDict(
                {name: to_config(algorithms.find(name).default) for name in sorted(names)}
            ).lock()


def _settings_for(suite: str) -> str:
    """Return the argument of the default config: a family, or that there are images."""
    import jax
    import numpy as np

    from environments import registry

    family = registry.family_of(suite)
    if f"{family}/" != _WITH_ARGUMENTS or "/" not in suite:
        return family
    (name,) = suites_of(suite, given("env_kwargs") or None)
    leaves = jax.tree.leaves(registry.make(name).dynamics.observation_spec())
    return "images" if any(len(x.shape) == 3 and x.dtype == np.uint8 for x in leaves) else family


def define_flags(default_suite: str, *, has_algorithms: bool = False) -> None:
    """Define all flags except those that name rules."""
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
    execution.define_flags()


def define_tuned() -> None:
    """Define the flag that names tuned settings."""
    flags.DEFINE_string(
        "tuned",
        "shipped",
        "File of tuned settings (launch.tune), for baselines as ppo_tuned, and for rules that were"
        " tuned. 'shipped': those that come with this package, for budgets and agents that they"
        " fit. Empty: none.",
    )


def suites_of(suite: str, env_kwargs: str | None) -> list[str]:
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
    if not any(name.startswith(_WITH_ARGUMENTS) for name in suites):
        raise ValueError(
            f"--env_kwargs is for environments '{_WITH_ARGUMENTS}…'; --suite={suite} has none."
        )
    return [
        names.with_arguments(name, arguments) if name.startswith(_WITH_ARGUMENTS) else name
        for name in suites
    ]


def listed(*values: str) -> list[str]:
    """Return the names that a flag's values give, by commas or repetition."""
    return [name for value in values for name in split_values(value) if name]

r"""Evaluate rules: train agents by them, by hand-designed rules, and compare their scores.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout
    python -m launch.evaluate --rule=first.npz --suite=crafter --workdir=runs/crafter
    python -m launch.evaluate --agent=dreamer/paper,12m --suite=crafter --workdir=runs/large

The rules are frozen. By default the settings suit a laptop, and depend on the family of the first
suite. The paper's settings, for an accelerator, are in `launch/configs/evaluate_paper.py`.

Runs (a rule on a task with a seed) are independent. Started again with the same workdir, the
command makes only the runs that are not finished, and continues stopped ones from their newest
checkpoints. `--executor=ray` makes them on a Ray cluster, on this machine or on several, which must
then share the workdir's file system:

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=/shared/heldout \
        --executor=ray --ray_address=auto

A run that fails by chance is retried, up to three times. If some runs fail, the others are still
made, the exit status is 3, and no report is written; `failure.txt` in a run's folder has its
traceback. SIGTERM and Ctrl-C write a checkpoint and end the command with status 143 or 130.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from agents import registry as algorithms
from disco_common import json_lines
from disco_common.configuration import from_config, to_config
from environments import Environment, names, registry
from evaluation import tuned_settings
from evaluation.config import TUNED, EvaluationConfig
from evaluation.contenders import (
    TUNED_SETTINGS,
    AlgorithmContender,
    Contender,
    RuleContender,
    check_names,
    copies_in,
    copy_of_rule,
    find_plugin,
    fingerprints,
    make_contenders,
)
from evaluation.evaluate import Execution, check, evaluate, resolve
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.scoring import references
from evaluation.tuned_settings import SHIPPED, TUNED_FILE, find_tuned, settings_by_contender
from launch.configs import evaluate as default_config
from launch.support import commands, dry_run, execution, return_curves, tracking, workdirs
from launch.support.flag_parsing import (
    config_overrides,
    define_config,
    define_imports,
    define_output_folder,
    given,
    listed_paths,
    split_values,
)
from launch.support.provenance import code_version
from launch.support.score_tables import print_evaluation
from launch.support.setup import keep_rule

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


@dataclasses.dataclass(frozen=True)
class Identity:
    """What identifies the evaluation in a workdir. Only the same evaluation may continue in it.

    Attributes:
      tasks: names.
      rules: fingerprints of the rules, by the contenders' names.
      config: of the evaluation.
      agents: settings of agents that learn without a rule, by name.
      command: name of the command.
      task_files: SHA-256 of the files that tasks are read from, by the tasks' names.
      tuned: settings of contenders, by their names; empty without tuned settings.
    """

    tasks: tuple[str, ...]
    rules: dict[str, str]
    config: EvaluationConfig
    agents: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: str = "evaluate"
    task_files: dict[str, str] = dataclasses.field(default_factory=dict, metadata=workdirs.ADOPTED)
    tuned: dict[str, Any] = dataclasses.field(default_factory=dict)


CHANGEABLE = ("config.runs_at_once", "config.checkpoint_seconds", "config.strip_frames")
ALGORITHMS = "agents"  # In the config, settings of algorithms by name.
_RUNS_PER_RAY_JOB = 16
_WITH_ARGUMENTS = "gymnasium/"  # Names of environments with arguments.


def run(
    rules: Sequence[str],
    suites: Sequence[str],
    config: EvaluationConfig,
    workdir: str,
    how: Execution | None = None,
    agents: Sequence[str] = (),
    tuned: str = SHIPPED,
    table: str = "",
    changes: Mapping[str, Any] | None = None,
) -> WrittenEvaluation:
    """Run or continue an evaluation.

    Args:
      rules: rule files, or names in the zoo.
      suites: suites or environments.
      config: of the evaluation.
      workdir: for all results.
      how: the runs are made; by default in this process, with a progress bar.
      agents: names of agents that learn without a rule.
      tuned: see `find_tuned`.
      table: file of reference scores, of `launch.references`; empty for the shipped ones.
      changes: the config's fields that flags give, with their values. A contender must read each;
        those of algorithms (`of_algorithms`) are in no `config`.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      WorkdirHeldError: if another command has the workdir open.
      ValueError, OSError, ImportError: if a name, a file, a setting or the workdir does not fit.
    """
    changes = changes or {}
    check_names(rules, agents, copies_in(workdir))
    tasks = resolve(suites)
    scales = _read_references(table, tasks, config) if table else None
    contenders, chosen = _tuned_contenders(rules, tasks, config, workdir, agents, tuned, changes)
    require_read(changes, contenders, config)
    identity = _identity(tasks, contenders, config, chosen)
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with workdirs.opened(workdir, identity, CHANGEABLE) as folder:
        keep_rules(folder, contenders, config)
        if chosen is not None and not (folder / TUNED_FILE).exists():
            tuned_settings.write(folder / TUNED_FILE, chosen)
        return evaluate(
            tasks,
            contenders,
            config,
            folder,
            provenance,
            how or execution.shown(),
            scales,
        )


def _identity(
    tasks: Sequence[Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    chosen: tuned_settings.TunedSettings | None,
) -> Identity:
    return Identity(
        tasks=tuple(task.name for task in tasks),
        rules=fingerprints(contenders),
        agents={
            x.name: dict(x.settings)
            for x in contenders
            if isinstance(x, AlgorithmContender) and not x.is_random
        },
        config=config,
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
        tuned={name: dict(x) for name, x in settings_by_contender(chosen).items()},
    )


def _tuned_contenders(
    rules: Sequence[str],
    tasks: Sequence[Environment],
    config: EvaluationConfig,
    workdir: str,
    agents: Sequence[str],
    tuned: str,
    changes: Mapping[str, Any],
) -> tuple[tuple[Contender, ...], tuned_settings.TunedSettings | None]:
    """Return all contenders, and the tuned settings that some have; arguments as of `run`."""
    chosen = find_tuned(tuned, workdir, config, tasks, rules)
    settings = settings_by_contender(chosen)
    own = of_algorithms(changes)
    return make_contenders(rules, config, agents, copies_in(workdir), settings, own), chosen


def of_algorithms(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values of `--config.agents.NAME.FIELD`, by the name and by the field."""
    found: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        if path.startswith(f"{ALGORITHMS}."):
            _, name, field = path.split(".", 2)
            found.setdefault(name, {})[field] = value
    return found


def require_read(
    settings: Iterable[str], contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Refuse settings that no contender reads.

    Args:
      settings: names of fields of `EvaluationConfig` that flags give.
      contenders: of the evaluation.
      config: of the evaluation.

    Raises:
      ValueError: naming the first one.
    """
    rules = [x for x in contenders if isinstance(x, RuleContender)]
    algorithms = [x for x in contenders if isinstance(x, AlgorithmContender)]
    shared = [*rules, *(x for x in algorithms if _has_agent_of_config(x))]
    for name in settings:
        # The random policy has the number of environments and the unroll; both give the budget.
        if name in ("agent.num_environments", "agent.unroll_length"):
            continue
        of_rules = name.startswith("rule_") and name != "rule_discount"
        of_rules |= name == "agent.learning_rate"
        readers = rules if of_rules else shared
        if name == "agent.frame_stack" or name.startswith("agent.network."):
            readers = [*shared, *(x for x in algorithms if _has_images_network_of(x, config))]
        if name.startswith(("agent.", "rule_")) and not readers:
            raise ValueError(
                f"--config.{name} is given, and no contender reads it:"
                f" {', '.join(x.name for x in contenders)} have settings of their own; expected a"
                f" --rule{'' if of_rules else ' or a tuned baseline, such as ppo_tuned'}."
            )


def _has_agent_of_config(contender: AlgorithmContender) -> bool:
    """Return whether an algorithm has the network and the environments of the config's agent."""
    return TUNED_SETTINGS in contender.source or not contender.loaded.algorithm.has_literature


def _has_images_network_of(contender: AlgorithmContender, config: EvaluationConfig) -> bool:
    """Return whether an algorithm with its literature's settings has the config's network."""
    network = config.agent.network
    found = (contender.loaded.config, *contender.loaded.by_task.values())
    networks = (getattr(getattr(x, "agent", x), "network", None) for x in found)
    return bool(network.channels) and network in networks


def _read_references(
    file: str, tasks: Sequence[Environment], config: EvaluationConfig
) -> dict[str, references.Reference]:
    """Return the reference scores in a file; raises ValueError if some do not fit."""
    path = pathlib.Path(os.path.expanduser(file))
    found = references.read(path)
    references.require_fit(tasks, config.num_steps, found, path)
    return found


def keep_rules(
    folder: pathlib.Path, contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Copy the rule files of an evaluation to its workdir, so that it can continue without them.

    Args:
      folder: the workdir, locked.
      contenders: with the rules that were read from the files.
      config: by which the contenders were made.

    Raises:
      ValueError: if a file has changed since.
      OSError: if a copy cannot be written.
    """
    changes = {} if config.rule_discount is None else {"discount": config.rule_discount}
    for contender in contenders:
        name = contender.source.get("file", "")
        if isinstance(contender, RuleContender) and find_plugin(name) is None:
            copy = copy_of_rule(copies_in(folder), contender.name)
            keep_rule(name, copy, contender.loaded, **changes)


def define_task_flags(default_suite: str) -> str:
    """Define the flags of the suites, the workdir and the config; return the first suite."""
    flags.DEFINE_string("suite", default_suite, "Suites or environments, separated by commas.")
    flags.DEFINE_string(
        "env_kwargs",
        None,
        "Arguments of the environments 'gymnasium/…' of --suite, as a JSON object, for example"
        """ '{"is_slippery": false}'. They become part of the names.""",
    )
    define_output_folder("workdir", "Folder for all results.")
    with commands.ended_by_user_errors():
        define_imports()
    first_suite = (given("suite") or default_suite).partition(",")[0].strip()
    define_config(default_config, _settings_for(first_suite), _with_algorithms)
    return first_suite


def _with_algorithms(config: ConfigDict, overridden: Sequence[str]) -> None:
    """Add the settings of the algorithms that flags `--config.agents.NAME.FIELD` name.

    Raises:
      ValueError, ImportError: if there is no such algorithm.
    """
    names = {x.split(".")[1] for x in overridden if x.startswith(f"{ALGORITHMS}.")}
    if names:
        with config.unlocked():
            config[ALGORITHMS] = ConfigDict(
                {name: to_config(algorithms.find(name).default) for name in sorted(names)}
            ).lock()


def _settings_for(suite: str) -> str:
    """Return the argument of the default config: a family, or that there are images."""
    family = registry.family_of(suite)
    if f"{family}/" != _WITH_ARGUMENTS or "/" not in suite:
        return family
    with commands.ended_by_user_errors():
        (name,) = suites_of(suite, given("env_kwargs") or None)
        leaves = jax.tree.leaves(registry.make(name).dynamics.observation_spec())
    return "images" if any(len(x.shape) == 3 and x.dtype == np.uint8 for x in leaves) else family


def define_flags(default_suite: str) -> None:
    """Define all flags except those that name rules. Must be called before JAX computes."""
    first_suite = define_task_flags(default_suite)
    flags.DEFINE_integer(
        "runs_per_job",
        None,
        "Number of runs, in JAX environments of equal dynamics, that are trained together at most."
        f" By default no limit, on Ray {_RUNS_PER_RAY_JOB}. A run in a host environment is always"
        " trained alone.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "baselines",
        None,
        "Algorithms by commas, instead of those of the config (python -m launch agents lists them):"
        " ppo, with its literature's settings; ppo/cleanrl, with a preset; ppo/clip=0.1, with"
        f" settings; ppo{TUNED}, with those of --tuned. Empty: none.",
    )
    is_local = execution.define_flags()
    # Runs in host environments are made one after the other, each on all cores.
    with commands.ended_by_user_errors():  # Other packages' environments may raise some.
        if is_local and not registry.is_host(first_suite):
            commands.use_all_cores()


def define_tuned() -> None:
    """Define the flag that names tuned settings."""
    flags.DEFINE_string(
        "tuned",
        SHIPPED,
        "File of tuned settings (launch.tune), for baselines as ppo_tuned, and for rules that were"
        f" tuned. {SHIPPED!r}: those that come with this package, for budgets and agents that they"
        " fit. Empty: none.",
    )


def read_flags(values: Any) -> tuple[list[str], EvaluationConfig, int | None]:
    """Return the suites, the config, and the number of runs per job that the flags give."""
    suites = suites_of(values.suite, values.env_kwargs)
    runs_per_job = values.runs_per_job
    if runs_per_job is None and values.executor == "ray":
        runs_per_job = _RUNS_PER_RAY_JOB
    own = ConfigDict({name: x for name, x in values.config.items() if name != ALGORITHMS})
    config = from_config(EvaluationConfig, own)
    if values.baselines is not None:
        config = dataclasses.replace(config, baselines=tuple(listed(values.baselines)))
    return suites, config, runs_per_job


def suites_of(suite: str, env_kwargs: str | None) -> list[str]:
    """Return the names that `--suite` gives, with the arguments of `--env_kwargs`, if given.

    Raises:
      ValueError: if the arguments are no JSON object, or no environment of the suite takes any.
    """
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


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    rules = listed_paths(values.rule)
    suites, config, runs_per_job = read_flags(values)
    agents, changes = values.agent, config_overrides()
    if values.dry_run:
        workdir = values.workdir
        check_names(rules, agents, copies_in(workdir))
        tasks = resolve(suites)
        contenders, chosen = _tuned_contenders(
            rules, tasks, config, workdir, agents, values.tuned, changes
        )
        require_read(changes, contenders, config)
        check(tasks, contenders, config)
        identity = _identity(tasks, contenders, config, chosen)
        workdirs.require_same_settings(workdir, identity, CHANGEABLE)
        dry_run.show_evaluation(tasks, contenders, config, workdir, runs_per_job)
        return
    shown = tracking.of_flags(values)
    with execution.opened(values, runs_per_job) as how:
        how = return_curves.tracked(how, values.workdir, shown)
        written = run(
            rules,
            suites,
            config,
            values.workdir,
            how,
            agents,
            values.tuned,
            values.references,
            changes,
        )
    print_evaluation(written)


if __name__ == "__main__":
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule: of the zoo, disco_103, hf:owner/name, or of another package;"
        " several by commas or repetition. The baselines of --config, each --agent and a random"
        " policy are evaluated, with or without it.",
    )
    flags.DEFINE_multi_string(
        "agent",
        [],
        "Algorithm besides the baselines, by name: dreamer, dreamer/v1,NoDenomMax"
        " (docs/dreamer.md), or one of yours (docs/extending.md); several by repetition.",
    )
    define_tuned()
    flags.DEFINE_string(
        "references",
        "",
        "Table of reference scores (launch.references), between which and the random policy's"
        " scores are normalised; by default the one that comes with this package.",
    )
    tracking.define_flags()
    define_flags("grid_heldout")
    dry_run.define_flag()
    commands.run(main, shrink=SHRINK)

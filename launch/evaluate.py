r"""Evaluate rules: train agents by them, by hand-designed rules, and compare their scores.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout
    python -m launch.evaluate --rule=first.npz --suite=crafter --workdir=runs/crafter
    python -m launch.evaluate --agent=dreamer/paper --size=12m --suite=crafter --workdir=runs/large

The rules are frozen. By default the settings suit a laptop, and depend on the family of the first
suite. The paper's settings, for an accelerator, are in `launch/configs/evaluate_paper.py`.

Runs (a rule on a task with a seed) are independent. Started again with the same workdir, the
command makes only the runs that are not finished, and continues stopped ones from their newest
checkpoints. `--executor=ray` makes them on a Ray cluster, on this machine or on several, which must
then share the workdir's file system:

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=/shared/heldout \
        --executor=ray --ray_address=auto

A run that fails is retried. If some runs fail three times, the others are still made, the exit
status is 3, and no report is written.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from disco_common import plugins
from disco_common.atomic import write_atomically
from environments import Environment, registry
from evaluation import tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    AGENT,
    DISCOVERED,
    PLUGINS,
    RULE,
    Contender,
    copy_of_rule,
    make_contenders,
)
from evaluation.evaluate import Execution, evaluate, resolve
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.scoring import references
from launch import commands, execution, workdirs
from launch.configs import evaluate as default_config
from launch.configuration import from_config
from launch.flag_parsing import define_config, define_output_folder, given
from launch.provenance import code_version
from launch.score_tables import print_evaluation
from launch.setup import keep_rule

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
_RUNS_PER_RAY_JOB = 16
TUNED = "tuned.json"  # Copy in a workdir of the file of tuned settings.
SHIPPED = "shipped"  # Stands for the tuned settings that come with this package.
# Settings of the config that tuned ones would replace.
_UNTUNED = (
    "rule_learning_rate",
    "rule_replay_ratio",
    "baseline_learning_rate",
    "baseline_entropy_cost",
    "baseline_normalize_advantage",
    "actor_critic_lambda",
    "actor_critic_replay_ratio",
)
_RULES = "rules"  # Folder in a workdir for copies of rule files, by the contenders' names.


def run(
    rules: Sequence[str],
    suites: Sequence[str],
    config: EvaluationConfig,
    workdir: str,
    how: Execution | None = None,
    agents: Sequence[str] = (),
    tuned: str = SHIPPED,
    table: str = "",
) -> WrittenEvaluation:
    """Run or continue an evaluation.

    Args:
      rules: rule files, or names in the zoo.
      suites: suites or environments.
      config: of the evaluation.
      workdir: for all results.
      how: the runs are made; by default in this process, with a progress bar.
      agents: names of agents that learn without a rule.
      tuned: see `read_tuned`.
      table: file of reference scores, of `launch.references`; empty for the shipped ones.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      WorkdirHeldError: if another command has the workdir open.
      ValueError, OSError, ImportError: if a name, a file, a setting or the workdir does not fit.
    """
    tasks = resolve(suites)
    scales = _read_references(table, tasks, config) if table else None
    settings = read_tuned(tuned, workdir, config, tasks, rules)
    contenders = make_contenders(rules, config, agents, copies_in(workdir), settings)
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules=_fingerprints(contenders),
        agents={c.name: c.source["hyper_parameters"] for c in contenders if c.kind == AGENT},
        config=config,
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
        tuned={name: dict(x) for name, x in settings.items()},
    )
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with workdirs.opened(workdir, identity, CHANGEABLE) as folder:
        keep_rules(folder, contenders, config)
        if settings and not (folder / TUNED).exists():
            source = tuned_settings.SHIPPED if tuned == SHIPPED else pathlib.Path(tuned)
            write_atomically(folder / TUNED, source.read_bytes())
        return evaluate(
            tasks,
            contenders,
            config,
            folder,
            provenance,
            how or execution.shown(),
            scales,
        )


def _read_references(
    file: str, tasks: Sequence[Environment], config: EvaluationConfig
) -> dict[str, references.Reference]:
    """Return the reference scores in a file; raises ValueError if some do not fit."""
    found = references.read(pathlib.Path(file))
    references.require_fit(tasks, config.num_steps, found, pathlib.Path(file))
    return found


def read_tuned(
    file: str,
    workdir: str | os.PathLike,
    config: EvaluationConfig,
    tasks: Sequence[Environment],
    evaluated: Sequence[str],
) -> dict[str, tuned_settings.Settings]:
    """Return tuned settings by contender, from a file or from its copy in the workdir.

    Args:
      file: of tuned settings, of `launch.tune`; `SHIPPED` for the copy in the workdir, or without
        one those that come with this package, of which only those that fit are used, unless the
        config sets any of them itself; empty for none.
      workdir: of the evaluation.
      config: of the evaluation.
      tasks: of the evaluation. There is a warning if the settings were tuned on one of them.
      evaluated: names of rules. There is a warning for each that was not tuned.

    Raises:
      OSError: if neither can be read.
      ValueError: naming the file, if it is damaged, or is for another budget or other agents, or
        lacks a baseline.
    """
    if not file:
        return {}
    path, copy = pathlib.Path(file), pathlib.Path(workdir) / TUNED
    if copy.is_file() and (file == SHIPPED or not path.exists()):
        path = copy
    elif file == SHIPPED:
        return _shipped(workdir, config, tasks, evaluated)
    found = tuned_settings.read(path)
    contenders = make_contenders(evaluated, config, copies=copies_in(workdir))
    rules = _fingerprints(contenders)
    tuned_settings.require_fit(found, path, config, rules)
    for name in sorted(set(rules) - set(found.contenders)):
        logging.warning("%s has no settings for the rule %s, which keeps its own.", path, name)
    _note_tasks_tuned_on(found, path, tasks)
    return {name: one.settings for name, one in found.contenders.items()}


def _note_tasks_tuned_on(
    found: tuned_settings.TunedSettings, path: pathlib.Path, tasks: Sequence[Environment]
) -> None:
    if seen := [task.name for task in tasks if task.name in found.tasks]:
        logging.warning(
            "%s was tuned on %d of the %d tasks of this evaluation: %s%s.",
            path,
            len(seen),
            len(tasks),
            ", ".join(seen[:5]),
            ", ..." if len(seen) > 5 else "",
        )


def _shipped(
    workdir: str | os.PathLike,
    config: EvaluationConfig,
    tasks: Sequence[Environment],
    evaluated: Sequence[str],
) -> dict[str, tuned_settings.Settings]:
    """Return the tuned settings that come with this package and fit an evaluation.

    None fit if the config sets any of these settings itself.
    """
    found = tuned_settings.read(tuned_settings.SHIPPED)
    if own := [x for x in _UNTUNED if getattr(config, x) != getattr(EvaluationConfig, x)]:
        logging.info("The tuned settings of this package are not used, as %s is set.", own[0])
        return {}
    if reason := tuned_settings.misfit(found, config):
        logging.info("The tuned settings of this package do not fit: they are %s.", reason)
        return {}
    _note_tasks_tuned_on(found, tuned_settings.SHIPPED, tasks)
    rules = _fingerprints(make_contenders(evaluated, config, copies=copies_in(workdir)))
    return {
        name: one.settings
        for name, one in found.contenders.items()
        if name in config.baselines or (name in rules and rules[name] == one.parameters_sha256)
    }


def _fingerprints(contenders: Sequence[Contender]) -> dict[str, str]:
    """Return the fingerprints of the rules among contenders, by name."""
    return {
        x.name: x.source["parameters_sha256"] for x in contenders if x.kind in (DISCOVERED, RULE)
    }


def copies_in(workdir: str | os.PathLike) -> pathlib.Path:
    """Return the folder in a workdir for copies of rule files."""
    return pathlib.Path(workdir) / _RULES


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
        name = contender.source.get("file")
        if name and contender.rule is not None and plugins.find(PLUGINS, name) is None:
            copy = copy_of_rule(copies_in(folder), contender.name)
            keep_rule(name, copy, contender.rule, **changes)


def define_flags(default_suite: str) -> None:
    """Define all flags except those that name rules. Must be called before JAX computes."""
    flags.DEFINE_string("suite", default_suite, "Suites or environments, separated by commas.")
    define_output_folder("workdir", "Folder for all results.")
    first_suite = (given("suite") or default_suite).partition(",")[0].strip()
    define_config(default_config, registry.family_of(first_suite))
    flags.DEFINE_integer(
        "runs_per_job",
        None,
        "Number of runs, in JAX environments of equal dynamics, that are trained together at most."
        f" By default no limit, on Ray {_RUNS_PER_RAY_JOB}. A run in a host environment is always"
        " trained alone.",
        lower_bound=1,
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
        "File of tuned settings (launch.tune), which each baseline has instead of the config's, and"
        f" each rule that was tuned instead of its own. {SHIPPED!r}: those that come with this"
        " package, for budgets and agents that they fit. Empty: none.",
    )


def read_flags(values: Any) -> tuple[list[str], EvaluationConfig, int | None]:
    """Return the suites, the config, and the number of runs per job that the flags give."""
    suites = [name.strip() for name in values.suite.split(",") if name.strip()]
    runs_per_job = values.runs_per_job
    if runs_per_job is None and values.executor == "ray":
        runs_per_job = _RUNS_PER_RAY_JOB
    return suites, from_config(EvaluationConfig, values.config), runs_per_job


def rule_names(values: Sequence[str]) -> list[str]:
    """Return the names that --rule gives, by commas or repetition."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    rules = rule_names(values.rule)
    suites, config, runs_per_job = read_flags(values)
    agents = [_sized(name, values.size) for name in values.agent]
    if values.size and not agents:
        raise ValueError(f"--size={values.size} is the size of an --agent; there is none.")
    with execution.opened(values, runs_per_job) as how:
        written = run(
            rules, suites, config, values.workdir, how, agents, values.tuned, values.references
        )
    print_evaluation(written)


def _sized(agent: str, size: str) -> str:
    """Return an agent's name with its size as a parameter, for example `dreamer/v1,12m`."""
    family, _, parameters = agent.partition("/")
    words = [word for word in (parameters, size) if word]
    return f"{family}/{','.join(words)}" if words else family


if __name__ == "__main__":
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule in the zoo or of another package; several by commas or"
        " repetition. The baselines of --config, each --agent and a random policy are evaluated,"
        " with or without it.",
    )
    flags.DEFINE_multi_string(
        "agent",
        [],
        "Agent that learns without a rule, by name: dreamer, dreamer/v1,NoDenomMax"
        " (docs/dreamer.md), or one of yours (docs/extending.md); several by repetition.",
    )
    define_tuned()
    flags.DEFINE_string(
        "references",
        "",
        "Table of reference scores (launch.references), between which and the random policy's"
        " scores are normalised; by default the one that comes with this package.",
    )
    flags.DEFINE_string("size", "", "Size of each --agent that has sizes, for example 12m.")
    define_flags("grid_heldout")
    commands.run(main, shrink=("size", *SHRINK) if given("agent") else SHRINK)

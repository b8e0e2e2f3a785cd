r"""Trains fresh agents by frozen rules on tasks, beside hand-designed rules and a random policy.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout
    python -m launch.evaluate --rule=first.npz --suite=crafter --workdir=runs/crafter
    python -m launch.evaluate --agent=dreamer/paper --size=12m --suite=crafter --workdir=runs/large

Settings are a laptop's, those of the first suite's kind; the paper's, for an accelerator, are in
`launch/configs/evaluate_paper.py`.

Runs (a rule on a task with a seed) are independent: started again with the same workdir, the
command makes those only that are missing, and a run in a host environment that was stopped
continues from its newest checkpoint. `--executor=ray` makes them on a Ray cluster, on this machine
or on many, which must then share the workdir's file system:

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=/shared/heldout \
        --executor=ray --ray_address=auto

A run that fails is tried again; if some fail three times, the others are made all the same, the
exit status is 3, and there is no report.
"""

import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from disco_common import plugins
from environments import registry
from evaluation.config import EvaluationConfig
from evaluation.contenders import AGENT, PLUGINS, Contender, copy_of_rule, make_contenders
from evaluation.evaluate import evaluate, resolve
from evaluation.executors import Executor
from evaluation.report.evaluation_files import WrittenEvaluation
from launch import commands, execution, workdirs
from launch.configs import evaluate as default_config
from launch.configuration import from_config
from launch.flag_parsing import define_config, define_output_folder, given
from launch.progress import Progress
from launch.provenance import code_version
from launch.score_tables import print_evaluation
from launch.setup import keep_rule

# What an update's memory grows with. The first costs nothing but time.
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
    """What a workdir is the evaluation of. It may be continued with the same one only.

    Attributes:
      tasks: names.
      rules: fingerprints by the contenders' names.
      config: of the evaluation.
      agents: settings of agents that train themselves, by name.
      command: that makes it.
      task_files: SHA-256 of the files that tasks are read from, by the tasks' names.
    """

    tasks: tuple[str, ...]
    rules: dict[str, str]
    config: EvaluationConfig
    agents: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: str = "evaluate"
    task_files: dict[str, str] = dataclasses.field(default_factory=dict, metadata=workdirs.ADOPTED)


CHANGEABLE = ("config.runs_at_once", "config.checkpoint_seconds", "config.strip_frames")
_RUNS_PER_RAY_JOB = 16
_RULES = "rules"  # Folder in a workdir: copies of rule files, by the contenders' names.


def run(
    rules: Sequence[str],
    suites: Sequence[str],
    config: EvaluationConfig,
    workdir: str,
    executor: Executor | None = None,
    runs_per_job: int | None = None,
    agents: Sequence[str] = (),
) -> WrittenEvaluation:
    """Runs or continues an evaluation.

    Args:
      rules: rule files, or names in the zoo.
      suites: suites or environments.
      config: of the evaluation.
      workdir: for all results.
      executor: see `evaluation.evaluate.evaluate`.
      runs_per_job: likewise.
      agents: names of agents that train themselves.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      WorkdirHeldError: if another command has the workdir open.
      ValueError, OSError, ImportError: if a name, a file, a setting or the workdir does not fit.
    """
    tasks = resolve(suites)
    contenders = make_contenders(rules, config, agents, copies_in(workdir))
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules={c.name: c.source["parameters_sha256"] for c in contenders if c.kind == "discovered"},
        agents={c.name: c.source["hyper_parameters"] for c in contenders if c.kind == AGENT},
        config=config,
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
    )
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with workdirs.opened(workdir, identity, CHANGEABLE) as folder:
        keep_rules(folder, contenders, config)
        return evaluate(
            tasks,
            contenders,
            config,
            folder,
            provenance,
            executor,
            runs_per_job,
            Progress,
            announce=functools.partial(print, flush=True),
        )


def copies_in(workdir: str | os.PathLike) -> pathlib.Path:
    """The folder of a workdir for copies of rule files."""
    return pathlib.Path(workdir) / _RULES


def keep_rules(
    folder: pathlib.Path, contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Keeps copies of the rule files of an evaluation in its workdir, which may go on without them.

    Args:
      folder: the workdir, open.
      contenders: as they were made of the files.
      config: by which they were made.

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
    """Defines all flags but those that name rules; to be called before JAX computes anything."""
    flags.DEFINE_string("suite", default_suite, "Suites or environments, separated by commas.")
    define_output_folder("workdir", "Folder for all results.")
    first_suite = (given("suite") or default_suite).partition(",")[0].strip()
    define_config(default_config, registry.family_of(first_suite))
    flags.DEFINE_integer(
        "runs_per_job",
        None,
        "Runs, in JAX environments of one kind, that are trained together at most. By default all"
        f" that can be, on Ray {_RUNS_PER_RAY_JOB}; those in host environments are always alone.",
        lower_bound=1,
    )
    is_local = execution.define_flags()
    # Runs in host environments follow one another, each on all cores.
    with commands.ended_by_user_errors():  # Of other packages' environments.
        if is_local and not registry.is_host(first_suite):
            commands.use_all_cores()


def read_flags(values: Any) -> tuple[list[str], EvaluationConfig, int | None]:
    """Suites, settings, and runs per job, as the flags say."""
    suites = [name.strip() for name in values.suite.split(",") if name.strip()]
    runs_per_job = values.runs_per_job
    if runs_per_job is None and values.executor == "ray":
        runs_per_job = _RUNS_PER_RAY_JOB
    return suites, from_config(EvaluationConfig, values.config), runs_per_job


def main() -> None:
    """The command."""
    values = flags.FLAGS
    rules = [name.strip() for value in values.rule for name in value.split(",") if name.strip()]
    suites, config, runs_per_job = read_flags(values)
    agents = [_sized(name, values.size) for name in values.agent]
    if values.size and not agents:
        raise ValueError(f"--size={values.size} is the size of an --agent; there is none.")
    with execution.opened_executor(values) as executor:
        written = run(rules, suites, config, values.workdir, executor, runs_per_job, agents)
    print_evaluation(written)


def _sized(agent: str, size: str) -> str:
    """An agent's name with its size among what stands behind the slash."""
    family, _, parameters = agent.partition("/")
    words = [word for word in (parameters, size) if word]
    return f"{family}/{','.join(words)}" if words else family


if __name__ == "__main__":
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule in the zoo; several by commas or repetition. Without it,"
        " only the baselines are run.",
    )
    flags.DEFINE_multi_string(
        "agent",
        [],
        "Other agent, by name: dreamer, dreamer/v1,NoDenomMax (docs/dreamer.md), or one of yours"
        " (docs/extending.md); several by repetition.",
    )
    flags.DEFINE_string("size", "", "Size of each --agent, for those that have some: 12m.")
    define_flags("grid_heldout")
    commands.run(main, shrink=("size", *SHRINK) if given("agent") else SHRINK)

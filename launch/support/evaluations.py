"""Evaluations in a workdir: what identifies them, what they keep, and how they are made."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import psutil
from ml_collections import ConfigDict
from rich.filesize import decimal
from rich.table import Table

from disco_common.configuration import from_config
from disco_common.terminal import console
from environments import Environment, registry
from evaluation import storage, tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    TUNED_SETTINGS,
    AlgorithmContender,
    Contender,
    RuleContender,
    fingerprints,
    make_contenders,
)
from evaluation.evaluate import Execution, check, evaluate, resolve, runs_of
from evaluation.executors import Executor
from evaluation.report.evaluation_files import WrittenEvaluation
from evaluation.rules import copies_in, copy_of_rule, find_plugin
from evaluation.scoring import references
from evaluation.training import Run, job_groups, train_runs
from evaluation.tuned_settings import SHIPPED, TUNED_FILE, find_tuned, settings_by_contender
from launch.support import commands, workdirs
from launch.support.display import ProgressBar
from launch.support.evaluation_flags import (
    ALGORITHMS,
    RUNS_PER_RAY_JOB,
    first_suite,
    listed,
    opened_executor,
    suites_of,
)
from launch.support.rules import keep_rule
from launch.support.workdirs import code_version
from training.memory_budget import bytes_of_run
from training.passes import runs_per_pass

_SECONDS = 10.0  # That a job is measured by `--dry_run`, after its first report.
CHANGEABLE = ("config.runs_at_once", "config.checkpoint_seconds", "config.strip_frames")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What identifies an evaluation or a study in a workdir. Only the same one may continue in it.

    Attributes:
      tasks: names.
      rules: fingerprints of the rules, by the contenders' names.
      config: of the evaluation.
      agents: settings of agents that learn without a rule, by name.
      command: name of the command.
      task_files: SHA-256 of the files that tasks are read from, by the tasks' names.
      tuned: settings of contenders, by their names; empty without tuned settings.
      search: of `launch.evolve`, its settings.
      ranges: of `launch.tune`, the ranges of each baseline's settings.
      rule_ranges: of `launch.tune`, the ranges of the settings of rules' agents.
    """

    tasks: tuple[str, ...]
    rules: dict[str, str]
    config: EvaluationConfig
    agents: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: str = "evaluate"
    task_files: dict[str, str] = dataclasses.field(default_factory=dict)
    tuned: dict[str, Any] = dataclasses.field(default_factory=dict)
    search: Any = None
    ranges: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    rule_ranges: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        command: str,
        tasks: Sequence[Environment],
        config: EvaluationConfig,
        tuned: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        **others: Any,
    ) -> "Identity":
        """Return the identity of a command's tasks and config, with further fields."""
        return cls(
            tasks=tuple(task.name for task in tasks),
            config=config,
            command=command,
            task_files={task.name: task.sha256 for task in tasks if task.sha256},
            tuned={name: dict(settings) for name, settings in tuned.items()},
            **others,
        )


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
    """Run or continue an evaluation of rules and agents, by name or file, on suites, by name.

    `how` the runs are made is by default in this process, with a progress bar; `tuned` is as of
    `find_tuned`; `table` is a file of reference scores, of `launch.references`, or empty for the
    shipped ones. `changes` are the config's fields that flags give, with their values: a contender
    must read each, and those of algorithms (`of_algorithms`) are in no `config`.

    Raises:
      JobsFailedError: if some runs failed at each attempt.
      WorkdirHeldError: if another command has the workdir open.
      ValueError, OSError, ImportError: if a name, a file, a setting or the workdir does not fit.
    """
    tasks, contenders, chosen = _prepared(
        rules, suites, config, workdir, agents, tuned, changes or {}
    )
    scales = None
    if table:
        path = pathlib.Path(os.path.expanduser(table))
        scales = references.read(path)
        references.require_fit(tasks, config.num_steps, scales, path)
    identity = _identity(tasks, contenders, config, chosen)
    with workdirs.opened(workdir, identity, CHANGEABLE) as folder:
        keep_rules(folder, contenders, config)
        if chosen is not None and not (folder / TUNED_FILE).exists():
            tuned_settings.write(folder / TUNED_FILE, chosen)
        return evaluate(
            tasks,
            contenders,
            config,
            folder,
            provenance(),
            how or shown(),
            scales,
        )


def show_dry_run(
    rules: Sequence[str],
    suites: Sequence[str],
    config: EvaluationConfig,
    workdir: str,
    agents: Sequence[str],
    tuned: str,
    changes: Mapping[str, Any],
    runs_per_job: int | None,
) -> None:
    """Say what `run` would do; arguments and errors are as of `run`."""
    tasks, contenders, chosen = _prepared(rules, suites, config, workdir, agents, tuned, changes)
    check(tasks, contenders, config)
    workdirs.require_same_settings(
        workdir, _identity(tasks, contenders, config, chosen), CHANGEABLE
    )
    show_speed(tasks, contenders, config, workdir, runs_per_job)


class _Enough(Exception):
    """Ends a job that was begun to be measured."""


def show_speed(
    tasks: Sequence[Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    workdir: str,
    runs_per_job: int | None,
) -> None:
    """Print a table of the contenders: their runs, and their speed in the first seconds.

    Speed is measured on this machine, by the first job of each, in a folder that is deleted. How
    large learning states and replays are is known of the same jobs.
    """
    table, total = Table("contender", "runs", "finished", "steps", "steps/s"), 0.0
    held, checkpoints, agents = 0, 0, 0  # Bytes.
    for contender in contenders:
        runs = list(itertools.chain(*runs_of(contender, tasks, config)))
        missing = [x for x in runs if not _is_finished(pathlib.Path(workdir), x)]
        steps, rate = len(missing) * config.num_steps, ""
        if missing:
            group = next(iter(job_groups(missing, runs_per_job)))
            speed = _steps_per_second(group, config)
            total += steps / speed
            if contender.own_training is None:
                agent, dynamics = contender.make(group[0].task), group[0].task.dynamics
                state, stored, saved = bytes_of_run(agent, dynamics, config.num_steps)
                held = max(held, len(group) * (state + stored))
                checkpoints = max(checkpoints, 2 * len(group) * saved)  # The newest two.
                agents += len(missing) * state
            rate = f"{speed:,.0f}"
        finished = str(len(runs) - len(missing))
        table.add_row(contender.name, str(len(runs)), finished, f"{steps:,}", rate)
    console(log_width=100).print(table)
    taken = decimal(psutil.Process().memory_info().rss)
    print(
        f"About {datetime.timedelta(seconds=round(total))} on {jax.local_device_count()} x"
        f" {jax.devices()[0].device_kind}, one job after the other, and the compilation;"
        " longer for agents that begin to learn later.\n"
        f"Memory: learning states and full replays of {decimal(held)} at once, in the largest of"
        f" these jobs; updates need more. This process has {taken} on the host.\n"
        f"Disk: final agents of {decimal(agents)}, and checkpoints of up to {decimal(checkpoints)}"
        " of a job that is under way; episodes and pictures are small. Nothing was written."
    )


def _is_finished(workdir: pathlib.Path, one: Run) -> bool:
    with contextlib.suppress(storage.DamagedResultError):
        found = storage.read(one.folder(workdir))
        return found is not None
    return False


def _steps_per_second(group: Sequence[Run], config: EvaluationConfig) -> float:
    """Return the environment steps per second of a job's first pass, of all its runs together."""
    devices = jax.local_device_count()
    group = group[: devices * runs_per_pass(config.runs_at_once, len(group), devices)]
    started, reports = time.monotonic(), list[tuple[int, float]]()  # Steps, and seconds.

    def report(steps: int, *_: Any) -> None:
        reports.append((steps, time.monotonic() - started))
        if reports[-1][1] - reports[0][1] > _SECONDS:
            raise _Enough

    with tempfile.TemporaryDirectory() as name, contextlib.suppress(_Enough):
        folders = [pathlib.Path(name, str(i)) for i in range(len(group))]
        for folder in folders:
            folder.mkdir()
        train_runs(group, config, folders, pathlib.Path(name, "group"), report)
    (first, before), (last, after) = reports[0], reports[-1]
    if last == first:  # Its only report came at its end.
        first, before = 0, 0.0
    return len(group) * (last - first) / (after - before)


def _identity(
    tasks: Sequence[Environment],
    contenders: Sequence[Contender],
    config: EvaluationConfig,
    chosen: tuned_settings.TunedSettings | None,
) -> Identity:
    return Identity.of(
        "evaluate",
        tasks,
        config,
        rules=fingerprints(contenders),
        agents={
            x.name: dict(x.settings)
            for x in contenders
            if isinstance(x, AlgorithmContender) and not x.is_random
        },
        tuned=settings_by_contender(chosen),
    )


def _prepared(
    rules: Sequence[str],
    suites: Sequence[str],
    config: EvaluationConfig,
    workdir: str,
    agents: Sequence[str],
    tuned: str,
    changes: Mapping[str, Any],
) -> tuple[tuple[Environment, ...], tuple[Contender, ...], tuned_settings.TunedSettings | None]:
    """Return the tasks, all contenders, and the tuned settings that some have.

    Arguments and errors are as of `run`.
    """
    copies = copies_in(workdir)
    tasks = resolve(suites)
    chosen = find_tuned(tuned, workdir, config, tasks, rules)
    own = of_algorithms(changes)
    contenders = make_contenders(rules, config, agents, copies, settings_by_contender(chosen), own)
    require_read(changes, contenders, config)
    return tasks, contenders, chosen


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
    """Refuse settings, fields of `EvaluationConfig` that flags give, that no contender reads.

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


def keep_rules(
    folder: pathlib.Path, contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Copy the rule files of contenders to a locked workdir, so that it can continue without them.

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


def read_flags(values: Any) -> tuple[list[str], EvaluationConfig, int | None]:
    """Return the suites, the config, and the number of runs per job that the flags give.

    Must be called before JAX computes anything. If this process makes the runs, it gets a device
    per core; but runs in host environments, one after the other, have all cores each. The driver of
    a Ray cluster leaves the accelerators to the workers.
    """
    if values.executor == "ray":
        commands.leave_accelerators()
    elif not registry.is_host(first_suite(values.suite)):
        commands.use_all_cores()
    suites = suites_of(values.suite, values.env_kwargs)
    runs_per_job = values.runs_per_job
    if runs_per_job is None and values.executor == "ray":
        runs_per_job = RUNS_PER_RAY_JOB
    own = ConfigDict({name: x for name, x in values.config.items() if name != ALGORITHMS})
    config = from_config(EvaluationConfig, own)
    if values.baselines is not None:
        config = dataclasses.replace(config, baselines=tuple(listed(values.baselines)))
    return suites, config, runs_per_job


def provenance() -> dict[str, Any]:
    """Return what made an evaluation: the version of the code, and the command."""
    return {"code_version": code_version(), "command": sys.argv}


@contextlib.contextmanager
def opened(values: Any, runs_per_job: int | None) -> Iterator[Execution]:
    """Open the executor that the flags name (`opened_executor`), shown on the terminal."""
    with opened_executor(values) as executor:
        yield shown(executor, runs_per_job)


def shown(executor: Executor | None = None, runs_per_job: int | None = None) -> Execution:
    """Return an execution that is shown on the terminal."""
    return Execution(executor, runs_per_job, ProgressBar, functools.partial(print, flush=True))

"""The runs of an evaluation, a contender on a task with a seed, and their training in jobs."""

import contextlib
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

import environments
from agents.protocol import Agent, ExaminedAgent
from disco_common import compilation, json_lines, keys
from disco_common.files import write_atomically
from disco_common.keys import Purpose
from evaluation import playing, storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    GRADIENT_STEPS,
    NUM_ENVIRONMENTS,
    PARAMETERS,
    STEPS_PER_UNROLL,
    Contender,
)
from evaluation.results import RunResult
from training import device, host, records, self_contained
from training.passes import split_agent
from training.records import Records
from training.schedule import Report

_EXAMINED_STEPS, _EXAMINED_ENVIRONMENTS = 200, 8
# A step number that no run reaches; it makes the seed of the examination's simulators unique.
_EXAMINATION_SEED_STEP = 2**31 - 1

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ContenderRun(records.Run):
    """One run of a contender, in an evaluation's folder.

    Attributes:
      contender: its rule and agent, or its algorithm.
      index: of its seed among `EvaluationConfig.all_seeds`.
    """

    contender: Contender
    index: int

    @classmethod
    def of(
        cls,
        contender: Contender,
        task: environments.Environment,
        index: int,
        config: EvaluationConfig,
        workdir: pathlib.Path,
    ) -> "ContenderRun":
        """Return the run on a task with the seed of this index."""
        folder = storage.run_path(workdir.absolute(), contender.name, task.name, index)
        return cls(
            contender.configured.choose_images(task),
            config.all_seeds[index],
            folder,
            contender,
            index,
        )

    @property
    def agent(self) -> Agent:
        """Its agent, the same one for all of the contender's runs on equal dynamics."""
        return self.contender.configured.make(self.task)

    @property
    def trains_itself(self) -> bool:
        """Whether its algorithm has its own training loop, and no agent."""
        return self.contender.configured.trains_itself

    def __str__(self) -> str:
        return f"{self.contender.name} on {self.task.name}, seed {self.index}"


def job_groups(runs: Sequence[ContenderRun], most: int | None) -> Iterator[list[ContenderRun]]:
    """Yield job groups, at most so many runs on equal dynamics that are trained together.

    They are of one contender or, on an accelerator, of all whose agents differ in arrays only, as
    its programs take hardly longer with more runs. A run in a host environment, or of an agent that
    trains itself, is a group of its own.
    """

    @functools.cache
    def kind(name: str, dynamics: environments.JaxEnvironment) -> Any:
        if not _mixes_contenders():
            return name
        run = next(x for x in runs if (x.contender.name, x.task.dynamics) == (name, dynamics))
        return split_agent(run.agent)[0]

    groups: dict[Any, list[ContenderRun]] = {}
    for run in runs:
        is_alone = run.task.is_host or run.trains_itself
        key = id(run) if is_alone else kind(run.contender.name, run.task.dynamics)
        groups.setdefault((key, run.task.dynamics), []).append(run)
    for group in groups.values():
        size = most or len(group)
        yield from (group[first : first + size] for first in range(0, len(group), size))


def _mixes_contenders() -> bool:
    """Return whether contenders whose agents differ in arrays only are trained together."""
    return jax.default_backend() != "cpu"


def unfinished_folder(workdir: pathlib.Path, group: Sequence[ContenderRun] = ()) -> pathlib.Path:
    """Return the folder for the checkpoints of a job group, or of all job groups."""
    if not group:
        return workdir / "unfinished"
    names = [[run.contender.name, run.task.name, run.index] for run in group]
    return workdir / "unfinished" / f"{json_lines.crc32(names):08x}"


def with_compute(contender: Contender, tasks: Sequence[environments.Environment]) -> Contender:
    """Return a contender whose source says what its agents compute, where it is known.

    That is how many steps their optimiser makes, and how many parameters they learn.
    """
    if contender.configured.trains_itself:
        return contender
    by_specs: dict[str, Agent] = {}
    for task in map(contender.configured.choose_images, tasks):
        specs = repr((task.dynamics.observation_spec(), task.dynamics.action_spec()))
        if specs not in by_specs:
            by_specs[specs] = contender.configured.make(task)
    agents = list(by_specs.values())
    requirements = agents[0].requirements
    found: dict[str, Any] = {
        GRADIENT_STEPS: requirements.gradient_steps_per_step,
        NUM_ENVIRONMENTS: requirements.num_environments,
        STEPS_PER_UNROLL: requirements.steps_per_unroll,
    }
    params = [getattr(jax.eval_shape(x.init, jax.random.key(0)), "params", None) for x in agents]
    if None not in params:
        counts = [sum(x.size for x in jax.tree.leaves(one)) for one in params]
        found[PARAMETERS] = [min(counts), max(counts)]
    return dataclasses.replace(contender, source=contender.source | found)


def train_runs(
    group: Sequence[ContenderRun],
    config: EvaluationConfig,
    group_folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> list[RunResult]:
    """Train or continue a group of runs together, and save their agents.

    Args:
      group: one run; or several in JAX environments of equal dynamics, of contenders whose agents
        differ in arrays only.
      config: of the evaluation.
      group_folder: folder for the checkpoints that the group's runs in JAX environments share.
      report: see `training.schedule`.

    Returns:
      The result of each run.

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      StoppedBySignal: if a signal asked for it; a checkpoint was saved.
      ValueError: if the agent cannot act there, or its replay does not fit in memory.
    """
    compilation.limit_programs()
    first = group[0]
    settings = config.training
    if first.trains_itself:
        one = self_contained.train(first.contender.configured, first, settings, report)
        return [RunResult.of(one, config, "unknown (self-contained agent)")]
    agents = [run.agent for run in group]
    if first.task.is_host:
        trained = [host.train(agents[0], first, settings, report)]
    else:
        trained = device.train(agents, group, settings, group_folder, report)
    found = []
    for run, agent, one in zip(group, agents, trained, strict=True):
        records.save_agent(run.folder, one.learner)
        with _keeping_result(run, "examination results"):
            _examine(run, agent, one.learner)
        found.append(RunResult.of(one, config, _devices()))
    return found


@contextlib.contextmanager
def _keeping_result(run: ContenderRun, missing: str) -> Iterator[None]:
    """Log any error as a warning, so that a finished run keeps its result.

    `missing` is what the run then lacks, a plural.
    """
    try:
        yield
    except Exception as error:
        _log.warning("There are no %s of %s: %r", missing, run, error, exc_info=True)


def _examine(run: ContenderRun, agent: Agent, learner: Any) -> None:
    """Record what an agent's own examination finds; nothing for an agent without one."""
    if not isinstance(agent, ExaminedAgent):
        return
    played = playing.play(
        agent,
        learner,
        run.task,
        _EXAMINED_STEPS,
        min(agent.requirements.num_environments, _EXAMINED_ENVIRONMENTS),
        environments.seed_of(run.task.name, run.seed, _EXAMINATION_SEED_STEP),
    )
    key = keys.key(run.seed, Purpose.EXAMINE, keys.code(run.task.name))
    found = agent.examine(jax.device_put(learner), played, key)
    run_records = Records(run.folder)
    run_records.add_metrics(run_records.last_step(), found.metrics)
    for name, picture in found.pictures.items():
        write_atomically(run.folder / name, picture)


def _devices() -> str:
    return f"{jax.local_device_count()} x {jax.devices()[0].device_kind}"

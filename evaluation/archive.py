"""Evaluations on disk, finished or not, gathered to be compared.

An evaluation's folder has, besides its runs (`evaluation.storage`),

    manifest.json    its settings, tasks, contenders and origin, written at its start

Evaluations of the same tasks by the same protocol (budget, score, points of the curves) are put
together, as if they had been one; others stay apart. Nothing is written here.
"""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agents import pictures
from agents.rule_agent import AgentConfig
from common import json_lines
from common.atomic import write_atomically
from environments.episodes import Episode
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import AGENT, RANDOM, Contender
from evaluation.results import Episodes, History, RunResult, intervals
from training import records

MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)

ReadConfig = Callable[[type, dict[str, Any]], Any]
"""Makes a dataclass of what `dataclasses.asdict` made of one, or raises a ValueError."""


@dataclasses.dataclass(frozen=True)
class Archived:
    """An evaluation on disk.

    Attributes:
      folder: of it.
      config: its settings.
      tasks: names.
      contenders: without their rules.
      provenance: code version, command, machine; JSON values.
    """

    folder: pathlib.Path
    config: EvaluationConfig
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    provenance: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Evaluations of the same tasks by the same protocol, as one.

    Attributes:
      config: of the first; `seeds` is the number of different seeds of all.
      tasks: names, in the first one's order.
      contenders: of all of them, without their rules.
      histories: by contender; NaN and no episodes where a run is missing.
      seeds: of the histories' second axis.
      folders: of each contender's runs: by contender, task and seed.
      sources: the evaluations.
      missing: runs that are not there: contender, task, seed.
      problems: files that are left out, and why.
    """

    config: EvaluationConfig
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    histories: dict[str, History]
    seeds: tuple[int, ...]
    folders: dict[tuple[str, str, int], pathlib.Path]
    sources: tuple[Archived, ...]
    missing: tuple[tuple[str, str, int], ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The names of its folders."""
        return " + ".join(dict.fromkeys(source.folder.name for source in self.sources))

    def episodes(self, contender: str, task: str, seed: int) -> list[Episode]:
        """All episodes of a run in a host environment; none where they were not kept."""
        folder = self.folders.get((contender, task, seed))
        return [] if folder is None else records.read_episodes(folder)

    def pictures(self, contender: str, task: str, seed: int) -> list[tuple[str, bytes]]:
        """What was drawn at a run's end, with captions, as far as it was kept."""
        folder, found = self.folders.get((contender, task, seed)), []
        for path in [] if folder is None else (folder / name for name in storage.PICTURES):
            try:
                picture = path.read_bytes()
                found.append((pictures.read_caption(picture), picture))
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("%s is left out: %s", path, error)
        return found


def write_manifest(
    folder: pathlib.Path,
    config: EvaluationConfig,
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    provenance: Mapping[str, Any],
) -> None:
    """Notes what an evaluation is.

    Raises:
      OSError: if it cannot be written.
    """
    manifest = {
        "config": dataclasses.asdict(config),
        "tasks": list(tasks),
        "contenders": [
            {
                "name": contender.name,
                "kind": contender.kind,
                "agent": dataclasses.asdict(contender.agent),
                "source": contender.source,
            }
            for contender in contenders
        ],
        "provenance": dict(provenance),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: pathlib.Path, read_config: ReadConfig) -> Archived:
    """An evaluation on disk.

    Raises:
      ValueError: if the folder is not that of an evaluation, or its manifest is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = json_lines.read_object(path)
        return Archived(
            folder=folder,
            config=read_config(EvaluationConfig, manifest["config"]),
            tasks=tuple(map(str, manifest["tasks"])),
            contenders=tuple(
                Contender(
                    name=str(entry["name"]),
                    kind=str(entry["kind"]),
                    rule=None,
                    agent=read_config(AgentConfig, entry["agent"]),
                    source=dict(entry["source"]),
                )
                for entry in manifest["contenders"]
            ),
            provenance=dict(manifest["provenance"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{str(folder)!r} is not the folder of an evaluation: {path.name}:"
            f" {str(reason).rstrip('.')}. An"
            " evaluation that an older version made gets one when it is started again; finished"
            " runs are not repeated."
        ) from error


def gather(evaluations: Sequence[Archived]) -> list[Gathered]:
    """Puts evaluations of the same tasks and protocol together.

    A contender of the same name is the same if its agent and its rule's parameters are; others are
    told apart by their folders' names. Of runs that are there twice the first counts.
    """
    together: dict[Any, list[Archived]] = {}
    for evaluation in evaluations:
        config = evaluation.config
        points = intervals(config)[0] * config.agent.steps_per_update
        protocol = (config.score_definition, tuple(points))
        together.setdefault((frozenset(evaluation.tasks), protocol), []).append(evaluation)
    return [_gather(group) for group in together.values()]


def _gather(evaluations: Sequence[Archived]) -> Gathered:
    first = evaluations[0]
    seeds = tuple(sorted({seed for one in evaluations for seed in one.config.all_seeds}))
    contenders: dict[str, Contender] = {}
    runs: dict[tuple[str, str, int], RunResult] = {}
    folders: dict[tuple[str, str, int], pathlib.Path] = {}
    problems: list[str] = []
    for one in evaluations:
        for contender in one.contenders:
            known = _known(contender, contenders, one.folder)
            contenders[known.name] = known
            for task in one.tasks:
                for index, seed in enumerate(one.config.all_seeds):
                    key = (known.name, task, seed)
                    try:
                        result = storage.read(one.folder, contender.name, task, index)
                    except storage.DamagedResultError as error:
                        problems.append(f"{error}: left out.")
                        continue
                    if result is None:
                        continue
                    if len(result.curve.count) != len(intervals(one.config)[0]):
                        path = storage.run_path(one.folder, contender.name, task, index)
                        problems.append(f"{path} has a curve of another length: left out.")
                        continue
                    if key in runs:
                        if not _is_same(runs[key], result):
                            problems.append(
                                f"{known.name} on {task} with seed {seed} is in {folders[key]} and,"
                                f" with other results, in {one.folder}: the first counts."
                            )
                        continue
                    runs[key] = result
                    folders[key] = storage.run_path(one.folder, contender.name, task, index)
    return Gathered(
        config=dataclasses.replace(first.config, seeds=len(seeds), seed=seeds[0]),
        tasks=first.tasks,
        contenders=tuple(contenders.values()),
        histories={
            name: _history(
                [[runs.get((name, task, seed)) for seed in seeds] for task in first.tasks],
                first.config,
            )
            for name in contenders
        },
        seeds=seeds,
        folders=folders,
        sources=tuple(evaluations),
        missing=tuple(
            (name, task, seed)
            for name in contenders
            for task in first.tasks
            for seed in seeds
            if (name, task, seed) not in runs
        ),
        problems=tuple(problems),
    )


def _known(
    contender: Contender, contenders: Mapping[str, Contender], folder: pathlib.Path
) -> Contender:
    """The contender under the name by which it is known among the others."""
    for name in (
        contender.name,
        f"{contender.name} ({folder.name})",
        f"{contender.name} ({folder})",
    ):
        known = contenders.get(name)
        if known is None or _identity(known) == _identity(contender):
            return dataclasses.replace(contender, name=name)
    raise ValueError(f"{folder} has two contenders {contender.name!r}; expected one.")


def _identity(contender: Contender) -> Any:
    rule = contender.source.get("parameters_sha256", contender.source.get("hyper_parameters"))
    # The policy that does not learn is the same whatever its agent would have learned.
    # Nor do agents that train themselves read it.
    is_read = contender.kind not in (RANDOM, AGENT)
    return contender.kind, contender.agent if is_read else None, rule


def _is_same(run: RunResult, other: RunResult) -> bool:
    pairs = zip((*run.window, *run.curve), (*other.window, *other.curve), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _history(rows: Sequence[Sequence[RunResult | None]], config: EvaluationConfig) -> History:
    """Of runs some of which are missing."""
    points = len(intervals(config)[0])
    missing = RunResult(
        curve=Episodes(np.zeros(points), np.zeros(points)),
        window=Episodes(np.zeros(()), np.zeros(())),
        results={},
        is_finite=True,
        start_seconds=0.0,
        train_seconds=0.0,
        devices="",
    )
    history = History.of([[run or missing for run in row] for row in rows], config)
    return dataclasses.replace(history, devices=tuple(filter(None, history.devices)))

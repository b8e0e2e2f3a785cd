"""Evaluations of the same tasks by the same protocol, merged into one.

The protocol is the budget, the definition of the score, and the points of the learning curves.
Evaluations by different protocols, or of different tasks, are never merged. This module writes
nothing.
"""

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents import pictures
from disco_common import files
from disco_common.json_lines import JsonLines
from environments.simulators import Episode
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import AlgorithmContender, Contender, RuleContender
from evaluation.report.manifest import StoredEvaluation
from evaluation.results import Episodes, LearningCurves, RunResult, intervals
from evaluation.scoring import references
from evaluation.scoring.references import Reference
from evaluation.scoring.summary import Summary, summarize
from training import records

_log = logging.getLogger(__name__)

RunKey = tuple[str, str, int]
"""A run's contender, task and seed."""


@dataclasses.dataclass(frozen=True)
class MergedEvaluation:
    """Evaluations of the same tasks by the same protocol, as if they were one.

    Attributes:
      config: of the first one; `seeds` is the number of distinct seeds of all.
      tasks: names, in the order of the first one.
      contenders: of all, without their rules.
      contender_curves: the learning curves by contender; a missing run has no episodes, and NaN as
        results.
      seeds: of the curves' second axis.
      folders: of the runs that are present.
      sources: the merged evaluations.
      references: of the tasks that have one, by name.
      missing: runs that are absent.
      problems: one sentence for each file that is ignored.
    """

    config: EvaluationConfig
    tasks: tuple[str, ...]
    contenders: tuple[Contender, ...]
    contender_curves: dict[str, LearningCurves]
    seeds: tuple[int, ...]
    folders: dict[RunKey, pathlib.Path]
    sources: tuple[StoredEvaluation, ...]
    references: Mapping[str, Reference]
    missing: tuple[RunKey, ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The names of the sources' folders."""
        return " + ".join(dict.fromkeys(source.folder.name for source in self.sources))

    def summary(self) -> Summary:
        """Return the summary of all scores."""
        return summarize(
            self.tasks, self.contenders, self.contender_curves, self.config, self.references
        )

    def episodes(self, contender: str, task: str, seed: int) -> list[Episode]:
        """Return all episodes of a run in a host environment; empty if they were not kept.

        Raises:
          ValueError: if they are damaged; the message names the file or folder.
        """
        folder = self.folders.get((contender, task, seed))
        return [] if folder is None else _read_episodes(folder)

    def pictures(self, contender: str, task: str, seed: int) -> list[tuple[str, bytes]]:
        """Return the pictures (PNG) of a run's final agent, with captions, if any were kept."""
        folder, found = self.folders.get((contender, task, seed)), []
        for path in [] if folder is None else storage.picture_files(folder):
            try:
                picture = files.read_bytes(path, files.MOST_DATA)
                found.append((pictures.read_caption(picture) or path.stem, picture))
            except OSError as error:
                _log.warning("%s is left out: %s", path, error)
        return found

    def films(self, contender: str, task: str) -> list[tuple[int, pathlib.Path]]:
        """Return the films of the final agents of a contender's runs on a task, with the seed."""
        found = []
        for seed in self.seeds:
            folder = self.folders.get((contender, task, seed))
            for path in [] if folder is None else storage.film_files(folder):
                try:
                    _require_film(path)
                    found.append((seed, path))
                except OSError as error:
                    _log.warning("%s is left out: %s", path, error)
        return found

    def metrics(self, contender: str, task: str, seed: int) -> list[dict[str, Any]]:
        """Return the metrics that a run logged, without damaged lines; empty if none were kept."""
        folder = self.folders.get((contender, task, seed))
        if folder is None:
            return []
        try:
            lines, problems = JsonLines(folder / records.METRICS).read_undamaged()
        except OSError as error:
            lines, problems = {}, [str(error)]
        for problem in problems:
            _log.warning("Left out: %s", problem)
        return list(lines.values())


def merge(evaluations: Sequence[StoredEvaluation]) -> list[MergedEvaluation]:
    """Return evaluations with those of the same tasks and protocol merged.

    Contenders of equal names are the same if their agents and their rules' parameters are equal;
    otherwise the name of the folder is added to the name of the later one. If a run is present
    twice, the first one counts.
    """
    groups: dict[Any, list[StoredEvaluation]] = {}
    for evaluation in evaluations:
        config = evaluation.config
        points = intervals(config)[0] * config.agent.steps_per_update
        protocol = (config.score_definition, tuple(points))
        groups.setdefault((frozenset(evaluation.tasks), protocol), []).append(evaluation)
    return [_merge_group(group) for group in groups.values()]


def _merge_group(evaluations: Sequence[StoredEvaluation]) -> MergedEvaluation:
    first = evaluations[0]
    seeds = tuple(sorted({seed for one in evaluations for seed in one.config.all_seeds}))
    runs = _Runs()
    for one in evaluations:
        runs.add(one)
    return MergedEvaluation(
        config=dataclasses.replace(first.config, seeds=len(seeds), seed=seeds[0]),
        tasks=first.tasks,
        contenders=tuple(runs.contenders.values()),
        contender_curves={
            name: _curves(
                [[runs.results.get((name, task, seed)) for seed in seeds] for task in first.tasks],
                first.config,
            )
            for name in runs.contenders
        },
        seeds=seeds,
        folders=runs.folders,
        sources=tuple(evaluations),
        references=_references(evaluations, runs.problems),
        missing=tuple(
            key
            for key in itertools.product(runs.contenders, first.tasks, seeds)
            if key not in runs.results
        ),
        problems=tuple(runs.problems),
    )


def _references(
    evaluations: Sequence[StoredEvaluation], problems: list[str]
) -> dict[str, Reference]:
    """Return the reference scores of the first evaluation that has readable ones."""
    for one in evaluations:
        path = one.folder / storage.REFERENCES
        try:
            return references.read(path)
        except FileNotFoundError:
            problems.append(
                f"{path} is missing, so that no score is normalised by it: started again, the"
                " evaluation writes it, and repeats no run."
            )
        except (OSError, ValueError) as error:
            problems.append(f"{error}: left out.")
    return {}


class _Runs:
    """The runs of several evaluations; see `MergedEvaluation`."""

    def __init__(self):
        self.contenders: dict[str, Contender] = {}
        self.results: dict[RunKey, RunResult] = {}
        self.folders: dict[RunKey, pathlib.Path] = {}
        self.problems: list[str] = []

    def add(self, evaluation: StoredEvaluation) -> None:
        """Add the runs of an evaluation that are present and undamaged."""
        for contender in evaluation.contenders:
            named = _with_distinct_name(contender, self.contenders, evaluation.folder)
            self.contenders[named.name] = named
            for task in evaluation.tasks:
                for index, seed in enumerate(evaluation.config.all_seeds):
                    key = named.name, task, seed
                    self._add_run(key, evaluation, contender.name, index)

    def _add_run(
        self, key: RunKey, evaluation: StoredEvaluation, contender: str, index: int
    ) -> None:
        """Add a run, stored under the contender's own name and the seed's index."""
        name, task, seed = key
        path = storage.run_path(evaluation.folder, contender, task, index)
        try:
            result = storage.read(path)
        except storage.DamagedResultError as error:
            self.problems.append(f"{error}: left out.")
            return
        if result is None:
            return
        if len(result.curve.count) != len(intervals(evaluation.config)[0]):
            self.problems.append(f"{path} has a curve of another length: left out.")
        elif key not in self.results:
            self.results[key], self.folders[key] = result, path
        elif not _is_equal(self.results[key], result):
            self.problems.append(
                f"{name} on {task} with seed {seed} is in {self.folders[key]} and,"
                f" with other results, in {evaluation.folder}: the first counts."
            )


def _with_distinct_name(
    contender: Contender, others: Mapping[str, Contender], folder: pathlib.Path
) -> Contender:
    """Return a contender with a name that no other, different contender has."""
    for name in (
        contender.name,
        f"{contender.name} ({folder.name})",
        f"{contender.name} ({folder})",
    ):
        other = others.get(name)
        if other is None or _identity(other) == _identity(contender):
            return dataclasses.replace(contender, name=name)
    raise ValueError(f"{folder} has two contenders {contender.name!r}; expected one.")


def _identity(contender: Contender) -> Any:
    if isinstance(contender, RuleContender):
        return contender.agent, contender.parameters_sha256
    assert isinstance(contender, AlgorithmContender)
    # The random policy is the same in any number of environments.
    return contender.kind, None if contender.is_random else contender.settings


def _is_equal(run: RunResult, other: RunResult) -> bool:
    pairs = zip((*run.window, *run.curve), (*other.window, *other.curve), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _curves(rows: Sequence[Sequence[RunResult | None]], config: EvaluationConfig) -> LearningCurves:
    """Return the learning curves of runs; a run that is None is missing."""
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
    curves = LearningCurves.of([[run or missing for run in row] for row in rows], config)
    return dataclasses.replace(curves, devices=tuple(filter(None, curves.devices)))


def _require_film(path: pathlib.Path) -> None:
    """Raise OSError if a file cannot be read, or does not begin as films of its suffix do."""
    with files.opened(path, files.MOST_DATA) as file:
        start = file.read(12)
    if not (start.startswith(b"GIF8") if path.suffix.lower() == ".gif" else start[4:8] == b"ftyp"):
        raise OSError(f"it is not a {path.suffix} film")


def _read_episodes(folder: pathlib.Path) -> list[Episode]:
    try:
        episodes = records.read_episodes(folder)
        for one in episodes:
            numbers = (one.episode_return, one.length, *one.results.values())
            if not all(isinstance(x, int | float) for x in numbers):
                raise TypeError(f"expected numbers, found {one}")
        return episodes
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"The episodes in {folder} are damaged ({error!r}).") from error

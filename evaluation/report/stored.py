"""Evaluations on disk: their manifests, and their runs, merged where they are of the same tasks.

`manifest.json` has an evaluation's settings, tasks, contenders and provenance. It is written when
the evaluation starts, so that unfinished evaluations can be read, too.

Evaluations of the same tasks by the same protocol are merged into one. The protocol is the budget,
the definition of the score, and the points of the learning curves. Evaluations by different
protocols, or of different tasks, are never merged.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agents.rule_agent import RuleAgentConfig
from disco_common import json_lines
from disco_common.configuration import from_json
from disco_common.files import write_atomically
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    DISCOVERED,
    RANDOM,
    RULE,
    Contender,
)
from evaluation.results import Episodes, LearningCurves, RunResult
from evaluation.scoring import references
from evaluation.scoring.evaluation import Evaluation, RunKey, StoredEvaluation
from evaluation.scoring.references import Reference

MANIFEST = "manifest.json"
# Algorithms of earlier versions that are a rule and an agent.
_RULES = ("actor_critic", "policy_gradient", "impala", "hand_set")


def write_manifest(
    folder: pathlib.Path,
    config: EvaluationConfig,
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    provenance: Mapping[str, Any],
) -> None:
    """Write the manifest of an evaluation; raises OSError if it cannot be written."""
    manifest = {
        "config": dataclasses.asdict(config),
        "tasks": list(tasks),
        "contenders": [contender.manifest_entry() for contender in contenders],
        "provenance": dict(provenance),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / MANIFEST, json_lines.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: pathlib.Path) -> StoredEvaluation:
    """Return the evaluation in a folder.

    Raises:
      ValueError: if the folder is not that of an evaluation, or its manifest is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = json_lines.read_object(path)
        contenders = tuple(_read_contender(x) for x in manifest["contenders"])
        return StoredEvaluation(
            folder=folder,
            config=from_json(EvaluationConfig, manifest["config"]),
            tasks=tuple(map(str, manifest["tasks"])),
            contenders=contenders,
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


def _read_contender(entry: dict[str, Any]) -> Contender:
    name, kind, source = str(entry["name"]), str(entry["kind"]), dict(entry["source"])
    if kind in (DISCOVERED, RULE):
        agent = dataclasses.asdict(from_json(RuleAgentConfig, entry["agent"]))
        return Contender(name=name, algorithm=kind, settings=agent, source=source)
    if "algorithm" not in entry:
        entry = _of_earlier_version(entry)
    algorithm, settings = str(entry["algorithm"]), dict(entry["settings"])
    return Contender(name=name, algorithm=algorithm, settings=settings, source=source)


def _of_earlier_version(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of an algorithm of a version that had an agent's settings beside each."""
    kind, source, agent = entry["kind"], entry["source"], entry["agent"]
    settings = dict(source.get("hyper_parameters", {}))
    by_task = settings.pop("of_family", {}) | settings.pop("of_game", {})
    if on_images := settings.pop("for_images", None):
        by_task["images"] = on_images
    if by_task:
        settings["by_task"] = by_task
    if kind == "agent" and "agent" not in source:
        raise ValueError(
            f"The agent {entry['name']!r} was trained by an older version, which did not store what"
            " it was called."
        )
    if kind == RANDOM:
        settings = {x: agent[x] for x in ("num_environments", "unroll_length")}
    elif kind in _RULES:
        settings = {"rule": settings, "agent": agent}
    return entry | {"algorithm": source.get("agent", kind), "settings": settings}


def merge(evaluations: Sequence[StoredEvaluation]) -> list[Evaluation]:
    """Return evaluations with those of the same tasks and protocol merged.

    Contenders of equal names are the same if their agents and their rules' parameters are equal;
    otherwise the name of the folder is added to the name of the later one. If a run is present
    twice, the first one counts. The config is the first one's, with the number of distinct seeds of
    all.

    Raises:
      ValueError: if one has no random policy, to which scores are compared.
    """
    groups: dict[Any, list[StoredEvaluation]] = {}
    for evaluation in evaluations:
        if RANDOM not in [contender.name for contender in evaluation.contenders]:
            raise ValueError(
                f"{str(evaluation.folder)!r} is no evaluation to compare: its contenders lack"
                f" {RANDOM!r}."
            )
        config = evaluation.config
        points = config.intervals[0] * config.agent.steps_per_update
        protocol = (config.score_definition, tuple(points))
        groups.setdefault((frozenset(evaluation.tasks), protocol), []).append(evaluation)
    return [_merge_group(group) for group in groups.values()]


def _merge_group(evaluations: Sequence[StoredEvaluation]) -> Evaluation:
    tasks, config = evaluations[0].tasks, evaluations[0].config
    seeds = tuple(sorted({seed for one in evaluations for seed in one.config.all_seeds}))
    contenders: dict[str, Contender] = {}
    runs: dict[RunKey, tuple[pathlib.Path, RunResult]] = {}
    problems: list[str] = []
    for one in evaluations:
        for contender in one.contenders:
            named = _with_distinct_name(contender, contenders, one.folder)
            contenders[named.name] = named
            for task, (i, seed) in itertools.product(one.tasks, enumerate(one.config.all_seeds)):
                path = storage.run_path(one.folder, contender.name, task, i)
                problems += _add_run((named.name, task, seed), path, one, runs)
    points = len(config.intervals[0])
    missing = RunResult(
        curve=Episodes(np.zeros(points), np.zeros(points)),
        window=Episodes(np.zeros(()), np.zeros(())),
        results={},
        is_finite=True,
        start_seconds=0.0,
        train_seconds=0.0,
        devices="",
    )
    curves = {}
    for name in contenders:
        rows = [[runs.get((name, x, seed), ("", missing))[1] for seed in seeds] for x in tasks]
        own = LearningCurves.of(rows, config)
        curves[name] = dataclasses.replace(own, devices=tuple(filter(None, own.devices)))
    every = itertools.product(contenders, tasks, seeds)
    return Evaluation(
        config=dataclasses.replace(config, seeds=len(seeds), seed=seeds[0]),
        tasks=tasks,
        contenders=tuple(contenders.values()),
        contender_curves=curves,
        seeds=seeds,
        folders={key: path for key, (path, _) in runs.items()},
        sources=tuple(evaluations),
        references=_references(evaluations, problems),
        missing=tuple(key for key in every if key not in runs),
        problems=tuple(problems),
    )


def _add_run(
    key: RunKey,
    path: pathlib.Path,
    evaluation: StoredEvaluation,
    runs: dict[RunKey, tuple[pathlib.Path, RunResult]],
) -> Iterator[str]:
    """Add an evaluation's run to `runs` if it is finished; yield a sentence if it is ignored."""
    try:
        result = storage.read(path)
    except storage.DamagedResultError as error:
        yield f"{error}: left out."
        return
    if result is None:
        return
    if len(result.curve.count) != len(evaluation.config.intervals[0]):
        yield f"{path} has a curve of another length: left out."
        return
    first, other = runs.setdefault(key, (path, result))
    pairs = zip((*result.window, *result.curve), (*other.window, *other.curve), strict=True)
    if not all(np.array_equal(x, y, equal_nan=True) for x, y in pairs):
        name, task, seed = key
        yield (
            f"{name} on {task} with seed {seed} is in {first} and, with other results,"
            f" in {evaluation.folder}: the first counts."
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


def _with_distinct_name(
    contender: Contender, others: Mapping[str, Contender], folder: pathlib.Path
) -> Contender:
    """Return a contender with a name that no other, different contender has."""
    own = contender.name
    for name in (own, f"{own} ({folder.name})", f"{own} ({folder})"):
        if name not in others or _identity(others[name]) == _identity(contender):
            return dataclasses.replace(contender, name=name)
    raise ValueError(f"{folder} has two contenders {own!r}; expected one.")


def _identity(contender: Contender) -> Any:
    if contender.is_rule:
        return contender.settings, contender.parameters_sha256
    # The random policy is the same in any number of environments.
    return contender.kind, None if contender.is_random else contender.settings

"""An evaluation's `manifest.json`: its settings, tasks, contenders and provenance.

It is written when the evaluation starts, so that unfinished evaluations can be read, too.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agents.rule_agent import AgentConfig
from disco_common import json_lines
from disco_common.configuration import from_json
from disco_common.files import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    DISCOVERED,
    RANDOM,
    RULE,
    AlgorithmContender,
    Contender,
    RuleContender,
)

MANIFEST = "manifest.json"
# Algorithms of earlier versions that are a rule and an agent.
_RULES = ("actor_critic", "policy_gradient", "impala", "hand_set")


@dataclasses.dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation on disk, finished or not.

    Attributes:
      folder: of the evaluation.
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


def write_manifest(
    folder: pathlib.Path,
    config: EvaluationConfig,
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    provenance: Mapping[str, Any],
) -> None:
    """Write the manifest of an evaluation.

    Raises:
      OSError: if it cannot be written.
    """
    manifest = {
        "config": dataclasses.asdict(config),
        "tasks": list(tasks),
        "contenders": [contender.described() for contender in contenders],
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
        if RANDOM not in [contender.name for contender in contenders]:
            raise ValueError(f"its contenders lack {RANDOM!r}")
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
        agent = from_json(AgentConfig, entry["agent"])
        is_discovered = kind == DISCOVERED
        return RuleContender(
            name=name, is_discovered=is_discovered, rule=None, agent=agent, source=source
        )
    if "algorithm" not in entry:
        entry = _of_earlier_version(entry)
    algorithm, settings = str(entry["algorithm"]), dict(entry["settings"])
    return AlgorithmContender(name=name, algorithm=algorithm, settings=settings, source=source)


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

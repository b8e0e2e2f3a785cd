"""An evaluation's `manifest.json`: its settings, tasks, contenders and provenance.

It is written when the evaluation starts, so that unfinished evaluations can be read, too.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agents.rule_agent import AgentConfig
from disco_common import json_lines
from disco_common.atomic import write_atomically
from disco_common.configuration import from_json
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender

MANIFEST = "manifest.json"


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
    return Contender(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        rule=None,
        agent=from_json(AgentConfig, entry["agent"]),
        source=dict(entry["source"]),
    )

"""What the folders of an evaluation's runs have beside results: metrics, pictures, films.

Agents log metrics as they learn. Which of them are shown follows from their names alone, so that
any agent that calls its metrics as others do is shown as they are. With several kinds of updates a
name begins with the kind (`training.records.name_by_kind`).
"""

import itertools
import logging
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agents import pictures
from disco_common import files
from disco_common.json_lines import JsonLines
from evaluation import storage
from evaluation.report.drawing import Curve
from evaluation.report.tables import file_name, format_number
from evaluation.scoring.evaluation import Evaluation
from training import records

_log = logging.getLogger(__name__)

FOLDER = "pictures"  # Beside the page.
_MAX_POINTS = 100  # Of a curve.
_HELD_OUT = "held_out/"  # Begins the names of metrics on new episodes, after training.
# Losses and their parts, the use of the codebook and of the latents; of a kind of updates, or of
# the only one.
_SHOWN = re.compile(
    rf"(?!{_HELD_OUT})([^/]*/)?"
    r"(loss(/.+)?|\w+_loss|codes_\w+|kl|latents_used|(prior|posterior)_entropy)"
)


class AgentMetrics(NamedTuple):
    """What an agent logged.

    Attributes:
      curves: by metric and task, of the first run on each task that logged any, by environment
        steps.
      held_out: rows of a table: on these tasks, the metrics on new episodes, if there are any.
    """

    curves: Mapping[str, Mapping[str, Curve]]
    held_out: Sequence[Mapping[str, str]]


def agent_metrics(merged: Evaluation, contender: str) -> AgentMetrics:
    """Return what a contender's agent logged in an evaluation."""
    curves: dict[str, dict[str, Curve]] = {}
    held_out = []
    for task in merged.tasks:
        lines = next(filter(None, map(_metrics, _folders(merged, contender, task).values())), [])
        names = filter(_SHOWN.fullmatch, dict.fromkeys(itertools.chain(*lines)))
        if own := {name: curve for name in names if (curve := _curve(lines, name)).x}:
            for name, curve in own.items():
                curves.setdefault(name, {})[task] = curve
            if measured := _held_out(lines):
                held_out.append({"task": task, **measured})
    return AgentMetrics(curves, held_out)


def _folders(merged: Evaluation, contender: str, task: str) -> dict[int, pathlib.Path]:
    """Return the folders of a contender's runs on a task, by seed."""
    keys = ((contender, task, seed) for seed in merged.seeds)
    return {key[-1]: merged.folders[key] for key in keys if key in merged.folders}


def _metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the metrics that a run logged, without damaged lines; empty if none were kept."""
    try:
        lines, problems = JsonLines(folder / records.METRICS).read_undamaged()
    except OSError as error:
        lines, problems = {}, [str(error)]
    for problem in problems:
        _log.warning("Left out: %s", problem)
    return list(lines.values())


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """Return steps and values where both are finite numbers, thinned out evenly."""
    points = [
        (line[records.STEPS], line[name])
        for line in lines
        if _is_number(line.get(records.STEPS)) and _is_number(line.get(name))
    ]
    kept = np.unique(np.linspace(0, len(points) - 1, _MAX_POINTS).round().astype(int))
    chosen = [points[i] for i in kept] if points else []
    return Curve(
        [int(steps) for steps, _ in chosen], [float(f"{value:.5g}") for _, value in chosen]
    )


def _held_out(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the last numbers on new episodes, by the metrics' names."""
    return {
        name.removeprefix(_HELD_OUT).replace("_", " "): format_number(value)
        for line in lines
        for name, value in line.items()
        if name.startswith(_HELD_OUT) and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


class Picture(NamedTuple):
    """A picture or film of a final agent, in a run's folder; `file` is its path beside the page."""

    caption: str
    source: pathlib.Path
    file: str


def find_pictures(name: str, merged: Evaluation) -> dict[str, list[Picture]]:
    """Return the pictures and films in runs' folders by task; damaged ones are left out.

    Their files beside the page begin with `name`, the evaluation's.
    """
    found: dict[str, list[Picture]] = {}
    number = itertools.count()
    for task, contender in itertools.product(merged.tasks, merged.shown):
        for seed, folder in _folders(merged, contender.name, task).items():
            for path in storage.picture_files(folder):
                try:
                    what = _caption(path)
                except OSError as error:
                    _log.warning("%s is left out: %s", path, error)
                    continue
                caption = ", ".join(filter(None, (contender.name, f"seed {seed}", what)))
                file = f"{FOLDER}/{file_name(name)}_{next(number)}{path.suffix}"
                found.setdefault(task, []).append(Picture(caption, path, file))
    return found


def _caption(path: pathlib.Path) -> str:
    """Return what a picture or a film shows; empty for an agent's only film.

    Raises:
      OSError: if it cannot be read, or does not begin as files of its suffix do.
    """
    suffix = path.suffix.lower()
    if suffix == ".png":
        return pictures.read_caption(files.read_bytes(path, files.MOST_DATA)) or path.stem
    with files.opened(path, files.MOST_DATA) as file:
        start = file.read(12)
    if not (start.startswith(b"GIF8") if suffix == ".gif" else start[4:8] == b"ftyp"):
        raise OSError(f"it is not a {path.suffix} film")
    return "" if path.stem == "film" else path.stem

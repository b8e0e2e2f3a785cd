"""The probes of a discovery in its folder, which `launch.support.rules` makes.

probes/00000100/rule.npz      the average rule after 100 meta-steps
probes/00000100/score.json    its score, and that of each task
probes/00000100/runs/         the runs of the fresh agents, as in an evaluation
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disco_common.json_lines import read_object

FOLDER, RULE, SCORE = "probes", "rule.npz", "score.json"


class Probe(NamedTuple):
    """A finished probe.

    Attributes:
      meta_step: of the rule.
      score: mean over the tasks.
      tasks: score on each task, by name.
      rule: the file of the rule.
    """

    meta_step: int
    score: float
    tasks: Mapping[str, float]
    rule: pathlib.Path


def read(folder: pathlib.Path) -> list[Probe]:
    """Return the finished probes of a discovery, in order.

    Args:
      folder: its workdir.

    Raises:
      ValueError: naming the file, if one is damaged.
    """
    return [read_one(file.parent) for file in sorted((folder / FOLDER).glob(f"*/{SCORE}"))]


def best(probes: Sequence[Probe]) -> Probe | None:
    """Return the probe with the highest score, of equal ones the latest; None of none."""
    return max(probes, key=lambda probe: (probe.score, probe.meta_step), default=None)


def read_one(folder: pathlib.Path) -> Probe:
    """Return the probe in a folder of its own; raises as `read`."""
    file = folder / SCORE
    found = read_object(file)
    step, score, tasks = (found.get(name) for name in ("meta_step", "score", "tasks"))
    if not (
        isinstance(step, int)
        and isinstance(score, int | float)
        and isinstance(tasks, dict)
        and all(map(_is_finite, (score, *tasks.values())))
    ):
        raise ValueError(f"{file} is {found!r:.80}; expected meta_step, score and tasks.")
    return Probe(step, float(score), tasks, folder / RULE)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

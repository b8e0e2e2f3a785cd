"""The metrics that an agent logs as it learns, in panels: `metrics.jsonl` in a run's folder.

Which metrics are shown, and with which, follows from their names alone, so that any agent that
calls its metrics as others do is shown as they are. With several kinds of updates a name begins
with the kind (`training.records.name_by_kind`), and each kind has panels of its own.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluation.report.merging import MergedEvaluation
from evaluation.report.texts import format_number
from training.records import STEPS

_MAX_POINTS = 100  # Of a curve.
_HELD_OUT = "held_out/"  # Begins the names of metrics on new episodes, after training.

Panels = Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[float]]]]
"""By a panel's title and a metric's name, environment steps and values."""


class Group(NamedTuple):
    """Metrics that share a panel.

    Attributes:
      title: of the panel.
      names: matches a metric's whole name, without its kind.
      caption: what the metrics are.
    """

    title: str
    names: re.Pattern[str]
    caption: str


GROUPS = (
    Group(
        "losses",
        re.compile(r"loss(/.+)?|\w+_loss"),
        "what the updates decrease (loss), and its parts.",
    ),
    Group(
        "use of the codebook",
        re.compile(r"codes_\w+"),
        "codes_used is the number of codes among a batch's tokens, codes_perplexity the exponential"
        " of their entropy (how many equally frequent codes would be as diverse), codes_dead the"
        " number of codes that no recent batch used.",
    ),
    Group(
        "use of the latents",
        re.compile(r"kl|latents_used|(prior|posterior)_entropy"),
        "the divergence of the prior from the posterior (kl), their entropies, and the share of the"
        " latents' classes that a batch uses (latents_used).",
    ),
)
"""The panels of each kind of updates, in their order. Metrics of no group are not shown."""


@dataclasses.dataclass(frozen=True)
class AgentMetrics:
    """What an agent logged.

    Attributes:
      tasks: the panels of the first run on each task that has any.
      held_out: rows of a table: on these tasks, the metrics on new episodes, if there are any.
      captions: of the panels' groups, by title.
    """

    tasks: Mapping[str, Panels]
    held_out: Sequence[Mapping[str, str]]
    captions: Mapping[str, str]


def agent_metrics(merged: MergedEvaluation, contender: str) -> AgentMetrics:
    """Return what a contender's agent logged in an evaluation.

    Args:
      merged: the evaluation.
      contender: its name.
    """
    tasks, held_out = {}, []
    for task in merged.tasks:
        by_seed = (merged.metrics(contender, task, seed) for seed in merged.seeds)
        lines = next(filter(None, by_seed), [])
        if panels := _panels(lines):
            tasks[task] = panels
            if measured := _held_out(lines):
                held_out.append({"task": task, **measured})
    titles = {title for panels in tasks.values() for title in panels}
    shown = [x for x in GROUPS if any(title.endswith(x.title) for title in titles)]
    captions = {x.title: x.caption for x in shown}
    return AgentMetrics(tasks, held_out, captions)


def _panels(lines: Sequence[Mapping[str, Any]]) -> Panels:
    """Return the curves of a run's metrics, in the order in which their kinds are logged first."""
    names = dict.fromkeys(name for line in lines for name in line)
    kinds = dict.fromkeys(kind for name in names if (kind := _kind_and_group(name)[0]) is not None)
    panels: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for kind in kinds:
        for group in GROUPS:
            title = f"{kind.replace('_', ' ')}: {group.title}" if kind else group.title
            for name in names:
                if _kind_and_group(name) == (kind, group):
                    curve = _curve(lines, name)
                    if curve[0]:
                        panels.setdefault(title, {})[name.removeprefix(f"{kind}/")] = curve
    return panels


def _kind_and_group(name: str) -> tuple[str, Group] | tuple[None, None]:
    """Return a metric's kind of updates, empty without several, and its group."""
    if name.startswith(_HELD_OUT):
        return None, None
    kind, _, rest = name.partition("/")
    for before, own in (("", name), (kind, rest)):
        for group in GROUPS:
            if group.names.fullmatch(own):
                return before, group
    return None, None


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values where both are finite numbers, thinned out evenly."""
    points = [
        (line[STEPS], line[name])
        for line in lines
        if _is_number(line.get(STEPS)) and _is_number(line.get(name))
    ]
    kept = np.unique(np.linspace(0, len(points) - 1, _MAX_POINTS).round().astype(int))
    chosen = [points[i] for i in kept] if points else []
    return [int(steps) for steps, _ in chosen], [float(f"{value:.5g}") for _, value in chosen]


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

"""A discovery on disk: the metrics that it logs at some meta-steps, and its probes.

metrics.jsonl                 its metrics (`meta.run`)
probes/00000100/rule.npz      the average rule after 100 meta-steps
probes/00000100/score.json    the score of fresh agents that learned by it, and that of each task
probes/00000100/runs/         their runs, as in an evaluation

`launch.support.discovery_rules.Probes` makes the probes.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disco_common.json_lines import JsonLines, read_object

METRICS = "metrics.jsonl"
PROBES, RULE, SCORE = "probes", "rule.npz", "score.json"
PROBE = "probe_score"  # In a record of metrics, the score of the probe at its meta-step.
# Fields of the metrics with the titles of their panels, of each kind of estimator
# (`meta.estimators`). A record has all of one kind.
_BY_KIND = (
    {
        "validation_reward": "meta-return: reward per validation step",
        "policy_entropy": "entropy of the agents' policies (nats)",
        "target_kl": "KL(target network || policy target)",
        "meta_gradient_norm": "norm of the agents' meta-gradients",
    },
    {
        "mean_return": "mean return of all candidates' agents",
        "update_norm": "norm of the change of the rule's parameters",
    },
)
PANELS = {name: title for panels in _BY_KIND for name, title in panels.items()}
_BY_AGENT = ("task", "validation_reward", "steps_since_reset")
_EXPECTED = (
    "a whole number as meta_step, numbers or null as"
    f" {' or as '.join(', '.join(panels) for panels in _BY_KIND)} and all others, and the"
    f" lists {', '.join(_BY_AGENT)} of one length in agents"
)
# Names of metrics in files of earlier versions.
_RENAMED = {
    "meta_return": "validation_reward",
    "reborn_agents": "num_resets",
    "life_steps": "steps_since_reset",
}


class Probe(NamedTuple):
    """A finished probe: the mean score over the tasks, that on each, and the file of the rule."""

    meta_step: int
    score: float
    tasks: Mapping[str, float]
    rule: pathlib.Path


class Discovery(NamedTuple):
    """A discovery run on disk.

    Attributes:
      name: for headings.
      config: its settings, JSON values.
      metrics: see `read_metrics`; at least one record.
      problems: sentences on records that are ignored.
    """

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    problems: Sequence[str] = ()


def read_discovery(folder: pathlib.Path) -> Discovery:
    """Return the discovery in a workdir.

    Raises:
      ValueError: naming the file, if there are no metrics or no config that can be read.
      OSError: if the metrics cannot be read.
    """
    metrics, problems = read_metrics(folder)
    if not metrics:
        which = f" that can be read: {problems[0].rstrip('.')}" if problems else ""
        raise ValueError(f"{folder / METRICS} has no report{which}; expected at least one.")
    try:
        config = read_object(folder / "config.json")
    except (OSError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{str(folder)!r} has no config that can be read: {reason}.") from error
    return Discovery(folder.name, config, metrics, problems)


def read_probes(folder: pathlib.Path) -> list[Probe]:
    """Return the finished probes in a discovery's workdir, in order; raises as `read_probe`."""
    return [read_probe(file.parent) for file in sorted((folder / PROBES).glob(f"*/{SCORE}"))]


def best_probe(probes: Sequence[Probe]) -> Probe | None:
    """Return the probe with the highest score, of equal ones the latest; None of none."""
    return max(probes, key=lambda probe: (probe.score, probe.meta_step), default=None)


def read_probe(folder: pathlib.Path) -> Probe:
    """Return the probe in a folder of its own.

    Raises:
      ValueError: naming the file, if it is damaged.
    """
    file = folder / SCORE
    found = read_object(file)
    step, score, tasks = (found.get(name) for name in ("meta_step", "score", "tasks"))
    if not (
        isinstance(step, int)
        and isinstance(score, int | float)
        and isinstance(tasks, dict)
        and all(isinstance(x, int | float) and math.isfinite(x) for x in (score, *tasks.values()))
    ):
        raise ValueError(f"{file} is {found!r:.80}; expected meta_step, score and tasks.")
    return Probe(step, float(score), tasks, folder / RULE)


def read_metrics(folder: pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the metrics that a discovery has logged so far, and the problems of its file.

    Returns:
      The metrics (see `meta.run`), a record for each line of the file, with the score of the probe
      at that meta-step, if there is one, as `probe_score`; and a sentence for each line that is
      ignored because it is damaged or still being written, and if a probe is damaged.

    Raises:
      OSError: if the file cannot be read; the message names it.
    """
    lines = JsonLines(folder / METRICS)
    objects, problems = lines.read_undamaged()
    records = []
    for number, found in objects.items():
        record = _with_present_names(found)
        if _is_whole(record):
            records.append(record)
        else:
            problems.append(lines.problem(number, _EXPECTED))
    try:
        scores = {probe.meta_step: probe.score for probe in read_probes(folder)}
    except ValueError as error:
        scores = {}
        problems.append(str(error))
    for record in records:
        if record["meta_step"] in scores:
            record[PROBE] = scores[record["meta_step"]]
    return records, problems


def _with_present_names(record: Mapping[str, Any]) -> dict[str, Any]:
    named = {_RENAMED.get(name, name): value for name, value in record.items()}
    if isinstance(named.get("agents"), dict):
        named["agents"] = _with_present_names(named["agents"])
    return named


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Return whether a record has all that is shown of it (`_EXPECTED`)."""
    agents = record.get("agents")
    columns = [agents.get(name) for name in _BY_AGENT] if isinstance(agents, dict) else [None]
    lists = [x for x in columns if isinstance(x, list)]
    if len(lists) < len(columns) or len({len(x) for x in lists}) != 1:
        return False
    numbers = [x for name, x in record.items() if name != "agents"]
    return (
        isinstance(record.get("meta_step"), int)
        and any({*panels} <= {*record} for panels in _BY_KIND)
        and all(x is None or isinstance(x, int | float) for x in (*numbers, *lists[1]))
        and all(isinstance(x, int) for x in lists[2])
    )

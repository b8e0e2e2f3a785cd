"""The metrics that a discovery logs at some meta-steps: `metrics.jsonl` in its folder."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disco_common.json_lines import JsonLines
from evaluation.report import probe_scores
from evaluation.report.discovery_plots import DISCOVERY_PANELS, PROBE
from evaluation.report.probe_scores import Probe

FILE = "metrics.jsonl"
# Names of metrics in files of earlier versions.
_RENAMED = {
    "meta_return": "validation_reward",
    "reborn_agents": "num_resets",
    "life_steps": "steps_since_reset",
}
_BY_AGENT = ("task", "validation_reward", "steps_since_reset")


class Discovery(NamedTuple):
    """A discovery run on disk.

    Attributes:
      name: for headings.
      config: its settings, JSON values.
      metrics: the records of its `metrics.jsonl`, at least one.
      problems: sentences on records that are ignored.
      probes: the scores of fresh agents, in order.
    """

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    problems: Sequence[str] = ()
    probes: Sequence[Probe] = ()

    @property
    def probe_budget(self) -> int | None:
        """Environment steps of the fresh agents; None of a discovery without probes."""
        found = self.config.get("probe")
        budget = found.get("budget") if isinstance(found, dict) else None
        return budget if isinstance(budget, int) else None


def read_metrics(folder: pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the metrics that a discovery has logged so far, and the problems of its file.

    Args:
      folder: of the discovery.

    Returns:
      The metrics (see `meta.run`), a record for each line of the file, with the score of the probe
      at that meta-step, if there is one, as `probe_score`; and a sentence for each line that is
      ignored because it is damaged or still being written, and if a probe is damaged.

    Raises:
      OSError: if the file cannot be read; the message names it.
    """
    lines = JsonLines(folder / FILE)
    objects, problems = lines.read_undamaged()
    records = []
    for number, found in objects.items():
        record = _with_present_names(found)
        if expected := _what_is_expected(record):
            problems.append(lines.problem(number, expected))
        else:
            records.append(record)
    try:
        scores = {probe.meta_step: probe.score for probe in probe_scores.read(folder)}
    except ValueError as error:
        problems.append(str(error))
        return records, problems
    for record in records:
        if record["meta_step"] in scores:
            record[PROBE] = scores[record["meta_step"]]
    return records, problems


def _with_present_names(record: Mapping[str, Any]) -> dict[str, Any]:
    named = {_RENAMED.get(name, name): value for name, value in record.items()}
    if isinstance(named.get("agents"), dict):
        named["agents"] = _with_present_names(named["agents"])
    return named


def _what_is_expected(record: Mapping[str, Any]) -> str:
    """Return what a record lacks; empty if it has all that is shown of it."""
    if not isinstance(record.get("meta_step"), int):
        return "a whole number as 'meta_step'"
    for name in DISCOVERY_PANELS:
        if name not in record:
            return f"a number or null as {name!r}"
    for name, value in record.items():
        if name != "agents" and not _is_number(value):
            return f"a number or null as {name!r}, found {value!r}"
    agents = record.get("agents")
    columns = [agents.get(name) for name in _BY_AGENT] if isinstance(agents, dict) else []
    lists = [x for x in columns if isinstance(x, list)]
    if len(lists) < len(_BY_AGENT) or len({len(x) for x in lists}) != 1:
        return f"the lists {', '.join(_BY_AGENT)} of one length in 'agents'"
    _, returns, steps = lists
    if not all(map(_is_number, returns)) or not all(isinstance(x, int) for x in steps):
        return "numbers in the lists of 'agents'"
    return ""


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)

"""A discovery's reports on disk: `metrics.jsonl` in its folder, one of `meta.run` on each line."""

import pathlib
from collections.abc import Mapping
from typing import Any

from common.json_lines import JsonLines
from evaluation.plots import DISCOVERY_PANELS

FILE = "metrics.jsonl"
_BY_AGENT = ("task", "meta_return", "life_steps")


def read(folder: pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads what a discovery reported so far.

    Args:
      folder: of the discovery.

    Returns:
      The reports, and a sentence on each line that is damaged, or being written, and left out.

    Raises:
      OSError: naming the file, if it cannot be read.
    """
    lines = JsonLines(folder / FILE)
    objects, problems = lines.read_undamaged()
    reports = []
    for number, report in objects.items():
        if expected := _expected(report):
            problems.append(lines.problem(number, expected))
        else:
            reports.append(report)
    return reports, problems


def _expected(report: Mapping[str, Any]) -> str:
    """What a report should have and has not; empty if it has all that is shown of it."""
    if not isinstance(report.get("meta_step"), int):
        return "a whole number as 'meta_step'"
    for name in DISCOVERY_PANELS:
        if name not in report:
            return f"a number or null as {name!r}"
    for name, value in report.items():
        if name != "agents" and not _is_number(value):
            return f"a number or null as {name!r}, found {value!r}"
    agents = report.get("agents")
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

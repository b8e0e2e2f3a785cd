"""Fixed scales: what score on a task becomes 0, and what becomes 1.

0 is the random policy's score. 1 is the optimum where the task has few enough states to solve it,
otherwise the best of long runs of tuned contenders. Both are constants: no evaluation estimates its
own scale, whose error its intervals would not have. `launch.references` makes a table of them:

{"format": 1,
 "tasks": {"grid_heldout/cliff": {
    "fingerprint": "5d…",       of the task's arrays and dynamics
    "random": -0.46, "random_error": 0.0,
    "reference": 1.0, "reference_error": 0.0,
    "budget": null,             environment steps of the evaluations that it is for; null for all
    "origin": "optimum, by dynamic programming over 576 states"}}}
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from environments import Environment

SHIPPED = pathlib.Path(__file__).parent / "references.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Reference:
    """The scale of the scores on a task.

    Attributes:
      fingerprint: of the task (`fingerprint`).
      random: the random policy's score, which becomes 0.
      reference: the score that becomes 1.
      budget: environment steps of the evaluations whose scores it is for; None for all.
      origin: how the two scores were found.
      random_error: standard error of `random`; 0 if it is exact.
      reference_error: likewise of `reference`.
    """

    fingerprint: str
    random: float
    reference: float
    budget: int | None
    origin: str
    random_error: float = 0.0
    reference_error: float = 0.0


def fingerprint(task: Environment) -> str:
    """Return a hash of a task's dynamics, and of its arrays or its file.

    A host environment's is that of its name: it says nothing of the engine's version.
    """
    digest = hashlib.sha256(task.name.encode(errors="surrogateescape"))
    if task.sha256:
        digest.update(task.sha256.encode())
    if not task.is_host:
        digest.update(repr(task.dynamics).encode())
        for path, leaf in jax.tree.flatten_with_path(task.params)[0]:
            array = np.asarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def write(path: pathlib.Path, references: Mapping[str, Reference]) -> None:
    """Write a table.

    Raises:
      OSError: if it cannot be written.
    """
    tasks = {name: dataclasses.asdict(x) for name, x in references.items()}
    found = {"format": _FORMAT, "tasks": tasks}
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def read(path: pathlib.Path) -> dict[str, Reference]:
    """Return the references in a table, by task.

    Raises:
      OSError: if it cannot be read.
      ValueError: naming the file and the task, if it is of another version or damaged.
    """
    found = read_object(path)
    if found.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {found.get('format')!r:.50}; expected {_FORMAT}, a table that this"
            " version's launch.references wrote."
        )
    tasks = found.get("tasks")
    if not isinstance(tasks, dict):
        raise ValueError(f"{path}: 'tasks' is {tasks!r:.50}; expected references by task.")
    return {name: _reference(entry, f"{path}: {name}") for name, entry in tasks.items()}


def _reference(entry: Any, where: str) -> Reference:
    names = [field.name for field in dataclasses.fields(Reference)]
    if not isinstance(entry, dict) or sorted(entry) != sorted(names):
        raise ValueError(f"{where} is {entry!r:.80}; expected {', '.join(names)}.")
    for name in ("random", "reference", "random_error", "reference_error"):
        value = entry[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ValueError(f"{where}: {name} is {value!r:.50}; expected a finite number.")
    if not entry["reference"] > entry["random"]:
        raise ValueError(
            f"{where}: the reference is {entry['reference']:g}; expected more than the random"
            f" policy's {entry['random']:g}."
        )
    budget = entry["budget"]
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool)):
        raise ValueError(f"{where}: budget is {budget!r:.50}; expected a number of steps or null.")
    for name in ("fingerprint", "origin"):
        if not isinstance(entry[name], str):
            raise ValueError(f"{where}: {name} is {entry[name]!r:.50}; expected text.")
    return Reference(**entry)


@functools.cache
def shipped() -> Mapping[str, Reference]:
    """Return the table that comes with this package; raises as `read`."""
    return read(SHIPPED)


def of_tasks(
    tasks: Sequence[Environment], budget: int, table: Mapping[str, Reference]
) -> tuple[dict[str, Reference], dict[str, str]]:
    """Return the references that fit an evaluation, and why others do not.

    Args:
      tasks: of the evaluation.
      budget: its environment steps.
      table: references by task.

    Returns:
      By task's name, references; and for each other task the reason.
    """
    found, reasons = {}, {}
    for task in tasks:
        if reason := _misfit(task, budget, table.get(task.name)):
            reasons[task.name] = reason
        else:
            found[task.name] = table[task.name]
    return found, reasons


def require_fit(
    tasks: Sequence[Environment],
    budget: int,
    table: Mapping[str, Reference],
    path: pathlib.Path,
) -> None:
    """Refuse a table that has a task in another version, or for another budget.

    Raises:
      ValueError: naming the file, the task, what was found and what was expected.
    """
    _, reasons = of_tasks([task for task in tasks if task.name in table], budget, table)
    for name, reason in reasons.items():
        raise ValueError(f"{path}: on {name}, {reason}.")


def _misfit(task: Environment, budget: int, reference: Reference | None) -> str:
    """Return why a reference does not fit; empty if it does."""
    if reference is None:
        return "there is no reference score (launch.references makes them)"
    if reference.fingerprint != fingerprint(task):
        return (
            f"the reference score is of another version of the task (fingerprint"
            f" {reference.fingerprint:.12}, expected {fingerprint(task):.12})"
        )
    if reference.budget not in (None, budget):
        return (
            f"the reference score is for a budget of {reference.budget:,} environment steps,"
            f" expected {budget:,}"
        )
    return ""

"""Scales on which scores on different tasks can be compared.

Three scales are known:

- from the random policy (0) to a reference (1): the optimum where the task has few enough states to
  solve it, otherwise the best of long runs of tuned contenders. Both are constants: no evaluation
  estimates its own scale, whose error its intervals would not have;
- from the random policy (0) to a human (1), by the scores that papers report, if they report both
  on every task; of several papers, one whose references normalise others' scores counts;
- from the random policy (0) to the human world record (1), with scores capped at 2, likewise: SABER
  (Toromanoff et al. 2019, arXiv 1908.04683).

`launch.references` makes a table of the references:

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
import pathlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from disco_common.configuration import from_config
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from environments import Environment
from evaluation.published import (
    HUMAN,
    RANDOM,
    RECORD,
    PublishedScore,
    published_scores,
    published_tables,
)
from evaluation.scoring import statistics

SHIPPED = pathlib.Path(__file__).parent / "references.json"
_FORMAT = 1
_LOWEST = -1.0  # Of bounded scores.


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
    """Write a table; raises OSError if it cannot be written."""
    tasks = {name: dataclasses.asdict(x) for name, x in references.items()}
    found = {"format": _FORMAT, "tasks": tasks}
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def read(path: pathlib.Path) -> dict[str, Reference]:
    """Return the references in a table, by task.

    Raises:
      OSError, ValueError: naming the file and the task, if it cannot be read, is of another version
        or damaged.
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
    references = {}
    for name, entry in tasks.items():
        entry = ConfigDict(entry) if isinstance(entry, dict) else entry
        one = references[name] = from_config(Reference, entry, f"{path}: {name}")
        if not one.reference > one.random:
            raise ValueError(
                f"{path}: {name}: the reference is {one.reference:g}; expected more than the random"
                f" policy's {one.random:g}."
            )
    return references


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
    reasons = {task.name: _misfit(task, budget, table.get(task.name)) for task in tasks}
    found = {name: table[name] for name, reason in reasons.items() if not reason}
    return found, {name: reason for name, reason in reasons.items() if reason}


def require_fit(
    tasks: Sequence[Environment], budget: int, table: Mapping[str, Reference], path: pathlib.Path
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
    if reference.fingerprint != (expected := fingerprint(task)):
        return (
            f"the reference score is of another version of the task (fingerprint"
            f" {reference.fingerprint:.12}, expected {expected:.12})"
        )
    if reference.budget not in (None, budget):
        return (
            f"the reference score is for a budget of {reference.budget:,} environment steps,"
            f" expected {budget:,}"
        )
    return ""


def normalize(
    scores: Float[np.ndarray, "*s tasks runs"],
    low: Float[np.ndarray, "tasks"],
    high: Float[np.ndarray, "tasks"],
    cap: float = np.inf,
) -> Float[np.ndarray, "*s tasks runs"]:
    """Return scores mapped linearly from each task's [low, high] to [0, 1], and capped."""
    return np.minimum((scores - low[:, None]) / (high - low)[:, None], cap)


def bounded(normalized: Float[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """Return normalised scores of at least -1, so that one bad task does not decide a mean.

    A missing one, which is NaN, counts as -1.
    """
    return np.where(np.isnan(normalized), _LOWEST, np.maximum(normalized, _LOWEST))


def by_references(
    scores: Float[np.ndarray, "tasks runs"], known: Sequence[Reference]
) -> Float[np.ndarray, "tasks"]:
    """Return each task's mean score from the random policy's (0) to the reference's (1), bounded.

    `known` has each task's reference. Scores are NaN where a run is missing.
    """
    low, high = (np.array([getattr(x, end) for x in known]) for end in ("random", "reference"))
    return bounded(statistics.mean(normalize(scores, low, high)))


@dataclasses.dataclass(frozen=True)
class Scale:
    """A normalisation of the scores on some tasks.

    Attributes:
      name: for headings.
      definition: one sentence.
      low: on each task, the score that becomes 0; NaN where the scale is not defined.
      high: likewise the score that becomes 1.
      cap: upper bound of a normalised score.
    """

    name: str
    definition: str
    low: Float[np.ndarray, "tasks"]
    high: Float[np.ndarray, "tasks"]
    cap: float = np.inf

    @property
    def counted(self) -> Bool[np.ndarray, "tasks"]:
        """The tasks on which the scale is defined."""
        return np.isfinite(self.low)

    def normalize(self, scores: Float[np.ndarray, "tasks *s"]) -> Float[np.ndarray, "counted *s"]:
        """Return normalised scores, of the counted tasks only."""
        kept = self.counted
        return normalize(scores[kept], self.low[kept], self.high[kept], self.cap)


def reference_scale(
    tasks: Sequence[str],
    references: Mapping[str, Reference],
    counted: Bool[np.ndarray, "tasks"],
) -> Scale:
    """Return the scale from the random policy's to the reference score.

    `references`, by task, has at least the tasks to count.
    """
    used = [references[task] for task, counts in zip(tasks, counted, strict=True) if counts]
    optimal = sum(x.budget is None for x in used)
    low, high = np.full((2, len(tasks)), np.nan)
    low[counted], high[counted] = [x.random for x in used], [x.reference for x in used]
    return Scale(
        name="Normalised by the reference",
        definition="0 is the random policy's score, 1 the reference: the optimum on"
        f" {optimal} tasks, the best of long runs on {len(used) - optimal}. Both are constants."
        f" Over {len(used)} of {len(tasks)} tasks.",
        low=low,
        high=high,
    )


def published_scales(tasks: Sequence[str]) -> list[Scale]:
    """Return the human-normalised scale and SABER, each if papers define it on all tasks."""
    scales = []
    for name, reference, cap in (("Human-normalised", HUMAN, np.inf), ("SABER", RECORD, 2.0)):
        pairs = [pair for task in tasks if (pair := reference_scores(task, reference))]
        if len(pairs) < len(tasks):
            continue
        low, high = np.array([[x.score for x in pair] for pair in pairs]).T
        sources = " and ".join(dict.fromkeys(score.source for score, _ in pairs))
        capped = "" if np.isinf(cap) else f", and no score is above {cap:g}"
        definition = (
            f"0 is a random policy's score, 1 the {reference.lower()}'s{capped}, as reported by"
            f" {sources}; over {len(pairs)} tasks."
        )
        scales.append(Scale(name, definition, low, high, cap))
    return scales


def reference_scores(task: str, reference: str) -> tuple[PublishedScore, PublishedScore] | None:
    """Return random's and the reference's (`HUMAN` or `RECORD`) score on a task.

    They are of the first paper whose references normalise the scores of other ones, or else of the
    first paper that reports both; None if no paper does.
    """
    by_source: dict[str, dict[str, PublishedScore]] = {}
    for score in published_scores(task):
        by_source.setdefault(score.source, {})[score.agent] = score
    complete = {name: x for name, x in by_source.items() if RANDOM in x and reference in x}
    if not complete:
        return None
    used_by_others = {table.references for table in published_tables()}
    best = complete[max(complete, key=lambda source: source in used_by_others)]
    return best[RANDOM], best[reference]

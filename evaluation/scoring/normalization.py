"""Normalised scores: scales on which scores on different tasks can be compared.

Three scales are known:

- from the random policy (0) to a reference (1), both constants: the optimum, or the best of long
  runs (`evaluation.scoring.references`);
- from the random policy (0) to a human (1), by the scores that papers report, if they report both
  on every task; of several papers, one whose references normalise others' scores counts;
- from the random policy (0) to the human world record (1), with scores capped at 2, likewise: SABER
  (Toromanoff et al. 2019, arXiv 1908.04683).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from evaluation.published import (
    HUMAN,
    RANDOM,
    RECORD,
    PublishedScore,
    published_scores,
    published_tables,
)
from evaluation.scoring import statistics
from evaluation.scoring.references import Reference

_LOWEST = -1.0


def normalize(
    scores: Float[np.ndarray, "*s tasks runs"],
    low: Float[np.ndarray, "tasks"],
    high: Float[np.ndarray, "tasks"],
    cap: float = np.inf,
) -> Float[np.ndarray, "*s tasks runs"]:
    """Return scores mapped linearly from [low, high] to [0, 1], and capped.

    Args:
      scores: NaN where a run is missing.
      low: on each task, the score that becomes 0.
      high: on each task, the score that becomes 1.
      cap: upper bound of a normalised score.
    """
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

    Args:
      scores: NaN where a run is missing.
      known: each task's.
    """
    low, high = (np.array([getattr(x, end) for x in known]) for end in ("random", "reference"))
    return bounded(statistics.mean(normalize(scores, low, high)))


@dataclasses.dataclass(frozen=True)
class Scale:
    """A normalisation of the scores on some tasks.

    Attributes:
      name: for headings.
      definition: one sentence.
      counted: the tasks on which the scale is defined.
      low: on each counted task, the score that becomes 0.
      high: on each counted task, the score that becomes 1.
      cap: upper bound of a normalised score.
    """

    name: str
    definition: str
    counted: Bool[np.ndarray, "tasks"]
    low: Float[np.ndarray, "counted"]
    high: Float[np.ndarray, "counted"]
    cap: float = np.inf

    def normalize(
        self, scores: Float[np.ndarray, "counted runs"]
    ) -> Float[np.ndarray, "counted runs"]:
        """Return normalised scores, of the counted tasks only."""
        return normalize(scores, self.low, self.high, self.cap)

    def normalize_one(self, score: float, task: int) -> float:
        """Return one normalised score; NaN if the task is not counted.

        Args:
          score: on the task.
          task: index of the task among all tasks.
        """
        if not self.counted[task]:
            return np.nan
        place = int(np.sum(self.counted[:task]))
        bounds = slice(place, place + 1)
        values = normalize(np.array([[score]]), self.low[bounds], self.high[bounds], self.cap)
        return float(values[0, 0])


def reference_scale(
    tasks: Sequence[str],
    references: Mapping[str, Reference],
    counted: Bool[np.ndarray, "tasks"],
) -> Scale:
    """Return the scale from the random policy's to the reference score.

    Args:
      tasks: names.
      references: by task; of the counted ones at least.
      counted: the tasks to count.
    """
    used = [references[task] for task, counts in zip(tasks, counted, strict=True) if counts]
    optimal = sum(x.budget is None for x in used)
    return Scale(
        name="Normalised by the reference",
        definition="0 is the random policy's score, 1 the reference: the optimum on"
        f" {optimal} tasks, the best of long runs on {len(used) - optimal}. Both are constants."
        f" Over {len(used)} of {len(tasks)} tasks.",
        counted=counted,
        low=np.array([x.random for x in used]),
        high=np.array([x.reference for x in used]),
    )


def published_scales(tasks: Sequence[str]) -> list[Scale]:
    """Return the human-normalised scale and SABER, each if papers define it on all tasks."""
    candidates = (("Human-normalised", HUMAN, np.inf), ("SABER", RECORD, 2.0))
    return [
        scale
        for name, reference, cap in candidates
        if (scale := _published_scale(tasks, name, reference, cap)) is not None
    ]


def _published_scale(tasks: Sequence[str], name: str, reference: str, cap: float) -> Scale | None:
    pairs = [pair for task in tasks if (pair := reference_scores(task, reference))]
    if len(pairs) < len(tasks):
        return None
    low, high = (np.array([x.score for x in side]) for side in zip(*pairs, strict=True))
    sources = " and ".join(dict.fromkeys(score.source for score, _ in pairs))
    capped = "" if np.isinf(cap) else f", and no score is above {cap:g}"
    return Scale(
        name=name,
        definition=f"0 is a random policy's score, 1 the {reference.lower()}'s{capped}, as"
        f" reported by {sources}; over {len(pairs)} tasks.",
        counted=np.ones(len(pairs), bool),
        low=low,
        high=high,
        cap=cap,
    )


def reference_scores(task: str, reference: str) -> tuple[PublishedScore, PublishedScore] | None:
    """Return random's and the reference's score on a task.

    They are of the first paper whose references normalise the scores of other ones, or else of the
    first paper that reports both; None if no paper does.

    Args:
      task: name.
      reference: `HUMAN` or `RECORD`.
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

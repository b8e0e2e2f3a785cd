"""Coverage of the 95% intervals that an evaluation prints, and of rliable's.

    python -m benchmarks.coverage

Each repetition is a simulated evaluation on the tasks of `grid_heldout` or of gymnax, with the
means and spreads of `three_families` and of Muesli: normal scores around each task's mean, all or
nothing where a task's runs are. Of several discoveries each also has an effect of its own on all
tasks and one on each task. The tasks are given, or drawn anew for each evaluation; intervals over
seeds are for given tasks, those over tasks for others. What is covered is the mean of each number
over 20,000 evaluations. rliable's bootstrap has as many resamples.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from absl import app, flags, logging
from jaxtyping import Float
from rliable import library

from evaluation.scoring import over_tasks, statistics
from evaluation.scoring.statistics import Statistic

_REPETITIONS = flags.DEFINE_integer("repetitions", 1000, "Evaluations.", lower_bound=10)
_RESAMPLES = flags.DEFINE_integer("resamples", 500, "Resamples of each bootstrap.", lower_bound=10)

_TRUE = 20_000
_OF_A_RULE, _OF_A_RULE_ON_A_TASK = 0.03, 0.1  # Standard deviations of discoveries' effects.
_ALL_OR_NOTHING = 0.3  # Standard deviation above which a task is solved or not.


def _iqm_difference(
    scores: Float[np.ndarray, "*s tasks runs"], others: Float[np.ndarray, "*s tasks other_runs"]
) -> np.ndarray:
    iqm = statistics.interquartile_mean
    return np.asarray(iqm(scores) - iqm(others))


_OF_TWO = {
    "difference of means": statistics.difference_of_means,
    "difference of IQMs": _iqm_difference,
    "probability of improvement": statistics.probability_of_improvement,
}
STATISTICS: Mapping[str, Statistic] = {**statistics.AGGREGATES, **_OF_TWO}


# Of each task the mean and the standard deviation of the rule's runs, then of Muesli's, normalised
# (docs/measurements/contenders.md; on gymnax by the best mean where there is no optimum).
SPREAD: Mapping[str, str] = {
    "grid_heldout": """
        0.6 0.11 0.51 0.1, 0.69 0.02 0.62 0.09, 0.65 0.36 0.95 0.03, 0.77 0.15 0.78 0.02,
        0.98 0.02 0.19 0.46, 0.65 0.17 0.72 0.06, 0.99 0.01 1 0.01, 0.79 0.32 0.32 0,
        0.98 0.01 0.98 0.01, 0.01 0 0.42 0.51, 0.66 0.43 -0.01 0.38, 0.46 0.27 0.37 0.25,
        0.31 0.1 0.36 0.03, 0.74 0.17 0.86 0.02, 0.15 0.09 0.31 0.05, 0.98 0.01 0.99 0, 1 0 1 0,
        1 0 1 0, 1 0 1 0, 1 0 0.21 0.46, 0.91 0.02 0.99 0.02, 0.86 0.11 0.06 0.49, 1 0 1 0""",
    "gymnax": """
        0.82 0.14 0.62 0.26, 0 0.01 0.63 0.57, 0.98 0 0.99 0, 0.8 0.45 1 0, 0.02 0 0.01 0,
        0.18 0.07 0.59 0.23, 1 0 1 0, 1 0 0.12 0.77, 1 0.01 0.95 0.09, 0.82 0.26 1 0.03,
        0.99 0.06 0.67 0.15, 0.09 0.04 0.33 0.2""",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of simulated evaluation.

    Attributes:
      suite: whose tasks, with their spread of scores.
      runs: seeds of each rule and of the other contender.
      rules: discoveries; one is a rule that is no sample of anything.
      tasks: number of tasks, drawn anew for each evaluation; 0 for those of the suite, given.
    """

    suite: str
    runs: int
    rules: int = 1
    tasks: int = 0

    def draw(
        self, rng: np.random.Generator, number: int
    ) -> tuple[
        Float[np.ndarray, "number rules tasks runs"], Float[np.ndarray, "number tasks runs"]
    ]:
        """Return the scores of a number of evaluations: of rules, and of the other contender."""
        rows = [row.split() for row in SPREAD[self.suite].split(",")]
        spread = np.array(rows, float).reshape(-1, 2, 2)  # [tasks, contenders, 2]
        chosen = np.broadcast_to(spread, (number, *spread.shape))
        if self.tasks:
            chosen = spread[rng.integers(len(spread), size=(number, self.tasks))]
        own, others = chosen[:, :, 0], chosen[:, :, 1]
        means = np.repeat(own[:, None, :, 0], self.rules, axis=1)
        if self.rules > 1:
            means = means + _OF_A_RULE * rng.normal(size=(number, self.rules, 1))
            means = means + _OF_A_RULE_ON_A_TASK * rng.normal(size=means.shape)
        deviations = np.broadcast_to(own[:, None, :, 1], means.shape)
        around = functools.partial(_around, rng, self.runs)
        return around(means, deviations), around(others[..., 0], others[..., 1])


def _around(
    rng: np.random.Generator, runs: int, mean: np.ndarray, spread: np.ndarray
) -> Float[np.ndarray, "*s runs"]:
    shape = (*mean.shape, runs)
    often = np.clip(mean, 0.1, 0.9)[..., None]
    solved = (rng.uniform(size=shape) < often) - often
    two = solved / np.sqrt(often * (1.0 - often))
    noise = np.where(spread[..., None] > _ALL_OR_NOTHING, two, rng.normal(size=shape))
    return mean[..., None] + spread[..., None] * noise


def coverage(
    case: Case, repetitions: int, resamples: int, seed: int = 0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return how often 95% intervals over seeds, and over tasks, cover the true value.

    Args:
      case: kind of evaluation.
      repetitions: number of evaluations.
      resamples: of each bootstrap.
      seed: of the scores.

    Returns:
      The two, by statistic. With several discoveries the first intervals are over these.
    """
    rng = np.random.default_rng(seed)
    true = _true_values(case, rng)
    drawn = list(zip(*case.draw(rng, repetitions), strict=True))
    over_seeds, beyond = {}, {}
    for name, one in STATISTICS.items():
        ends = np.array(
            [
                statistics.estimate(
                    one,
                    list(own),
                    others if name in _OF_TWO else None,
                    resamples=resamples,
                    confidence=0.95,
                    seed=i,
                )[1:]
                for i, (own, others) in enumerate(drawn)
            ]
        ).reshape(-1, 2, 2)  # [evaluations, kinds of intervals, ends]
        covers = (ends[..., 0] <= true[name]) & (true[name] <= ends[..., 1])
        over_seeds[name], beyond[name] = np.mean(covers, axis=0).tolist()
    return over_seeds, beyond


def _true_values(case: Case, rng: np.random.Generator) -> dict[str, float]:
    values: dict[str, list[float]] = {name: [] for name in STATISTICS}
    for _ in range(_TRUE // 1000):
        own, others = case.draw(rng, 1000)
        joined = over_tasks.join(own)
        for name, one in STATISTICS.items():
            values[name].append(float(np.mean(one(joined, *[others] * (name in _OF_TWO)))))
    return {name: float(np.mean(x)) for name, x in values.items()}


def rliables_coverage(case: Case, repetitions: int, resamples: int) -> dict[str, float]:
    """Return how often rliable's intervals for given tasks cover the true mean and IQM."""
    rng = np.random.default_rng(0)
    np.random.seed(0)  # noqa: NPY002  rliable uses it.
    true, names = _true_values(case, rng), ("mean", "IQM")
    own, _ = case.draw(rng, repetitions)
    covered = []
    for scores in own[:, 0]:
        _, intervals = library.get_interval_estimates(
            {"": scores.T},
            lambda x: np.array([STATISTICS[name](x.T) for name in names]),
            reps=resamples,
            confidence_interval_size=0.95,
        )
        low, high = intervals[""]
        values = np.array([true[name] for name in names])
        covered.append((low <= values) & (values <= high))
    return dict(zip(names, np.mean(covered, axis=0), strict=True))


def main(argv: list[str]) -> None:
    """Print a line for each kind of evaluation."""
    del argv
    logging.set_verbosity(logging.WARNING)  # rliable logs every call.
    size = _REPETITIONS.value, _RESAMPLES.value
    given = [Case("grid_heldout", runs) for runs in (5, 10)]
    for case in given:
        _show(f"{case}, rliable's", rliables_coverage(case, *size))
    for case in (*given, *(Case("grid_heldout", 2, rules) for rules in (3, 5))):
        _show(f"{case}, over seeds", coverage(case, *size)[0])
    for suite, tasks in {"grid_heldout": 23, "gymnax": 15}.items():
        for runs, rules in ((3, 1), (5, 1), (3, 5)):
            case = Case(suite, runs, rules, tasks)
            for kind, covered in zip(("seeds", "tasks"), coverage(case, *size), strict=True):
                _show(f"{case}, over {kind}", covered)


def _show(what: str, covered: Mapping[str, float]) -> None:
    shown = ", ".join(f"{name} {100 * x:.1f}%" for name, x in covered.items())
    print(f"{what}: {shown}", flush=True)


if __name__ == "__main__":
    app.run(main)

"""Coverage of the intervals over tasks, seeds and discoveries, with the spread of real scores.

    python -m benchmarks.coverage_over_tasks

Each repetition draws tasks, then seeds, from the scores of `three_families` and of Muesli on the
tasks of `grid_heldout` (23 tasks) or of gymnax (15 tasks): normal ones around each task's mean, all
or nothing where a task's runs are. Of five discoveries each also has an effect of its own on all
tasks and one on each task. What is covered is the mean of each number over 20,000 draws of tasks
and seeds. The last lines are of intervals over seeds alone, which say nothing of other tasks.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from evaluation.scoring import over_tasks, statistics

_TRUE = 20_000
_SUITES = {"grid_heldout": 23, "gymnax": 15}
_OF_A_RULE, _OF_A_RULE_ON_A_TASK = 0.03, 0.1  # Standard deviations of discoveries' effects.
_ALL_OR_NOTHING = 0.3  # Standard deviation above which a task is solved or not.

_Scores = tuple[
    Float[np.ndarray, "number rules tasks runs"], Float[np.ndarray, "number tasks runs"]
]

# Of each task the mean and the standard deviation of the rule's runs, then of Muesli's, normalised
# (docs/measurements/contenders.md; on gymnax by the best mean where there is no optimum).
SPREAD: Mapping[str, Sequence[tuple[float, float, float, float]]] = {
    "grid_heldout": (
        (0.6, 0.11, 0.51, 0.1),
        (0.69, 0.02, 0.62, 0.09),
        (0.65, 0.36, 0.95, 0.03),
        (0.77, 0.15, 0.78, 0.02),
        (0.98, 0.02, 0.19, 0.46),
        (0.65, 0.17, 0.72, 0.06),
        (0.99, 0.01, 1, 0.01),
        (0.79, 0.32, 0.32, 0),
        (0.98, 0.01, 0.98, 0.01),
        (0.01, 0, 0.42, 0.51),
        (0.66, 0.43, -0.01, 0.38),
        (0.46, 0.27, 0.37, 0.25),
        (0.31, 0.1, 0.36, 0.03),
        (0.74, 0.17, 0.86, 0.02),
        (0.15, 0.09, 0.31, 0.05),
        (0.98, 0.01, 0.99, 0),
        (1, 0, 1, 0),
        (1, 0, 1, 0),
        (1, 0, 1, 0),
        (1, 0, 0.21, 0.46),
        (0.91, 0.02, 0.99, 0.02),
        (0.86, 0.11, 0.06, 0.49),
        (1, 0, 1, 0),
    ),
    "gymnax": (
        (0.82, 0.14, 0.62, 0.26),
        (0, 0.01, 0.63, 0.57),
        (0.98, 0, 0.99, 0),
        (0.8, 0.45, 1, 0),
        (0.02, 0, 0.01, 0),
        (0.18, 0.07, 0.59, 0.23),
        (1, 0, 1, 0),
        (1, 0, 0.12, 0.77),
        (1, 0.01, 0.95, 0.09),
        (0.82, 0.26, 1, 0.03),
        (0.99, 0.06, 0.67, 0.15),
        (0.09, 0.04, 0.33, 0.2),
    ),
}


def _iqm_difference(
    scores: Float[np.ndarray, "*s tasks runs"], others: Float[np.ndarray, "*s tasks other_runs"]
) -> np.ndarray:
    iqm = statistics.interquartile_mean
    return np.asarray(iqm(scores) - iqm(others))


STATISTICS: Mapping[str, tuple[Callable, bool, tuple[float, float]]] = {
    "IQM": (statistics.interquartile_mean, False, (-np.inf, np.inf)),
    "median": (statistics.median_over_tasks, False, (-np.inf, np.inf)),
    "mean": (statistics.mean_over_tasks, False, (-np.inf, np.inf)),
    "difference of means": (statistics.difference_of_means, True, (-np.inf, np.inf)),
    "difference of IQMs": (_iqm_difference, True, (-np.inf, np.inf)),
    "probability of improvement": (statistics.probability_of_improvement, True, (0.0, 1.0)),
}
"""The statistic, whether it is of two contenders, and its bounds, by name."""


def draw(suite: str, rng: np.random.Generator, number: int, rules: int, runs: int) -> _Scores:
    """Return the scores of a number of evaluations: of rules, and of what they are compared with.

    Args:
      suite: of `SPREAD`.
      rng: random generator.
      number: of evaluations.
      rules: discoveries; one is a rule that is no sample of anything.
      runs: seeds of each rule and of the other contender.
    """
    tasks = _SUITES[suite]
    chosen = np.array(SPREAD[suite])[rng.integers(len(SPREAD[suite]), size=(number, tasks))]

    def around(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
        shape = (*mean.shape, runs)
        often = np.clip(mean, 0.1, 0.9)[..., None]
        solved = (rng.uniform(size=shape) < often) - often
        two = solved / np.sqrt(often * (1.0 - often))
        noise = np.where(spread[..., None] > _ALL_OR_NOTHING, two, rng.normal(size=shape))
        return mean[..., None] + spread[..., None] * noise

    own = np.repeat(chosen[:, None, :, 0], rules, axis=1)
    if rules > 1:
        own = own + _OF_A_RULE * rng.normal(size=(number, rules, 1))
        own = own + _OF_A_RULE_ON_A_TASK * rng.normal(size=own.shape)
    spread = np.broadcast_to(chosen[:, None, :, 1], own.shape)
    return around(own, spread), around(chosen[..., 2], chosen[..., 3])


def coverage(
    suite: str, rules: int, runs: int, repetitions: int, resamples: int, seed: int = 0
) -> dict[str, float]:
    """Return how often 95% intervals over tasks cover the true value, by statistic.

    Args:
      suite: see `draw`.
      rules: see `draw`.
      runs: see `draw`.
      repetitions: number of evaluations.
      resamples: of each bootstrap.
      seed: of the scores.
    """
    rng = np.random.default_rng(seed)
    true = _true_values(suite, rng, rules, runs)
    own, others = draw(suite, rng, repetitions, rules, runs)
    options = {"resamples": resamples, "confidence": 0.95, "least": lambda _: 0.0}
    found = {}
    for name, (statistic, is_of_two, bounds) in STATISTICS.items():
        ends = [
            over_tasks.interval(
                statistic, x, [y] if is_of_two else [], seed=i, bounds=bounds, **options
            )
            for i, (x, y) in enumerate(zip(own, others, strict=True))
        ]
        found[name] = float(np.mean([low <= true[name] <= high for low, high in ends]))
    return found


def coverage_over_seeds(suite: str, runs: int, repetitions: int, resamples: int) -> float:
    """Return how often the interval over seeds covers the true difference of means."""
    rng = np.random.default_rng(0)
    true = _true_values(suite, rng, 1, runs)["difference of means"]
    ends = [
        statistics.interval(
            statistics.difference_of_means, x, y, resamples=resamples, confidence=0.95, seed=i
        )
        for i, ((x,), y) in enumerate(zip(*draw(suite, rng, repetitions, 1, runs), strict=True))
    ]
    return float(np.mean([low <= true <= high for low, high in ends]))


def _true_values(suite: str, rng: np.random.Generator, rules: int, runs: int) -> dict[str, float]:
    values: dict[str, list[float]] = {name: [] for name in STATISTICS}
    for _ in range(_TRUE // 1000):
        own, others = draw(suite, rng, 1000, rules, runs)
        joined = np.moveaxis(own, 1, 2).reshape(1000, own.shape[2], -1)
        for name, (statistic, is_of_two, _) in STATISTICS.items():
            beside = (others,) if is_of_two else ()
            values[name].append(float(np.mean(statistic(joined, *beside))))
    return {name: float(np.mean(x)) for name, x in values.items()}


def main() -> None:
    """Print a table: a row for each number, a column for each kind of evaluation."""
    cases = [(suite, 1, runs) for suite in _SUITES for runs in (3, 5)]
    cases += [(suite, 5, 3) for suite in _SUITES]
    columns = []
    for suite, rules, runs in cases:
        columns.append(coverage(suite, rules, runs, repetitions=4000, resamples=500, seed=7))
        kind = f"{rules} discoveries, " * (rules > 1)
        print(f"{suite}, {_SUITES[suite]} tasks, {kind}{runs} seeds", columns[-1], flush=True)
    for name in STATISTICS:
        cells = (f"{100 * x[name]:.1f}%" for x in columns)
        print(f"| {name} | {' | '.join(cells)} |")
    for suite in _SUITES:
        alone = coverage_over_seeds(suite, 5, repetitions=1000, resamples=500)
        print(f"{suite}, 5 seeds, over seeds alone, difference of means: {100 * alone:.1f}%")


if __name__ == "__main__":
    main()

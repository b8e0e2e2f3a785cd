"""Coverage of the confidence intervals of aggregate scores, ours and rliable's.

    python -m benchmarks.coverage

Scores of synthetic runs are normal; means and standard deviations differ between tasks. The true
value is the mean of the statistic over 20,000 sets of runs. Both bootstraps have the same number of
resamples.
"""

import time

import numpy as np
from absl import app, flags, logging
from rliable import library, metrics

from evaluation.scoring import statistics

_REPETITIONS = flags.DEFINE_integer("repetitions", 1000, "Sets of runs.", lower_bound=10)
_RESAMPLES = flags.DEFINE_integer("resamples", 2000, "Resamples of each bootstrap.", lower_bound=10)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the runs.")

_SIZES = ((20, 2), (20, 3), (20, 5), (20, 10), (57, 3), (5, 5))
_CONFIDENCE = 0.95
_STATISTICS = {
    "mean": (statistics.mean_over_tasks, metrics.aggregate_mean),
    "IQM": (statistics.interquartile_mean, metrics.aggregate_iqm),
}


def _ours(statistic, scores: np.ndarray, seed: int) -> tuple[float, float]:
    _, low, high = statistics.estimate(
        statistic, scores, resamples=_RESAMPLES.value, confidence=_CONFIDENCE, seed=seed
    )
    return low, high


def _rliables(statistic, scores: np.ndarray) -> tuple[float, float]:
    _, intervals = library.get_interval_estimates(
        {"": scores.T},
        lambda x: np.array([statistic(x)]),
        reps=_RESAMPLES.value,
        confidence_interval_size=_CONFIDENCE,
    )
    return intervals[""][0, 0], intervals[""][1, 0]


def main(argv: list[str]) -> None:
    """Print a line for each size and statistic."""
    del argv
    logging.set_verbosity(logging.WARNING)  # rliable logs every call.
    rng = np.random.default_rng(_SEED.value)
    np.random.seed(_SEED.value)  # noqa: NPY002  rliable uses it.
    for tasks, runs in _SIZES:
        centre, spread = rng.normal(size=(2, tasks, 1))
        draws = centre + spread * rng.normal(size=(20_000, tasks, runs))
        for name, (ours, rliables) in _STATISTICS.items():
            true = np.mean(ours(draws))
            began = time.perf_counter()
            found = [_ours(ours, x, i) for i, x in enumerate(draws[: _REPETITIONS.value])]
            middle = time.perf_counter()
            theirs = [_rliables(rliables, x) for x in draws[: _REPETITIONS.value]]
            seconds = (middle - began, time.perf_counter() - middle)
            covered = [100 * np.mean([lo <= true <= hi for lo, hi in x]) for x in (found, theirs)]
            print(
                f"{name}, {tasks} tasks, {runs} runs each: ours cover {covered[0]:.1f}%"
                f" ({seconds[0]:.1f} s), rliable's {covered[1]:.1f}% ({seconds[1]:.1f} s)",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)

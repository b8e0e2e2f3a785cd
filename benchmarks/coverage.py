"""Coverage of the intervals that an evaluation prints, and of rliable's.

    python -m benchmarks.coverage

Each repetition is a simulated evaluation: the scores of a rule's, a baseline's and the random
policy's runs on 20 tasks with reference scores, which go through `evaluation.scoring.summary` as
those of a real one do. On a third of the tasks runs succeed or fail, on the others their scores are
normal; means and spreads differ between tasks, and the rule's lie around those of discoveries that
differ. What is covered is the mean of each number over 20,000 evaluations. `n` discoveries are
evaluated with two seeds of each. rliable's bootstrap has as many resamples.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from absl import app, flags, logging
from jaxtyping import Float
from rliable import library, metrics

from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, RuleContender, make_contenders
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring import statistics
from evaluation.scoring.references import Reference
from evaluation.scoring.statistics import Estimate
from evaluation.scoring.summary import Summary, summarize

_REPETITIONS = flags.DEFINE_integer("repetitions", 1000, "Evaluations.", lower_bound=10)
_RESAMPLES = flags.DEFINE_integer("resamples", 2000, "Resamples of each bootstrap.", lower_bound=10)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the scores.")

_TASKS = 20
_TRUE = 20_000
_SEEDS = (5, 10)
_DISCOVERIES = (3, 5)
_RANDOM, _BASELINE = "random", "actor_critic"


class _Scores:
    """Random scores of runs, on tasks where 0 is the random policy and 1 the reference."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._means = {name: rng.uniform(0.2, 1.1, _TASKS) for name in ("rule", _BASELINE)}
        self._means[_RANDOM] = np.zeros(_TASKS)
        self._spread = rng.uniform(0.02, 0.4, _TASKS)
        self._all_or_nothing = np.arange(_TASKS) % 3 == 0
        self._between = rng.uniform(0.02, 0.2, _TASKS)  # Discoveries.

    def draw(self, name: str, number: int, runs: int) -> Float[np.ndarray, "number tasks runs"]:
        """Return the scores of runs in each of a number of evaluations."""
        return self._around(self._means[name], (number, _TASKS, runs))

    def draw_discoveries(
        self, number: int, rules: int, runs: int
    ) -> Float[np.ndarray, "number rules tasks runs"]:
        """Return the scores of runs by each of several discovered rules."""
        shift = self._between * self._rng.normal(size=(number, rules, _TASKS))
        common = 0.1 * self._rng.normal(size=(number, rules, 1))  # Of a rule on all tasks.
        return self._around(self._means["rule"] + shift + common, (number, rules, _TASKS, runs))

    def _around(self, means: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        means = means[..., None]
        normal = means + self._spread[:, None] * self._rng.normal(size=shape)
        succeeds = self._rng.uniform(size=shape) < np.clip(means, 0.05, 0.95)
        return np.where(self._all_or_nothing[:, None], succeeds.astype(float), normal)


def _curves(scores: Float[np.ndarray, "tasks runs"]) -> LearningCurves:
    ones = np.ones_like(scores)
    window = Episodes(count=ones, return_sum=scores)
    curve = Episodes(count=ones[..., None], return_sum=scores[..., None])
    return LearningCurves(np.array([1]), curve, window, {}, ones > 0, 0.0, 1.0, ("cpu",))


def _printed(summary: Summary, name: str) -> dict[str, Estimate]:
    """Return the numbers of a contender that are printed with intervals."""
    return {
        **summary.aggregates[name],
        "probability of improvement": summary.improvement[name, _BASELINE],
        "difference of means": summary.differences[name, _BASELINE],
    }


def _summarize(
    contenders: Sequence[Contender], scores: Mapping[str, np.ndarray], seeds: int, seed: int
) -> Summary:
    config = EvaluationConfig(seeds=seeds, seed=seed, resamples=_RESAMPLES.value)
    tasks = [str(i) for i in range(_TASKS)]
    references = {task: Reference("", 0.0, 1.0, None, "simulated") for task in tasks}
    curves = {name: _curves(x) for name, x in scores.items()}
    return summarize(tasks, contenders, curves, config, references)


def _true_values(
    scores: Float[np.ndarray, "number tasks runs"], others: Float[np.ndarray, "number tasks runs"]
) -> dict[str, float]:
    def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(statistics.mean_over_tasks(x) - statistics.mean_over_tasks(y))

    chunks = range(0, len(scores), 500)
    found: dict[str, list[np.ndarray]] = {}
    for i in chunks:
        x, y = scores[i : i + 500], others[i : i + 500]
        values = {name: one.statistic(x) for name, one in statistics.AGGREGATES.items()}
        values["probability of improvement"] = statistics.probability_of_improvement(x, y)
        values["difference of means"] = difference(x, y)
        for name, value in values.items():
            found.setdefault(name, []).append(np.asarray(value))
    return {name: float(np.mean(np.concatenate(x))) for name, x in found.items()}


def _rliables(statistic, scores: np.ndarray) -> tuple[float, float]:
    _, intervals = library.get_interval_estimates(
        {"": scores.T},
        lambda x: np.array([statistic(x)]),
        reps=_RESAMPLES.value,
        confidence_interval_size=0.95,
    )
    return intervals[""][0, 0], intervals[""][1, 0]


def _show(what: str, true: Mapping[str, float], found: Sequence[Mapping[str, Estimate]]) -> None:
    for name, value in true.items():
        covered = np.mean([one[name].low <= value <= one[name].high for one in found])
        width = np.mean([one[name].high - one[name].low for one in found])
        print(f"{what}, {name}: {100 * covered:.1f}% covered, mean width {width:.3f}", flush=True)


def main(argv: list[str]) -> None:
    """Print a line for each number of seeds or of discoveries, and each printed number."""
    del argv
    logging.set_verbosity(logging.WARNING)  # rliable logs every call.
    rng = np.random.default_rng(_SEED.value)
    np.random.seed(_SEED.value)  # noqa: NPY002  rliable uses it.
    made = make_contenders([], EvaluationConfig(baselines=(_BASELINE,)))
    agent = EvaluationConfig().agent
    rule = RuleContender(name="rule", is_discovered=True, rule=None, agent=agent)
    number, simulated = _REPETITIONS.value, _Scores(rng)
    for runs in _SEEDS:
        true = _true_values(
            simulated.draw("rule", _TRUE, runs), simulated.draw(_BASELINE, _TRUE, runs)
        )
        drawn = {name: simulated.draw(name, number, runs) for name in ("rule", _BASELINE, _RANDOM)}
        found = []
        for i in range(number):
            summary = _summarize([*made, rule], {k: x[i] for k, x in drawn.items()}, runs, i)
            found.append(_printed(summary, "rule"))
        _show(f"{runs} seeds", true, found)
        for label, statistic in (("mean", metrics.aggregate_mean), ("IQM", metrics.aggregate_iqm)):
            theirs = [_rliables(statistic, x) for x in drawn["rule"]]
            covered = np.mean([low <= true[label] <= high for low, high in theirs])
            print(f"{runs} seeds, rliable's {label}: {100 * covered:.1f}% covered", flush=True)
    for rules in _DISCOVERIES:
        several = simulated.draw_discoveries(_TRUE, rules, 2)
        joined = np.moveaxis(several, 1, 2).reshape(_TRUE, _TASKS, -1)
        true = _true_values(joined, simulated.draw(_BASELINE, _TRUE, 2))
        del several, joined
        contenders = [
            *made,
            *(
                dataclasses.replace(
                    rule, name=f"rule {i}", source={"header": {"provenance": {"seed": i}}}
                )
                for i in range(rules)
            ),
        ]
        found = []
        for i in range(number):
            scores = {name: simulated.draw(name, 1, 2)[0] for name in (_BASELINE, _RANDOM)}
            for j, one in enumerate(simulated.draw_discoveries(1, rules, 2)[0]):
                scores[f"rule {j}"] = one
            summary = _summarize(contenders, scores, 2, i)
            [name] = summary.discoveries
            found.append(_printed(summary, name))
        _show(f"{rules} discoveries of 2 seeds", true, found)


if __name__ == "__main__":
    app.run(main)

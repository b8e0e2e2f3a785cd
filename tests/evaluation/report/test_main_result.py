"""The main result of evaluations whose scores are made up."""

import dataclasses
import re

import numpy as np

from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.report.main_result import main_result
from evaluation.report.tables import aggregate_rows, non_finite_runs, score_table
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring.references import Reference
from tests.evaluation import common

CONFIG = EvaluationConfig(seeds=4, resamples=200, num_points=2)
TASKS = ("one/a", "one/b", "one/c")
SPREAD = np.array([-0.02, -0.01, 0.01, 0.02])


def contender(name: str, kind: str, **source) -> Contender:
    if kind in ("discovered", "rule"):
        header = {"header": source} if source else {}
        return common.rule_contender(name, kind == "discovered", **header)
    return common.of_algorithm(name, kind)


def curves(scores: np.ndarray, config=CONFIG) -> LearningCurves:
    points = len(config.intervals[0])
    window = Episodes(np.where(np.isfinite(scores), 1.0, 0.0), np.nan_to_num(scores))
    curve = Episodes(*(np.repeat(x[..., None], points, axis=-1) for x in window))
    finite = np.ones(scores.shape, bool)
    return LearningCurves(config.intervals[0], curve, window, {}, finite, 0.0, 1.0, ("cpu",))


def result(by_name, config=CONFIG, tasks=TASKS, has_scale=True, kinds=()):
    """The main result of contenders with these mean scores on each task.

    Args:
      by_name: the means, or an array of all runs, by contender.
      config: of the evaluation.
      tasks: names.
      has_scale: whether there are references, 0 and 1.
      kinds: of contenders, where it is not PPO's.
    """
    everyone = {"random": (0.0,) * len(tasks), **by_name}
    kinds = {"random": "random", **dict(kinds)}
    made = [contender(name, kinds.get(name, "ppo")) for name in everyone]
    scores = {
        name: np.asarray(x) if np.ndim(x) == 2 else np.array(x)[:, None] + SPREAD[: config.seeds]
        for name, x in everyone.items()
    }
    references = {task: Reference("", 0.0, 1.0, None, "") for task in tasks} if has_scale else {}
    own = {name: curves(x, config) for name, x in scores.items()}
    evaluation = common.evaluation(tasks, made, own, config, references)
    return main_result(evaluation)


def test_a_leader_whose_interval_is_above_all_others_is_ahead():
    found = result({"mine": (0.9, 0.9, 0.3), "ppo": (0.5, 0.5, 0.5), "slow": (0.1, 0.2, 0.2)})
    [said] = found
    assert said.startswith(
        "On 3 tasks with 4 seeds, mine is ahead of the 2 other contenders that learn: IQM 0.79 ["
    )
    assert "]; difference from ppo (IQM 0.50 [" in said
    assert "]) 0.29 [" in said
    assert said.endswith(
        "(95% intervals over seeds with these tasks; 3 tasks: too few for an interval over tasks)."
    )


def test_overlapping_intervals_do_not_tell_contenders_apart():
    found = result({"mine": (0.905, 0.9, 0.9), "ppo": (0.9, 0.9, 0.9), "slow": (0.1, 0.2, 0.2)})
    [said] = found
    assert "mine is first, but the data cannot separate it from ppo: IQM" in said
    assert "slow" not in said


def test_one_seed_tells_nobody_apart():
    config = dataclasses.replace(CONFIG, seeds=1)
    found = result({"mine": (0.9, 0.9, 0.9), "ppo": (0.1, 0.2, 0.95)}, config)
    said = "On 3 tasks with one seed, no interval is known: the data cannot separate contenders."
    assert found == (said,)


def test_who_is_not_above_the_random_policy_is_not_told_apart_from_it():
    found = result({"mine": (0.0, 0.0, 0.001)})
    assert "mine is the only contender that learns: IQM 0.00 [" in found[0]
    assert found[1].startswith("The data cannot separate mine from the random policy")


def test_tasks_without_a_scale_are_compared_by_probabilities():
    found = result({"mine": (9.0, 9.0, 3.0), "ppo": (5.0, 5.0, 5.0)}, has_scale=False)
    assert found == (
        "On 3 tasks with 4 seeds, which no scale puts together, mine is first, but the data cannot"
        " separate it from ppo: P(better than ppo) 0.67 [0.42, 0.91] (95% intervals over seeds with"
        " these tasks; 3 tasks: too few for an interval over tasks).",
    )
    ahead = result({"mine": (9.0, 9.0, 6.0), "ppo": (5.0, 5.0, 5.0)}, has_scale=False)
    assert "mine is ahead of ppo: P(better than ppo) 1.00 [" in ahead[0]


def test_the_returns_of_a_single_task_need_no_scale():
    found = result({"mine": (30.0,), "ppo": (20.0,)}, has_scale=False, tasks=TASKS[:1])
    assert found[0].startswith("On one/a with 4 seeds, mine is ahead of ppo: mean 30.0")
    assert "IQM" not in found[0]


def test_who_lacks_a_task_is_compared_on_others_and_left_out_of_means():
    missing = np.array([[9.0] * 4, [9.0] * 4, [np.nan] * 4])
    found = result({"mine": missing, "ppo": (5.0, 5.0, 5.0)}, has_scale=False)
    assert "mine is ahead of ppo: P(better than ppo) 1.00 [0.68, 1.00]" in found[0]
    nothing = result({"mine": np.full((3, 4), np.nan)}, has_scale=False)
    assert nothing == ("No contender that learns has a score.",)


def test_several_discoveries_are_one_contender():
    """Their interval contains the spread of the rules, of which none is chosen."""
    config, tasks = CONFIG, TASKS
    names = {"a": 0.9, "b": 0.3, "c": 0.6}
    made = [contender("random", "random"), contender("ppo", "ppo")]
    made += [
        contender(name, "discovered", provenance={"seed": i, "agent": {}})
        for i, name in enumerate(names)
    ]
    means = {"random": 0.0, "ppo": 0.62, **names}
    own = {name: curves(np.full((3, 1), x) + SPREAD) for name, x in means.items()}
    references = {task: Reference("", 0.0, 1.0, None, "") for task in tasks}
    evaluation = common.evaluation(tasks, made, own, config, references)
    found = main_result(evaluation)
    assert "ppo is first, but the data cannot separate it from 3 discoveries (a, b, c)" in found[0]


def test_who_is_not_above_the_random_policy_leads_nothing():
    tasks = TASKS[:1]
    found = result({"random": (4.97,), "ppo": (0.0,), "dpo": (-1.0,)}, has_scale=False, tasks=tasks)
    [said] = found
    assert said.startswith(
        "On one/a with 4 seeds, no contender that learns is above the random policy (mean 4.97 ["
    )
    assert "]); the best is ppo (mean " in said
    no_one = result({"random": (5.0, 5.0, 5.0), "ppo": (0.0, 1.0, 5.0)}, has_scale=False)
    assert no_one[0].endswith("is above the random policy; the best is ppo.")


def test_a_return_that_is_not_finite_is_not_called_a_missing_episode():
    made = [contender("random", "random"), contender("ppo", "ppo")]
    own = {x.name: curves(np.zeros((3, 4))) for x in made}
    window = Episodes(np.ones((3, 4)), np.full((3, 4), np.nan))
    own["ppo"] = dataclasses.replace(own["ppo"], window=window)
    references = {task: Reference("", 0.0, 1.0, None, "") for task in TASKS}
    evaluation = common.evaluation(TASKS, made, own, CONFIG, references)
    found = main_result(evaluation)
    assert found == ("No contender that learns has a score: no return of ppo is finite.",)
    reason = "no return of ppo in the score's window is finite"
    assert evaluation.left_out == dict.fromkeys(TASKS, reason)
    table = score_table(evaluation, made)
    assert [cell.text for cell in table.scores[0][1]] == ["0.000 ± 0.000", "not finite"]
    assert non_finite_runs(evaluation) == [
        "ppo: 12 runs with returns that are not finite, which have no score."
    ]


def test_no_score_below_the_random_policys_is_bold():
    made = [contender("random", "random"), contender("ppo", "ppo")]
    means = {"random": (5.0, 0.0, 1.0), "ppo": (1.0, 1.0, 1.0)}
    own = {name: curves(np.array(x)[:, None] + SPREAD) for name, x in means.items()}
    references = {task: Reference("", 0.0, 1.0, None, "") for task in TASKS}
    evaluation = common.evaluation(TASKS, made, own, CONFIG, references)
    rows = score_table(evaluation, made).scores
    assert [cells[1].is_best for _, cells in rows] == [False, True, False]
    [compared] = evaluation.comparisons
    best = {row["contender"]: row["best on tasks"] for row in aggregate_rows(evaluation, compared)}
    assert best == {"ppo": "1", "random": ""}


def test_better_means_over_tasks():
    """The interval over seeds is above 0, that over tasks is not."""
    tasks = tuple(f"one/{i}" for i in range(8))
    mine = (0.5,) * 4 + (0.4, 0.6, 0.8, 0.9)
    found = result({"mine": mine, "ppo": (0.5,) * 8}, tasks=tasks)
    assert "mine is first, but the data cannot separate it from ppo" in found[0]
    assert found[0].endswith(
        '(95% intervals over seeds with these tasks; after "tasks": over tasks and seeds).'
    )
    difference = found[0].rpartition("]) ")[2].partition(" (")[0]
    value, low, high, *wide = map(float, re.findall(r"-?\d+\.\d+", difference))
    assert wide[0] < 0.0 < low <= value <= high < wide[1]
    better = result({"mine": [x + 0.3 for x in mine], "ppo": (0.5,) * 8}, tasks=tasks)
    assert "mine is ahead of ppo" in better[0]

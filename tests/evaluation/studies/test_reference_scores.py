"""Reference scores: optima, and long runs."""

import dataclasses

import numpy as np
import pytest

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig
from evaluation.evaluate import Experiment
from evaluation.scoring import references
from evaluation.studies import reference_scores as study

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=8, head=(8,)),
        num_environments=4,
        unroll_length=8,
        batch_size=4,
    ),
    budget=1_024,
    baselines=("actor_critic",),
    num_points=2,
)


def make(tasks, folder, *, trains=True):
    return study.reference_scores(Experiment(tasks, CONFIG, folder), None, trains=trains)


def test_a_solved_task_needs_no_run(tmp_path):
    found, reasons = make([environments.make("catch/2x3")], tmp_path)
    assert reasons == {}
    assert found["catch/2x3"].reference == 1.0
    assert found["catch/2x3"].random == pytest.approx(-1 / 3)
    assert found["catch/2x3"].budget is None
    assert not list(tmp_path.iterdir())


def test_a_known_optimum_needs_random_runs_only(tmp_path):
    pytest.importorskip("gymnax")
    task = environments.make("gymnax/Catch-bsuite")
    found, reasons = make([task], tmp_path)
    assert reasons == {}
    one = found[task.name]
    assert (one.reference, one.reference_error, one.budget) == (1.0, 0.0, None)
    assert one.random == pytest.approx(-0.6, abs=6.0 * one.random_error)  # 1 of 5 balls is caught.
    assert 0.0 < one.random_error < 0.05
    assert one.origin == "optimum, 1 for the ball; random, 5 runs"
    assert {x.name for x in (tmp_path / "random" / "runs").iterdir()} == {"random"}


@pytest.mark.slow
def test_other_tasks_have_the_best_of_long_runs(tmp_path):
    """Catch with recall, which is observed less: an optimum would need memory."""
    easy, hard = environments.make("catch/3x3/recall"), environments.make("catch/9x9/recall")
    found, reasons = make([easy, hard], tmp_path, trains=False)
    assert found == {}
    assert set(reasons) == {easy.name, hard.name}
    found, reasons = make([easy, hard], tmp_path)
    one = found[easy.name]
    assert one.budget == CONFIG.num_steps
    assert one.fingerprint == references.fingerprint(easy)
    assert one.random < one.reference <= 1.0
    assert 0.0 < one.random_error < 0.2
    assert one.origin == "best of 1 baselines after 10,240 steps: actor_critic, 5 seeds from 0"
    assert "is not clearly above the random policy's" in reasons[hard.name]


def test_who_has_no_score_is_not_the_best():
    task = environments.make("catch/3x3/recall")
    scores = {"random": np.array([0.0, 0.1]), "a": np.array([9.0]), "b": np.array([1.0, 1.1])}
    config = dataclasses.replace(CONFIG, budget=10_240)
    one = study._best_long_run(task, scores, 1_024, config)
    assert isinstance(one, references.Reference)
    assert one.reference == pytest.approx(1.05)
    del scores["b"]
    reason = study._best_long_run(task, scores, 1_024, config)
    assert isinstance(reason, str)
    assert "fewer than two runs" in reason

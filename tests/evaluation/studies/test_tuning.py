"""Random search: what is drawn, how trials are scored, and a tiny one from end to end."""

import dataclasses

import numpy as np
import pytest

from agents.search_space import Choice, LogUniform
from evaluation import tuned_settings
from evaluation.contenders import (
    make_contenders,
    rule_contenders,
)
from evaluation.evaluate import Experiment, evaluate, tasks_of
from evaluation.studies import tuning
from tests.evaluation.test_evaluate import CONFIG as TINY

CONFIG = dataclasses.replace(TINY, baselines=("ppo", "actor_critic"), seeds=1)


def rules():
    return rule_contenders(["grid57"], CONFIG)


def test_an_algorithm_without_ranges_is_refused():
    config = dataclasses.replace(CONFIG, baselines=("dreamer",))
    with pytest.raises(ValueError, match="dreamer has no ranges to search"):
        tuning.trials([], config, 2)


def test_all_have_equally_many_trials_and_more_trials_begin_with_the_same():
    few, many = (tuning.trials(rules(), CONFIG, number) for number in (2, 5))
    for of in ("ppo", "actor_critic", "grid57"):
        own, more = ([x.settings for x in found if x.of == of] for found in (few, many))
        assert len(own) == 2
        assert len(more) == 5
        assert more[:2] == own
        assert len({tuple(x.items()) for x in more}) == 5
    other = tuning.trials(rules(), dataclasses.replace(CONFIG, seed=1), 2)
    assert [x.settings for x in other] != [x.settings for x in few]
    assert len({x.contender.name for x in many}) == len(many)


def test_trials_have_the_settings_that_were_drawn():
    for trial in tuning.trials(rules(), CONFIG, 3):
        contender = trial.contender
        if contender.is_rule:
            agent = contender.agent
            assert agent.learning_rate == trial.settings.get("learning_rate", 5e-3)
            if trial.settings:
                ratio = trial.settings["replay_ratio"]
                assert agent.num_replayed == round(agent.batch_size * ratio)
                assert agent.lifetime == CONFIG.budget
            continue
        settings = contender.settings.get("agent", contender.settings)
        assert settings["learning_rate"] == trial.settings.get("learning_rate", 3e-3)
        if trial.settings and trial.of == "ppo":
            assert settings["num_epochs"] == trial.settings["num_epochs"]
            longest = CONFIG.budget // trial.settings["num_environments"]
            assert settings["unroll_length"] == min(trial.settings["unroll_length"], longest)
            width, layers = trial.settings["width"], int(trial.settings["layers"])
            assert settings["network"]["torso"] == [width] * layers


def test_environments_are_drawn_where_rules_have_fewer():
    """As on MinAtar: of a baseline's number, the rules' need not be a divisor."""
    config = dataclasses.replace(CONFIG, rule_num_environments=CONFIG.agent.num_environments)
    assert len(tuning.trials([], config, 8)) == len(tuning.trials([], CONFIG, 8))


def test_draws_are_within_their_range_and_its_edges_are_told():
    random = np.random.default_rng(0)
    rate = LogUniform(1e-4, 1e-2)
    drawn = np.array([rate.draw(random) for _ in range(2000)])
    assert 1e-4 <= drawn.min() < 1.1e-4
    assert 0.9e-2 < drawn.max() <= 1e-2
    assert np.mean(drawn < 1e-3) == pytest.approx(0.5, abs=0.05)
    assert [rate.is_at_the_edge(x) for x in (1e-4, 1.2e-4, 1e-3, 9e-3)] == [True, True, False, True]
    epochs = Choice((1, 2, 4), may_be_higher=True)
    assert {epochs.draw(random) for _ in range(100)} == {1, 2, 4}
    assert [epochs.is_at_the_edge(x) for x in (1, 2, 4)] == [False, False, True]
    traces = Choice((0.8, 0.9, 1.0), may_be_lower=True)
    assert [traces.is_at_the_edge(x) for x in traces.values] == [True, False, False]


def test_scores_are_between_the_random_policy_and_the_best_trial_of_each_task():
    """Three tasks: the third is left out, since no trial is better than random there."""
    means = np.array([[1.0, 4.0, 0.0], [3.0, -9.0, 0.5], [2.0, np.nan, 0.5]])
    found = tuning.normalized_means(means, np.array([1.0, 2.0, 0.5]))
    assert found.tolist() == [0.5, (1.0 - 1.0) / 2, (0.5 - 1.0) / 2]
    with pytest.raises(ValueError, match="No trial is better than the random policy"):
        tuning.normalized_means(means[:1] * 0.0, np.ones(3))


def test_the_best_settings_are_written_and_used(tmp_path):
    tasks = tasks_of(["catch/5x5"])
    config = dataclasses.replace(CONFIG, baselines=("ppo",))
    tune = tmp_path / "tuning"
    experiment = Experiment(tasks, config, tune)
    found = tuning.tune(experiment, [], 2)
    assert found == tuned_settings.read(tune / tuned_settings.TUNED_FILE)
    best = found.contenders["ppo"]
    assert best.score == max(x["score"] for x in best.trials)
    assert {"settings": best.settings, "score": best.score} in best.trials
    assert len((tune / "tuning.csv").read_text().splitlines()) == 3
    # A second time, everything is there.
    said = []
    again = tuning.tune(dataclasses.replace(experiment, announce=said.append), [], 2)
    assert again == found
    assert said == ["3 of 3 runs are finished."]
    config = dataclasses.replace(config, baselines=("ppo_tuned",))
    contenders = make_contenders([], config, tuned=found)
    assert [x.name for x in contenders] == ["random", "ppo_tuned"]
    found = evaluate(Experiment(tasks, config, tmp_path / "tuned"), contenders).evaluation
    assert found.scores["ppo_tuned"].shape == (1, 1)

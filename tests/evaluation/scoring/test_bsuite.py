from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from bsuite import bsuite as engine
from bsuite.experiments import summary_analysis
from bsuite.logging import csv_load

import environments
from environments import EnvironmentNameError
from environments.simulators import Episode
from environments.suites import bsuite
from evaluation.scoring.suite_scores import score
from tests.environments.streams import dynamics_of


def run(bsuite_id, policy, interrupted_at=None):
    """All episodes of a run, by a function of observation and random generator."""
    name = f"bsuite/{bsuite_id}"
    environment, generator = environments.make(f"bsuite/{bsuite_id}"), np.random.default_rng(0)
    simulators = dynamics_of(environment).start(environment.params, 1, 0)
    episodes, length, total = [], 0, 0.0
    timestep = simulators.reset()
    while len(episodes) < bsuite.num_episodes(name):
        timestep = simulators.step(np.array([policy(timestep.observation[0], generator)]))
        total += float(timestep.reward[0])
        if timestep.step_type[0] == 2:
            results = {key: float(value[0]) for key, value in simulators.results.items()}
            episodes.append(Episode(total, length + 1, results))
            length, total = -1, 0.0  # The next step starts an episode.
            if len(episodes) == interrupted_at:
                simulators = dynamics_of(environment).start(environment.params, 1, 1)
                timestep, length = simulators.reset(), -1
        length += 1
    return {name: episodes}


def deep_sea(solved_from, episodes=2000):
    return [
        Episode(0.0, 10, {"total_bad_episodes": float(i < solved_from), "denoised_return": 0.0})
        for i in range(episodes)
    ]


@pytest.mark.thorough
def test_random_actions_score_nothing():
    runs = run("catch/0", lambda _, generator: generator.integers(3))
    runs |= run("bandit/0", lambda _, generator: generator.integers(11))
    scores = score(runs)
    assert scores.experiments == pytest.approx({"bandit": 0.0, "catch": 0.0}, abs=0.05)
    assert scores.unfinished == ()


@pytest.mark.thorough
def test_runs_that_went_on_in_another_simulator_are_scored_as_one():
    runs = run("catch/0", lambda _, generator: generator.integers(3), interrupted_at=9_000)
    assert score(runs).experiments == pytest.approx({"catch": 0.0}, abs=0.05)


@pytest.mark.thorough
def test_catching_every_ball_scores_one():
    def follow(observation, _):
        ball = np.argmax(observation[:-1].sum(axis=0))
        return 1 + int(np.sign(ball - np.argmax(observation[-1])))

    scores = score(run("catch/0", follow))
    assert scores.experiments == {"catch": 1.0}
    assert scores.tags == {"basic": 1.0, "credit_assignment": 1.0}


def test_scores_are_those_of_bsuites_own_logs(tmp_path):
    runs = {}
    for bsuite_id in ("umbrella_length/2", "umbrella_length/9", "cartpole_swingup/3"):
        environment: Any = engine.load_and_record_to_csv(bsuite_id, str(tmp_path))
        generator, episodes, before = np.random.default_rng(1), [], environment.bsuite_info()
        for _ in range(40):
            timestep, length, total = environment.reset(), 0, 0.0
            while not timestep.last():
                timestep = environment.step(generator.integers(2))
                length, total = length + 1, total + timestep.reward
            now = environment.bsuite_info()
            added = {key: now[key] - before[key] * (key != "best_episode") for key in now}
            episodes.append(Episode(total, length, added))
            before = now
        runs[f"bsuite/{bsuite_id}"] = episodes
    logs, _ = csv_load.load_bsuite(str(tmp_path))
    theirs = summary_analysis.bsuite_score(logs)
    ours = score(runs)
    assert ours.experiments == pytest.approx(
        dict(zip(theirs.bsuite_env, theirs.score, strict=True))
    )
    assert ours.unfinished == ("cartpole_swingup", "umbrella_length")


def test_deep_sea_is_scored_by_how_soon_it_is_solved():
    runs = {
        "bsuite/deep_sea/0": deep_sea(solved_from=100),
        "bsuite/deep_sea/1": deep_sea(solved_from=200),
        "bsuite/deep_sea/2": deep_sea(solved_from=10_000),  # Never.
    }
    assert score(runs).experiments["deep_sea"] == pytest.approx(2 / 3)
    stochastic = {
        name.replace("sea", "sea_stochastic"): episodes for name, episodes in runs.items()
    }
    scores = score(runs | stochastic)
    assert scores.experiments["deep_sea_stochastic"] == pytest.approx(2 / 3)
    assert scores.tags["exploration"] == pytest.approx(2 / 3)
    assert "memory" not in scores.tags


def test_scoring_changes_neither_pandas_nor_the_style_of_plots():
    before = dict(mpl.rcParams)
    score({"bsuite/deep_sea/0": deep_sea(solved_from=100)})
    assert dict(mpl.rcParams) == before
    assert not hasattr(pd.Series, "append")


def test_runs_that_cannot_be_scored_are_refused():
    with pytest.raises(ValueError, match="no run"):
        score({})
    with pytest.raises(ValueError, match="'bsuite/catch/0' has no episode"):
        score({"bsuite/catch/0": []})
    with pytest.raises(EnvironmentNameError, match="no environment 'bsuite/catch/20'"):
        score({"bsuite/catch/20": deep_sea(solved_from=1)})

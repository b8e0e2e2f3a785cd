"""Agents that train themselves, and what their reports become."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import environments
from agents.registry import Algorithm, ConfiguredAlgorithm
from agents.registry import TrainingReport as Report
from environments.simulators import Episode
from evaluation import runs
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.evaluate import Experiment, evaluate
from evaluation.executors import JobsFailedError
from tests.annotations import unchecked

CONFIG = EvaluationConfig(
    agent=dataclasses.replace(EvaluationConfig().agent, num_environments=2, batch_size=2),
    seeds=1,
    budget=3_200,
    num_points=10,
    score_window=0.5,
    baselines=(),
)


def ended(value: float) -> Episode:
    return Episode(value, 4, {"won": float(value > 0)})


@dataclasses.dataclass(frozen=True)
class Scripted:
    """Reports what it is told to."""

    reports: Sequence[Report]

    def train(self, config, task, seed, num_steps, folder, checkpoint_seconds):
        yield from self.reports


@dataclasses.dataclass(frozen=True)
class NoSettings:
    pass


def contender_of(agent: Scripted, name: str) -> Contender:
    algorithm = Algorithm(name, "", {"default": NoSettings()}, train=agent.train)
    return Contender.of(name, name, ConfiguredAlgorithm(algorithm, NoSettings()))


def reports(first: int, last: int, every: int = 400) -> list[Report]:
    """An episode in each, whose return is the step at which its interval began."""
    told = [Report(first)]
    for step in range(first, last, every):
        told.append(Report(step + every, [ended(step)], {"loss": 1.0 / (1 + step)}))
    return told


def train(tmp_path, told: Sequence[Report], report=lambda *_: None):
    task = environments.make("catch/5x5")
    return run(Scripted(told), task, tmp_path, report)


def run(agent, task, folder, report=lambda *_: None):
    """The result of one run of an agent."""
    contender = contender_of(agent, "scripted")
    made = [runs.ContenderRun(task, CONFIG.seed, folder, contender, 0)]
    [result] = runs.train_runs(made, CONFIG, folder, report)
    return result


def test_episodes_become_a_curve_and_a_score(tmp_path):
    seen = []
    result = train(tmp_path, reports(0, 3_200), lambda *numbers: seen.append(numbers))
    np.testing.assert_array_equal(result.curve.count, [0, 1, 1, 1, 1, 0, 1, 1, 1, 1])
    # Of the episodes in the second half.
    assert result.window.count == 4
    assert result.window.mean_return == np.mean([1_600, 2_000, 2_400, 2_800])
    assert result.results == {"length": 4.0, "won": 1.0}
    assert result.is_finite
    assert [steps for steps, _, _ in seen] == list(range(0, 3_201, 400))
    assert seen[-1][2] == 2_800


def test_what_lies_beyond_the_budget_does_not_count(tmp_path):
    told = [
        Report(0),
        Report(3_000, [ended(1)]),
        Report(3_300, [ended(9)]),
        Report(0),
    ]
    result = train(tmp_path, told)
    assert result.window.count == 1
    assert result.window.mean_return == 1


def test_a_run_that_goes_on_drops_what_was_told_after_its_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="ended after 2000 of 3200"):
        train(tmp_path, reports(0, 2_000))
    result = train(tmp_path, reports(1_200, 3_200))
    whole = train(tmp_path / "whole", reports(0, 3_200))
    np.testing.assert_array_equal(result.curve.count, whole.curve.count)
    np.testing.assert_array_equal(result.curve.return_sum, whole.curve.return_sum)
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["environment_steps"] for line in lines] == list(range(400, 3_201, 400))
    assert lines[-1]["seconds"] >= lines[2]["seconds"] > 0


def test_a_run_that_begins_anew_keeps_nothing(tmp_path):
    told = reports(0, 3_200)
    with pytest.raises(ValueError, match="ended after 800"):
        train(tmp_path, [*told[:2], Report(800, [ended(7)], {"loss": math.nan})])
    result = train(tmp_path, told)
    assert result.is_finite
    assert result.curve.count.sum() == 8


def test_losses_that_are_not_finite_mark_the_run(tmp_path):
    told = [
        Report(0),
        Report(1_600, [], {"loss": math.inf}),
        Report(3_200, [ended(1)]),
    ]
    assert not train(tmp_path, told).is_finite
    assert "Infinity" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([Report(0, [ended(1)])], "first report has step 0 and 1 episodes"),
        ([Report(-1)], "first report has step -1"),
        ([Report(0), Report(800), Report(400)], "step 400 after step 800"),
        ([Report(0), Report(800), Report(800)], "step 800 after step 800"),
        (
            [Report(0), Report(1_600), Report(3_300)],
            "within the budget is of step 1600",
        ),
        ([], "ended after 0 of 3200"),
    ],
)
def test_refuses_an_agent_that_does_not_count(tmp_path, told, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, told)


@unchecked()
def test_what_other_frameworks_count_with_is_understood(tmp_path):
    numbers: Any = np
    episode = Episode(numbers.float32(0.5), numbers.int32(4), {"won": numbers.bool_(True)})
    told = [
        Report(numbers.int64(0)),
        Report(numbers.int64(3_200), [episode], {"loss": numbers.float32(1.0)}),
    ]
    result = train(tmp_path, told)
    assert result.window.mean_return == 0.5
    assert result.results["won"] == 1.0


def test_no_name_that_an_agent_chooses_is_mistaken_for_ours(tmp_path):
    metrics = {"environment_steps": math.nan, "seconds": 1e9}
    episode = Episode(1.0, 4, {"count": 7.0, "return": 9.0, "length": 3.0})
    told = [Report(0), Report(3_200, [episode], metrics)]
    result = train(tmp_path, told)
    assert (result.window.count, result.window.return_sum) == (1, 1)
    assert result.train_seconds < 1e6
    [line] = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["environment_steps"] == 3_200


def test_a_generator_is_closed_when_the_budget_is_spent(tmp_path):
    closed = []

    class Closing(Scripted):
        def train(self, config, task, seed, num_steps, folder, checkpoint_seconds):
            try:
                yield from self.reports
            finally:
                closed.append(folder)

    agent = Closing([*reports(0, 3_200), Report(9_999)])
    run(agent, environments.make("catch/5x5"), tmp_path)
    assert closed == [tmp_path]


def test_an_agent_hears_of_a_report_that_was_not_recorded(tmp_path):
    """It is then not closed as if it were stopped, after which it may save a checkpoint."""
    heard = []

    class Hearing(Scripted):
        def train(self, config, task, seed, num_steps, folder, checkpoint_seconds):
            try:
                yield from self.reports
            except BaseException as error:
                heard.append(type(error))
                raise

    def fail(*_):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(Hearing(reports(0, 3_200)), environments.make("catch/5x5"), tmp_path, fail)
    assert heard == [OSError]


def test_an_unknown_agent_is_refused():
    with pytest.raises(ValueError, match="no agent 'nobody'; known are"):
        make_contenders([], CONFIG, ["nobody"])


@pytest.mark.slow
def test_the_random_policy_acts_where_actions_are_vectors(tmp_path):
    pytest.importorskip("dm_control")
    (random,) = make_contenders((), CONFIG)
    task = environments.make("control_proprio/cartpole_balance")
    made = [runs.ContenderRun(task, CONFIG.seed, tmp_path, random, 0)]
    [result] = runs.train_runs(made, CONFIG, tmp_path)
    # Two environments, episodes of 500 actions: each 1,000 steps two end.
    assert result.results["length"] == 500.0
    assert result.curve.count.sum() == 6
    assert 0.0 < result.window.mean_return < 1_000.0


class Broken(Scripted):
    def train(self, config, task, seed, num_steps, folder, checkpoint_seconds):
        yield self.reports[0]
        raise KeyError("optimizer")


def test_an_agents_error_is_shown_once_and_kept_with_its_run_until_it_is_mended(tmp_path, caplog):
    def run_all(agent: Scripted) -> None:
        contender = contender_of(agent, "mine")
        evaluate(Experiment([environments.make("catch/5x5")], CONFIG, tmp_path), [contender])

    told = reports(0, CONFIG.num_steps)
    with pytest.raises(JobsFailedError) as caught:
        run_all(Broken(told))
    assert "mine on catch/5x5, seed 0: KeyError: 'optimizer'" in str(caught.value)
    assert "Tracebacks are in the files failure.txt" in str(caught.value)
    (file,) = tmp_path.glob("runs/mine/catch_5x5/seed_0/failure.txt")
    for text in (file.read_text(), caplog.text):
        assert text.count("Traceback") == text.count("KeyError: 'optimizer'") == 1
        assert f'File "{__file__}", line' in text
    run_all(Scripted(told))
    assert not file.exists()

"""Evolution of a rule's prior: what a candidate changes, the search, and that it continues."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from disco import anchored
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import Experiment
from evaluation.report.drawing import Drawing
from evaluation.rules import fingerprint
from evaluation.studies import evolution
from evaluation.studies.evolution import (
    EvolutionConfig,
    Point,
    evolve,
    points_of,
    weights,
    with_prior,
)
from tests.disco.common import TEN_FEATURES

CONFIG = EvaluationConfig(
    agent=AgentConfig(
        network=NetworkConfig(torso=(8,), model=0, head=()),
        learning_rate=5e-2,
        num_environments=4,
        unroll_length=8,
        batch_size=4,
        replay_ratio=0.0,
    ),
    seeds=1,
    budget=2_560,
    baselines=(),
)
SETTINGS = EvolutionConfig(generations=3, population=4, num_tasks=1, sigma=2.0)
SIZES = dataclasses.replace(TEN_FEATURES, prior_outputs=3, agent_features=2)


def rule(sizes=SIZES, **changes) -> disco.AnchoredRule:
    settings = {
        "num_bins": 11,
        "max_value": 5.0,
        "policy_prior": 0.9,
        "advantage_weight": 2.0,
        "action_advantage_weight": 0.5,
        "y_cost": 0.0,
        "z_cost": 0.0,
        "aux_policy_cost": 0.0,
        "reads_predictions": False,
    }
    return disco.AnchoredRule.create(jax.random.key(0), sizes, **(settings | changes))


@pytest.fixture
def contender(tmp_path):
    path = tmp_path / "start.npz"
    disco.save(rule(), path)
    return rule_contenders([str(path)], CONFIG)[0]


TASKS = [environments.make("catch/5x5")]


def run(contender, folder, settings=SETTINGS, tasks=TASKS):
    return evolve(Experiment(tasks, CONFIG, folder), contender, settings)


def outputs(rule: disco.AnchoredRule, point: Point) -> np.ndarray:
    """Of the prior's own head."""
    head, sizes = rule.parameters["trajectory/policy_prior"], rule.sizes
    updates, deviation, probability, ratio = map(jnp.float32, point)
    of_agent = anchored.agent_features(updates, deviation)
    of_action = anchored.prior_features(jnp.log(probability), jnp.log(probability / ratio))
    used = jnp.stack(of_agent[: sizes.agent_features] + of_action[: sizes.prior_features])
    return np.asarray(head["b"] + used @ head["w"][-len(used) :])


@pytest.mark.parametrize(("agent_features", "prior_features"), [(1, 0), (2, 0), (1, 1), (2, 2)])
def test_a_candidate_changes_the_weights_at_some_points(agent_features, prior_features):
    """The logit of the prior by 1, 2 and 3, ..., the advantages' weights by factors."""
    start = rule(
        dataclasses.replace(SIZES, agent_features=agent_features, prior_features=prior_features)
    )
    rows = 1 + agent_features + prior_features
    factors = np.log([[2.0, 4.0], [3.0, 5.0], [0.5, 1.0], [1.0, 0.1], [0.3, 2.0]])
    change = np.concatenate([np.arange(1.0, 6.0)[:, None], factors], axis=1)[:rows]
    changed = with_prior(start, change)
    logit = math.log(0.9 / 0.1)
    expected = {
        "policy_prior": [1.0 / (1.0 + math.exp(-logit - x)) for x in range(1, 6)],
        "advantage_weight": [4.0, 6.0, 1.0, 2.0, 0.6],
        "action_advantage_weight": [2.0, 2.5, 0.5, 0.05, 1.0],
    }
    found = weights(changed)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert list(found[name].values()) == pytest.approx(values[:rows], rel=1e-4)
    for row, point in zip(change, points_of(start).values(), strict=True):
        np.testing.assert_allclose(outputs(changed, point), row, atol=1e-4)
    assert fingerprint(with_prior(start, 0.0 * change)) == fingerprint(start)


def test_the_search_finds_the_best_weights(contender, tmp_path, monkeypatch):
    """By a fitness that is known: the nearer to these outputs, the fitter."""
    best = np.array([[0.5, -0.5, 0.2], [-0.3, 0.4, 0.0], [0.1, -0.4, 0.3]])

    def error(candidate):
        points = points_of(contender.rule).values()
        at_points = np.stack([outputs(candidate.rule, x) for x in points])
        rate = math.log(candidate.agent.learning_rate / 0.1)  # The best is 0.1.
        return float(np.sum(np.square(at_points - best)) + rate**2)

    def fitness(candidates, *_):
        return [-error(one) for one in candidates]

    monkeypatch.setattr(evolution, "_fitness", fitness)
    nothing = Drawing(b"", b"")  # Drawing takes half the time.
    monkeypatch.setattr(evolution, "_plot", lambda rows: nothing)
    settings = EvolutionConfig(generations=40, population=12, num_tasks=1)
    found = run(contender, tmp_path / "run", settings)
    assert np.abs(found[-1].mean[:-1] - best.ravel()).max() < 0.15
    assert np.abs(found[0].mean[:-1] - best.ravel()).max() > 0.15
    rate = CONFIG.agent.learning_rate * math.exp(found[-1].mean[-1])
    assert rate == pytest.approx(0.1, rel=0.15)
    assert np.mean(found[-1].fitness) > 0.1 * np.mean(found[0].fitness)  # Both are negative.
    path = tmp_path / "run" / evolution.RULE
    expected = with_prior(contender.rule, found[-1].mean[:-1].reshape(3, 3))
    assert fingerprint(disco.load(path)) == fingerprint(expected)
    (again,) = rule_contenders([str(path)], CONFIG)
    assert again.agent.learning_rate == pytest.approx(rate)  # Agents learn with the one found.
    assert len((tmp_path / "run" / evolution.TABLE).read_text().splitlines()) == 41


@pytest.mark.slow
def test_agents_learn_and_a_search_that_continues_is_the_same(contender, tmp_path):
    whole = run(contender, tmp_path / "whole")
    for one in whole:
        assert one.tasks == ("catch/5x5",)
        assert len(set(one.fitness)) > 1
        assert all(-1.0 <= x <= 1.0 for x in one.fitness)
    two = dataclasses.replace(SETTINGS, generations=2)
    run(contender, tmp_path / "parts", two)
    damaged = tmp_path / "parts" / "generations" / "0001.json"
    damaged.write_text('{"fitness": [0.1, NaN, 0.2, 0.3]}')  # Made again.
    again = run(contender, tmp_path / "parts")
    assert [x.fitness for x in again] == [x.fitness for x in whole]
    np.testing.assert_array_equal(again[-1].mean, whole[-1].mean)
    rules = [disco.load(tmp_path / x / evolution.RULE) for x in ("whole", "parts")]
    assert fingerprint(rules[0]) == fingerprint(rules[1]) != fingerprint(contender.rule)


def test_each_part_of_the_tasks_gives_one():
    tasks = [environments.make("catch/5x5")] * 10
    settings = EvolutionConfig(num_tasks=5)
    numbered = [dataclasses.replace(task, name=f"task {i}") for i, task in enumerate(tasks)]
    drawn = [tuple(x.name for x in evolution._draw_tasks(numbered, settings, i)) for i in range(20)]
    for names in drawn:
        assert [int(name.split()[1]) // 2 for name in names] == list(range(5))
    assert len(set(drawn)) > 5


def test_refused(contender, tmp_path):
    with pytest.raises(ValueError, match="population is 3; expected at least 4"):
        EvolutionConfig(population=3)
    with pytest.raises(ValueError, match="sigma is 0"):
        EvolutionConfig(sigma=0.0)
    with pytest.raises(ValueError, match="1 tasks have reference scores; expected at least num_ta"):
        run(contender, tmp_path, dataclasses.replace(SETTINGS, num_tasks=2))
    ageless = contender.changed(rule=disco.load("grid57"), name="grid57")
    with pytest.raises(ValueError, match="grid57's policy prior are not outputs that read the age"):
        run(ageless, tmp_path)
    assert not list(tmp_path.glob("generations"))

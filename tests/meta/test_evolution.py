"""Evolution strategies: what they try, what they keep, and that they climb."""

import contextlib
import dataclasses
import itertools

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import environments
from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from meta.config import DiscoveryConfig, EvolutionConfig, MetaConfig, PopulationConfig
from meta.estimators import make_discovery
from meta.estimators.evolution import Evolution
from meta.run import run
from tests.meta.common import AGENT, Reporting, small_rule

PRIOR = "trajectory/policy_prior"
# Of equal dynamics, so that one program trains on each.
CATCH = environments.make("catch/4x3")
TASKS = tuple(dataclasses.replace(CATCH, name=f"catch/{name}") for name in ("one", "two", "three"))
UNROLL = AGENT.steps_per_update
LIFETIMES = (120 * UNROLL, 60 * UNROLL)


def config(**changes) -> DiscoveryConfig:
    evolution = {"num_tasks": 2, "sigma": 0.1, "learning_rate": 0.1} | changes.pop("evolution", {})
    population = {"size": 8, "lifetimes": LIFETIMES} | changes.pop("population", {})
    return dataclasses.replace(
        DiscoveryConfig(
            estimator="open_es",
            agent=dataclasses.replace(AGENT, learning_rate=0.1),
            population=PopulationConfig(**population),
            evolution=EvolutionConfig(**evolution),
            meta=MetaConfig(average_decay=0.5),
            seed=3,
        ),
        **changes,
    )


def make(tasks=TASKS, **changes) -> Evolution:
    made = make_discovery(config(**changes), tasks, small_rule())
    assert isinstance(made, Evolution)
    return made


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def go(discovery, folder, meta_steps, reports=None):
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        return run(
            discovery,
            meta_steps=meta_steps,
            checkpoints=checkpoints,
            checkpoint_interval=100,
            log_interval=1,
            observer=Reporting([] if reports is None else reports),
        )


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of three generations, and its reports."""
    reports = []
    return go(make(), tmp_path_factory.mktemp("ended"), 3, reports), reports


def test_tasks_and_budgets_are_drawn_for_each_generation():
    drawn = [make().draw(number) for number in range(40)]
    assert drawn == [make().draw(number) for number in range(40)]
    first, second = zip(*drawn, strict=True)
    assert {one.task for one in first} == {0, 1}
    assert {one.task for one in second} == {2}
    budgets = [one.budget for one in first + second]
    # A budget twice as long is half as probable.
    assert 0.5 < np.mean(np.array(budgets) == min(LIFETIMES)) < 0.8


def test_longer_lifetimes_come_later():
    growing = make(evolution={"generations_per_lifetime": 5})
    budgets = [[one.budget for one in growing.draw(number)] for number in range(40)]
    assert {*itertools.chain(*budgets[:5])} == {min(LIFETIMES)}
    assert {*itertools.chain(*budgets[5:])} == {*LIFETIMES}


def test_reports_say_what_was_learned(ended):
    _, reports = ended
    assert [report["meta_step"] for report in reports] == [1, 2, 3]
    discovery = make()
    for number, report in enumerate(reports):
        drawn = discovery.draw(number)
        agents = report["agents"]
        assert agents["task"] == [TASKS[one.task].name for one in drawn for _ in range(4)]
        assert agents["steps_since_reset"] == [one.budget for one in drawn for _ in range(4)]
        known = [x for x in agents["validation_reward"] if x is not None]
        assert report["mean_return"] == pytest.approx(np.mean(known))
    # A rule stays where all candidates have equal returns.
    assert max(report["update_norm"] for report in reports) > 0.0
    steps = sum(4 * one.budget for number in range(3) for one in discovery.draw(number))
    assert reports[-1]["environment_steps"] == steps
    assert discovery.environment_steps(3) == steps


def test_the_average_follows_the_rule(ended):
    state, _ = ended
    start = small_rule()
    assert not np.allclose(flat(state.rule), flat(start))
    assert not np.allclose(flat(state.rule), flat(state.average))
    average, steps = make().average_rule(state)
    np.testing.assert_array_equal(flat(average), flat(state.average))
    assert sum(steps.values()) == make().environment_steps(3)


@pytest.mark.parametrize("estimator", ["open_es", "cma_es"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, ended, estimator):
    # A covariance of all parameters would take seconds.
    changes = {"cma_es": {"evolution": {"layers": (PRIOR,)}}}.get(estimator, {})

    def one() -> Evolution:
        return make(estimator=estimator, **changes)

    whole = ended[0] if estimator == "open_es" else go(one(), tmp_path / "whole", 3)
    go(one(), tmp_path / "parts", 1)
    resumed = go(one(), tmp_path / "parts", 3)
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


def test_a_stop_within_a_generation_loses_only_it(tmp_path, ended):
    discovery, whole = make(), ended[0]
    advanced = []

    class Stopping(Reporting):
        def on_progress(self, step: int, part: float) -> None:
            advanced.append(step + part)
            if step == 1:
                stopping.request(15)

    try:
        with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
            state = run(
                discovery,
                meta_steps=3,
                checkpoints=checkpoints,
                checkpoint_interval=100,
                log_interval=100,
                observer=Stopping([]),
            )
    finally:
        stopping._noted.clear()
    assert int(state.meta_step) == 1
    assert advanced == sorted(advanced)
    jax.tree.map(np.testing.assert_array_equal, go(make(), tmp_path, 3), whole)


def test_only_the_layers_that_are_named_change(tmp_path):
    state = go(make(evolution={"layers": (PRIOR,), "sigma": 3.0}), tmp_path, 1)
    start = small_rule().parameters
    for name, layer in state.rule.parameters.items():
        is_equal = np.allclose(flat(layer), flat(start[name]))
        assert is_equal == (name != PRIOR)


@pytest.mark.parametrize("estimator", ["open_es", "cma_es"])
def test_it_climbs(monkeypatch, estimator):
    """Candidates whose parameters are nearer a point have higher returns, on every scale."""
    target = flat(small_rule(seed=5).parameters[PRIOR])
    discovery = make(
        estimator=estimator,
        population={"size": 64},
        evolution={"layers": (PRIOR,), "sigma": 0.2},
    )

    def returns(rules, drawn, number, report):
        distance = [np.sum((flat(rule.parameters[PRIOR]) - target) ** 2) for rule in rules]
        return 10.0 ** (3 * drawn.task) * -np.array(distance)

    monkeypatch.setattr(discovery, "_mean_returns", returns)
    state = discovery.init()
    distances = []
    for _ in range(40):
        state, _ = discovery.step(state)
        distances.append(np.linalg.norm(flat(state.rule.parameters[PRIOR]) - target))
    assert distances[-1] < 0.5 * distances[0]


def test_each_pair_of_candidates_learns_one_task(monkeypatch):
    """Those of a task are pairs around the rule, and none learns two tasks."""
    discovery, tried = make(population={"size": 12}), []

    def returns(rules, drawn, number, report):
        tried.append(np.array([flat(rule) for rule in rules]))
        return np.arange(6.0)

    monkeypatch.setattr(discovery, "_mean_returns", returns)
    discovery.step(discovery.init())
    first, second = (np.split(x, 2) for x in tried)
    mean = flat(small_rule())
    for one, other in (first, second):
        np.testing.assert_allclose(one + other, np.broadcast_to(2.0 * mean, one.shape), atol=1e-5)
    assert len(np.unique(np.concatenate([*first, *second]), axis=0)) == 12


REFUSED = {
    "pairs": ({"population": {"size": 6}}, "population.size is 6; expected a multiple of 2"),
    "layers": ({"evolution": {"layers": ("lstm",)}}, r"evolution.layers has \['lstm'\]"),
    "tasks": ({"evolution": {"num_tasks": 4}, "population": {"size": 16}}, "num_tasks is 4"),
    "budget": ({"population": {"lifetimes": (10,)}}, "population.lifetimes has 10; expected"),
    "estimator": ({"estimator": "es"}, "estimator is 'es'; expected one of meta_gradient"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make(**changes).check()


def test_host_environments_are_refused():
    hosts = tuple(dataclasses.replace(task) for task in (environments.make("crafter/reward"),))
    with pytest.raises(ValueError, match="simulated on the host"):
        make(tasks=(*TASKS, *hosts)).check()

"""Discoveries by persistent ES and by the hybrid, as the command makes and continues them."""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import disco
from disco_common.checkpoints import Checkpoints
from evaluation.evaluate import tasks_of
from evaluation.report.discoveries import read_metrics
from launch.support.discoveries import discover
from launch.support.discovery_config import DiscoveryRunConfig, make_rule
from launch.support.discovery_rules import kept_rule
from meta.config import EvolutionConfig, PopulationConfig
from meta.estimators import make_discovery
from meta.estimators.hybrid import Hybrid
from meta.run import restore, run
from tests.launch.discover_tiny import get_settings
from tests.meta.common import AGENT, STEPS, Reporting

PRIOR = "trajectory/policy_prior"
UNROLL = AGENT.steps_per_update
COMPARED = ("meta_step", "mean_return", "update_norm", "agents", "environment_steps")


def settings(estimator: str, **changes) -> DiscoveryRunConfig:
    """Five meta-steps: those of persistent ES are a lifetime and a fifth truncation, and every
    other one of the hybrid has a generation."""
    tiny = get_settings()
    config = dataclasses.replace(
        tiny,
        estimator=estimator,
        meta_steps=5,
        checkpoint_interval=100,
        agent=dataclasses.replace(tiny.agent, learning_rate=0.1),
        population=PopulationConfig(size=4, lifetimes=(40 * UNROLL,)),
        evolution=EvolutionConfig(
            num_tasks=1, sigma=3.0, layers=(PRIOR,), truncation=10 * UNROLL, interval=2
        ),
    )
    return dataclasses.replace(config, **changes)


@functools.cache
def make(config: DiscoveryRunConfig):
    return make_discovery(config, tasks_of([config.suite]), make_rule(config))


@pytest.mark.parametrize("estimator", ["persistent_es", "hybrid"])
def test_a_continued_discovery_equals_the_commands(tmp_path, estimator):
    config, discovery, reports = settings(estimator), make(settings(estimator)), []
    discover(config, str(tmp_path / "whole"))
    with contextlib.closing(Checkpoints(tmp_path / "whole" / "checkpoints")) as checkpoints:
        restored = restore(discovery, checkpoints)
    assert restored is not None
    state = None
    for meta_steps in (3, 5):
        with contextlib.closing(Checkpoints(tmp_path / "parts")) as checkpoints:
            state = run(
                discovery,
                meta_steps=meta_steps,
                checkpoints=checkpoints,
                checkpoint_interval=100,
                log_interval=1,
                observer=Reporting(reports),
            )
    assert restored[0] == 5
    jax.tree.map(np.testing.assert_array_equal, state, restored[1])

    records, problems = read_metrics(tmp_path / "whole")
    assert not problems
    for name in COMPARED:
        assert [x[name] for x in reports] == [x[name] for x in records]
    has_moved = [bool(record["update_norm"]) for record in records]
    if estimator == "hybrid":
        assert has_moved == [True, False, True, False, True]
        made = [4 * STEPS * (n + 1) + 4 * 40 * UNROLL * (n // 2 + 1) for n in range(5)]
    else:
        assert all(has_moved)
        ages = [record["agents"]["steps_since_reset"][0] for record in records]
        assert ages == [10 * UNROLL * number for number in (1, 2, 3, 4, 1)]
        made = [4 * 10 * UNROLL * (n + 1) for n in range(5)]
    assert [record["environment_steps"] for record in records] == made
    rule, start = disco.load(kept_rule(tmp_path / "whole", 5)), make_rule(config)
    assert not np.allclose(flat(rule.parameters[PRIOR]), flat(start.parameters[PRIOR]))


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def test_the_hybrids_parts_leave_each_others_layers_unchanged():
    discovery = make(settings("hybrid"))
    assert isinstance(discovery, Hybrid)
    rules, state = [make_rule(settings("hybrid"))], discovery.init()
    for _ in range(2):  # With a generation, and without one.
        state, _ = discovery.step(state)
        rules.append(jax.device_get(state.discovery.rule))
        np.testing.assert_array_equal(flat(rules[-1].parameters[PRIOR]), state.search.mean)
    start, first, second = (
        {name: flat(layer) for name, layer in rule.parameters.items()} for rule in rules
    )
    assert not np.allclose(start[PRIOR], first[PRIOR])
    np.testing.assert_array_equal(first[PRIOR], second[PRIOR])
    for one, other in ((start, first), (first, second)):
        changed = [name for name in one if name != PRIOR and np.any(one[name] != other[name])]
        assert changed
    # The average over all layers.
    np.testing.assert_allclose(
        flat(discovery.average_rule(state)[0].parameters),
        (flat_of(first) + flat_of(second)) / 2.0,
        rtol=1e-5,
        atol=1e-6,
    )


def test_meta_gradients_of_some_layers_leave_the_others_unchanged():
    meta = dataclasses.replace(get_settings().meta, layers=(PRIOR,))
    discovery = make(settings("meta_gradient", meta=meta))
    state = discovery.init()
    start = jax.device_get(state.rule.parameters)
    state, _ = discovery.step(state)
    for name, layer in jax.device_get(state.rule.parameters).items():
        assert np.array_equal(flat(layer), flat(start[name])) is (name != PRIOR)
    unknown = dataclasses.replace(meta, layers=("lstm",))
    with pytest.raises(ValueError, match=r"meta.layers has \['lstm'\]; expected some of"):
        make(settings("meta_gradient", meta=unknown))


def flat_of(layers) -> np.ndarray:
    return np.concatenate([layers[name] for name in sorted(layers)])


REFUSED = {
    "no layers": ((), "evolution.layers is .*; expected the names of the layers that evolve"),
    "all layers": (tuple(make_rule(get_settings()).parameters), "evolution.layers has all layers"),
    "unknown": (("lstm",), r"evolution.layers has \['lstm'\]; expected some of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_hybrid_refuses(name):
    layers, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make(settings("hybrid", evolution=EvolutionConfig(num_tasks=1, layers=layers)))

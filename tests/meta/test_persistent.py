"""Persistent evolution strategies: the estimate, and what a generation does with it.

No agent learns here: what they make of a rule is a formula. `test_estimators` has runs.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import environments
from meta.config import DiscoveryConfig, EvolutionConfig, MetaConfig, PopulationConfig
from meta.estimators.persistent import PersistentES, persistent_gradient
from tests.meta.common import AGENT, small_rule
from training.iteration import TrainingState

PRIOR = "trajectory/policy_prior"
CATCH = environments.make("catch/4x3")
TASKS = (CATCH, dataclasses.replace(CATCH, name="catch/again"))
TRUNCATION = 2 * AGENT.steps_per_update
SIGMA, RATE = 0.5, 0.1


def make(tasks=TASKS, **changes) -> PersistentES:
    """Two places of four agents, whose lifetimes are four truncations."""
    evolution = {
        "num_tasks": 2,
        "sigma": SIGMA,
        "learning_rate": RATE,
        "layers": (PRIOR,),
        "truncation": TRUNCATION + 3,
    } | changes.pop("evolution", {})
    config = DiscoveryConfig(
        estimator="persistent_es",
        agent=AGENT,
        population=PopulationConfig(size=8, lifetimes=(4 * TRUNCATION + 5,)),
        evolution=EvolutionConfig(**evolution),
        meta=MetaConfig(average_decay=0.5),
        seed=3,
    )
    return PersistentES(dataclasses.replace(config, **changes), tasks, small_rule())


def prior(rule) -> np.ndarray:
    return np.asarray(ravel_pytree(rule.parameters[PRIOR])[0])


def test_the_estimate_is_the_papers():
    """Algorithm 2, agent by agent."""
    random = np.random.default_rng(0)
    sums, scores = random.normal(size=(2, 3, 5)), random.normal(size=(2, 6))
    expected = np.zeros(5)
    for place in range(2):
        of_agents = np.concatenate([sums[place], -sums[place]])
        for own_sum, score in zip(of_agents, scores[place], strict=True):
            expected += own_sum * score / (SIGMA**2 * 12)
    found = persistent_gradient(jnp.float32(sums), jnp.float32(scores), SIGMA)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_truncations_have_the_derivative_of_the_whole():
    """Of a linear state s = s / 2 + w θ, scored in each of 5 truncations; one at a time has not."""
    pairs, number, weights = 20_000, 5, np.array([1.0, -0.5])
    noise = SIGMA * jax.random.normal(jax.random.key(0), (number, pairs, 2))
    sums, persistent, alone = jnp.cumsum(noise, axis=0), 0.0, 0.0
    theta, state, whole, slope = np.array([0.3, 0.2]), jnp.zeros(2 * pairs), 0.0, 0.0
    for t in range(number):
        tried = theta[None] + jnp.concatenate([noise[t], -noise[t]])
        state = state / 2.0 + tried @ weights
        slope = slope / 2.0 + weights
        whole = whole + slope
        persistent += persistent_gradient(sums[t][None], state[None], SIGMA)
        alone += persistent_gradient(noise[t][None], state[None], SIGMA)
    np.testing.assert_allclose(persistent, whole, rtol=0.06)
    np.testing.assert_allclose(alone, number * weights, rtol=0.06)


def test_generations(monkeypatch):
    """What they try, how they sum it, where they begin anew, and where the rule goes."""
    discovery, learned, begun = make(), [], []

    def learn(life, rules, states, age):
        learned.append((life, [prior(rule) for rule in rules], age))
        returns = np.array([rule[0] for rule in learned[-1][1]])  # More is better.
        return states, np.where(returns == returns.min(), np.nan, returns)

    monkeypatch.setattr(discovery, "_learn", learn)

    def begin(place, born):
        begun.append((place, born))
        zeros = jnp.zeros(4, jnp.int32)
        return TrainingState(learner=None, actor=None, replay=None, updates=zeros)

    monkeypatch.setattr(discovery, "_begin", begin)
    state = discovery.init()
    sums, ages = np.zeros((2, 2, len(prior(state.rule)))), [0, 0]
    for number in range(5):
        mean, before = prior(state.rule), state
        state, made = discovery.step(state)
        for place, (life, tried, age) in enumerate(learned[-2:]):
            assert (life.task, age) == (place, ages[place])
            noise = np.array(tried) - mean
            np.testing.assert_allclose(noise[:2], -noise[2:], atol=1e-6)
            assert 0.0 < np.abs(noise).max() < 5.0 * SIGMA
            sums[place] += noise[:2]
            ages[place] += 1
        assert made.ages == [age * TRUNCATION for age in ages]
        if not number:  # Adam's first step has the learning rate's size.
            scores = np.array([-0.5, -1.0 / 6.0, 1.0 / 6.0, 0.5])
            ranked = [scores[np.argsort(np.argsort([x[0] for x in one[1]]))] for one in learned]
            gradient = persistent_gradient(jnp.float32(sums), jnp.float32(ranked), SIGMA)
            np.testing.assert_allclose(prior(state.rule) - mean, RATE * np.sign(gradient), 1e-3)
        for place in {1: [0], 3: [1]}.get(number, []):  # The first lifetimes are staggered.
            sums[place], ages[place] = 0.0, 0
        np.testing.assert_allclose(state.sums, sums, atol=1e-5)
        for name in {*state.rule.parameters} - {PRIOR}:
            assert state.rule.parameters[name] is before.rule.parameters[name]
    assert begun == [(0, 0), (1, 0), (0, 2), (1, 4)]
    average, steps = discovery.average_rule(state)
    assert not np.allclose(prior(average), prior(state.rule))
    assert steps == {task.name: 5 * 4 * TRUNCATION for task in TASKS}
    assert discovery.environment_steps(5) == sum(steps.values())


THREE = (environments.make("catch/5x5"), environments.make("catch/3x3"), CATCH)
REFUSED = {
    "unroll": (
        {"evolution": {"truncation": 9}},
        "evolution.truncation is 9; expected at least 10 environment steps, an unroll, and at most",
    ),
    "lifetime": ({"evolution": {"truncation": 99}}, "is 99; expected .* at most 85, the shortest"),
    "tasks": ({"evolution": {"num_tasks": 4}, "population": PopulationConfig(16)}, "num_tasks is"),
    "groups": ({"tasks": THREE}, "evolution.num_tasks is 2; expected at least 3, a place for each"),
    "host": ({"tasks": (*TASKS, environments.make("crafter/reward"))}, "simulated on the host"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make(**changes).check()

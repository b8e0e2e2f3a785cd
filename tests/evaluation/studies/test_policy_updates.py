"""How rules change a policy, by hand, and the weights of a prior."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from agents.ppo.losses import DRIFTS
from evaluation.studies import policy_updates
from evaluation.studies.policy_updates import NUM_ACTIONS, PROBABILITY, push, push_of_drift
from tests.disco.common import TEN_FEATURES, random_outputs, random_trajectory

RATIOS, ADVANTAGES = np.array([0.5, 1.0, 2.0]), np.array([[-1.5], [0.0], [0.3]])


def rule(**changes) -> disco.AnchoredRule:
    """One that does as its prior says."""
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=2, agent_features=2)
    settings = {
        "num_bins": 21,
        "max_value": 10.0,
        "policy_prior": 0.9,
        "advantage_weight": 2.0,
        "normalize_advantage": False,
        "reads_predictions": False,
        "y_cost": 0.0,
        "z_cost": 0.0,
    }
    return disco.AnchoredRule.create(jax.random.key(0), sizes, **(settings | changes))


def with_head(rule, row, values):
    """The rule whose prior's outputs depend on a number of the agent."""
    head = rule.parameters["trajectory/policy_prior"]
    changed = {"w": head["w"].at[row].set(jnp.asarray(values)), "b": head["b"]}
    return dataclasses.replace(
        rule, parameters=rule.parameters | {"trajectory/policy_prior": changed}
    )


def test_the_push_of_a_rule_that_does_as_its_prior_says():
    """Whatever the ratio: the target's logits are 0.9 times the policy's, and 2 A."""
    found = push(rule(), RATIOS, ADVANTAGES, updates=0)
    others = (1.0 - PROBABILITY) / (NUM_ACTIONS - 1)
    for row, advantage in zip(found, ADVANTAGES.ravel(), strict=True):
        odds = np.exp(0.9 * np.log(PROBABILITY) + 2.0 * advantage)
        target = odds / (odds + (NUM_ACTIONS - 1) * np.exp(0.9 * np.log(others)))
        np.testing.assert_allclose(row, target - PROBABILITY, rtol=1e-4, atol=1e-6)


def test_the_push_is_that_of_an_agent_of_an_age_and_of_a_scale():
    """Age and scale, the last two numbers that the prior reads, double the advantage's weight."""
    log_2 = float(np.log(2.0))
    by_age = with_head(rule(), -2, [0.0, log_2 * 10.0 / np.log1p(1_000)])
    by_scale = with_head(rule(), -1, [0.0, log_2])
    doubled = push(rule(advantage_weight=4.0), RATIOS, ADVANTAGES, updates=0)
    once = push(rule(), RATIOS, ADVANTAGES, updates=0)
    for one, settings in (
        (by_age, {"updates": 1_000}),
        (by_scale, {"updates": 0, "deviation": 10.0}),
    ):
        # The moments move by a hundredth towards the transition's advantage.
        np.testing.assert_allclose(push(one, RATIOS, ADVANTAGES, **settings), doubled, atol=2e-2)
        at_first = push(one, RATIOS, ADVANTAGES, updates=0, deviation=1.0)
        np.testing.assert_allclose(at_first, once, atol=2e-2)


def test_the_push_of_ppo_stops_at_its_bounds_and_that_of_dpo_before():
    ratios, signs = np.array([0.5, 1.0, 1.1, 1.5]), np.array([[1.0], [-1.0]])
    clip = push_of_drift(DRIFTS["clip"], ratios, signs)
    gain = (1.0 - PROBABILITY) * ratios
    np.testing.assert_allclose(clip[0], gain * [1.0, 1.0, 1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(clip[1], -gain * [0.0, 1.0, 1.0, 1.0], atol=1e-6)
    dpo = push_of_drift(DRIFTS["dpo"], ratios, signs)
    np.testing.assert_allclose(dpo[:, 1], clip[:, 1], atol=1e-6)
    assert 0.0 < dpo[0, 3] < gain[3]


def test_a_ratio_that_no_policy_has_is_refused():
    with pytest.raises(ValueError, match=r"ratio is 0\.2; expected more than 0\.25"):
        push(rule(), np.array([0.2]), ADVANTAGES, updates=0)


def test_weights_by_age_and_what_they_depend_on():
    trajectory = random_trajectory()
    aging = with_head(rule(), -2, [0.0, 2.0])
    outputs, state = random_outputs(aging, trajectory), aging.init({})
    by_age = policy_updates.weights_by_age(aging, outputs, outputs, trajectory, state)
    assert [age for age, _ in by_age["policy_prior"]] == list(policy_updates.AGES)
    assert [x for _, x in by_age["policy_prior"]] == pytest.approx([0.9] * 5)
    expected = [2.0 * np.exp(2.0 * np.log1p(age) / 10.0) for age in policy_updates.AGES]
    assert [x for _, x in by_age["advantage_weight"]] == pytest.approx(expected, rel=1e-4)
    weights = policy_updates.weights_of(aging, outputs, outputs, trajectory, state)
    assert weights["advantage_weight"].shape == trajectory.action.shape
    x = np.arange(12.0).reshape(4, 3)
    found = policy_updates.correlations({"w": x}, {"cube": x**3, "minus": -x, "none": 0 * x})
    assert found == {"w": {"cube": 1.0, "minus": -1.0, "none": 0.0}}

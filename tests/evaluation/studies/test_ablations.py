"""Rules that do not read a part of what they would read, and their files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from evaluation.studies import ablations
from evaluation.studies.ablations import Ablated
from tests.disco.common import (
    TEN_FEATURES,
    extended_rule,
    random_outputs,
    random_trajectory,
    relative_difference,
    small_rule,
    targets_of,
)

SWITCHES = ("reads_predictions", "reads_values", "has_lifetime")


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_rule_without_a_part_does_not_depend_on_it(switch):
    """Other predictions, values or memories make no difference to it, and one to a whole rule."""
    trajectory = random_trajectory()
    whole = extended_rule()
    without = Ablated(**{**vars(whole), switch: False})
    outputs, target_outputs = (random_outputs(whole, trajectory, seed=seed) for seed in (1, 2))
    state = whole.init({})
    other, other_state = dict(outputs), state
    if switch == "reads_predictions":
        other |= {name: -outputs[name] for name in ("y", "z")}
    elif switch == "reads_values":
        other |= {"q": -outputs["q"]}
    else:
        # What the next update would see, had the lifetime RNN been stepped.
        _, other_state = targets_of(whole, outputs, target_outputs, trajectory, state)
        lifetime = other_state.memory.lifetime
        other_state = dataclasses.replace(
            state, memory=dataclasses.replace(state.memory, lifetime=lifetime)
        )

    def meta_targets(rule, outputs, state):
        targets, after = targets_of(rule, outputs, target_outputs, trajectory, state)
        return [targets.pi, targets.y, targets.z], after

    before, after = meta_targets(without, outputs, state)
    if switch == "has_lifetime":
        assert relative_difference(after.memory.lifetime, state.memory.lifetime) == 0
    else:
        assert relative_difference(before, meta_targets(without, other, state)[0]) == 0
    seen, _ = meta_targets(whole, outputs, state)
    moved, _ = meta_targets(whole, other, other_state)
    assert relative_difference(seen, moved) > 0


def test_a_rule_without_values_has_a_policy_target_without_advantages():
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=3)
    weights = {"policy_prior": 0.9, "advantage_weight": 3.0, "action_advantage_weight": 0.5}
    rule = ablations.create(jax.random.key(0), sizes, False, **weights, reads_values=False)
    assert isinstance(rule, Ablated)
    trajectory = random_trajectory()
    outputs = random_outputs(rule, trajectory)
    targets, _ = targets_of(rule, outputs, outputs, trajectory, rule.init({}))
    logits = outputs["logits"][:-1]
    centred = logits - jnp.mean(logits, axis=-1, keepdims=True)
    np.testing.assert_allclose(targets.pi, 0.9 * centred, rtol=1e-4, atol=1e-5)


def test_files_of_ablated_rules_are_read_as_such(tmp_path):
    """And `disco.load`, whose package has no ablations, refuses them."""
    rule = Ablated(**vars(extended_rule()), has_lifetime=False)
    disco.save(rule, tmp_path / "rule.npz")
    found = ablations.load(tmp_path / "rule.npz")
    assert isinstance(found, Ablated)
    assert jax.tree.structure(found) == jax.tree.structure(rule)
    with pytest.raises(disco.RuleFileError, match=r"has_lifetime is False: .*ablations\.load"):
        disco.load(tmp_path / "rule.npz")
    whole = dataclasses.replace(rule, has_lifetime=True)
    disco.save(whole, tmp_path / "rule.npz")
    assert type(disco.load(tmp_path / "rule.npz")) is disco.AnchoredRule
    assert type(ablations.load(tmp_path / "rule.npz")) is disco.AnchoredRule


def test_predictions_can_be_hidden_from_the_published_rule():
    rule = small_rule()
    trajectory = random_trajectory()
    outputs, other = random_outputs(rule, trajectory), random_outputs(rule, trajectory, seed=1)
    blind = ablations.without_predictions(rule)

    def changes(rule: disco.Rule) -> float:
        found = [
            targets_of(rule, outputs | y_and_z, outputs, trajectory, rule.init({}))[0].pi
            for y_and_z in ({}, {name: other[name] for name in ("y", "z")})
        ]
        return relative_difference(*found)

    assert changes(blind) == 0
    assert changes(rule) > 0

"""The hand-set rule beside a discovered one, and its target by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from disco import moments
from disco.values import decode_value
from tests.disco.common import (
    float64,
    gradient_of,
    random_outputs,
    random_trajectory,
    relative_difference,
    small_rule,
    targets_of,
)


@pytest.mark.slow
def test_values_and_advantages_are_those_of_a_discovered_rule():
    with float64():
        # As the hand-set rule, it leaves masked transitions out of its moments.
        discovered = small_rule(masks_moments=True)
        trajectory = random_trajectory()
        outputs = random_outputs(discovered, trajectory, seed=1)
        target_outputs = random_outputs(discovered, trajectory, seed=2)
        state = discovered.init({})
        expected, _ = targets_of(discovered, outputs, target_outputs, trajectory, state)
        rule = disco.HandSetRule(num_bins=discovered.num_bins, max_value=discovered.max_value)

        def own(outputs):
            return {name: outputs[name] for name in ("logits", "q")}

        found, new = targets_of(rule, own(outputs), own(target_outputs), trajectory, rule.init({}))
        for name in ("q_target", "q_td", "advantage", "normalized_advantage"):
            assert relative_difference(getattr(found, name), getattr(expected, name)) < 1e-12
        assert new.memory.advantage.decay_product == moments.DECAY
        # The loss of q is also that of a discovered rule without the other terms.
        alone = dataclasses.replace(
            discovered, pi_cost=0.0, y_cost=0.0, z_cost=0.0, aux_policy_cost=0.0
        )
        losses, _ = alone.transition_losses(outputs, expected, trajectory)
        flat = dataclasses.replace(found, pi=outputs["logits"][:-1])  # No change of the policy.
        own_losses, metrics = rule.transition_losses(own(outputs), flat, trajectory)
        np.testing.assert_allclose(own_losses, losses, rtol=1e-10)
        assert float(metrics["pi_loss"]) == pytest.approx(0.0, abs=1e-12)


def test_the_policy_target_by_hand():
    """Half the logits 1 and 3, centred; twice the advantage; 3 times those of both actions."""
    rule = disco.HandSetRule(
        num_bins=3,
        max_value=1.0,
        policy_prior=0.5,
        advantage_weight=2.0,
        action_advantage_weight=3.0,
        normalize_advantage=False,
    )
    trajectory = random_trajectory(num_transitions=2, batch_size=2, num_actions=2)
    trajectory = dataclasses.replace(trajectory, action=jnp.array([[0, 1], [1, 0]]))
    outputs = {
        "logits": jnp.broadcast_to(jnp.array([1.0, 3.0]), (3, 2, 2)),
        "q": jax.random.normal(jax.random.key(0), (3, 2, 2, 3)),
    }
    targets, _ = targets_of(rule, outputs, outputs, trajectory, rule.init({}))
    weighted = 2.0 * np.asarray(targets.advantage)
    expected = np.broadcast_to(np.array([-0.5, 0.5]), (2, 2, 2)).copy()
    value = np.asarray(decode_value(outputs["q"][:-1], 1.0))
    probabilities = np.asarray(jax.nn.softmax(jnp.array([1.0, 3.0])))
    expected += 3.0 * (value - (value @ probabilities)[..., None])
    for t in range(2):
        for b in range(2):
            expected[t, b, int(trajectory.action[t, b])] += weighted[t, b]
    np.testing.assert_allclose(targets.pi, expected, rtol=1e-5)
    assert abs(weighted).max() > 0.1


def test_a_target_network_is_required():
    rule, trajectory = disco.HandSetRule(num_bins=21), random_trajectory()
    outputs = random_outputs(rule, trajectory)
    with pytest.raises(ValueError, match="target_outputs is None; HandSetRule reads"):
        rule.targets(outputs, None, trajectory, rule.init({}))


def test_masked_transitions_do_not_count_whatever_they_hold():
    rule, trajectory = disco.HandSetRule(num_bins=21), random_trajectory()
    outputs = random_outputs(rule, trajectory)
    where = ~np.asarray(trajectory.mask)
    assert where.any()
    bad = dataclasses.replace(trajectory, reward=jnp.where(where, jnp.nan, trajectory.reward))

    def unroll(params, trajectory):
        return {name: params[name] for name in outputs}

    def update(trajectory):
        return gradient_of(rule, outputs, rule.init(outputs), trajectory, unroll)[0]

    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(update(bad)))
    neutral = dataclasses.replace(trajectory, reward=jnp.where(where, 0.0, trajectory.reward))
    assert relative_difference(update(bad), update(neutral)) == 0

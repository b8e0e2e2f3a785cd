"""Policies with illegal actions, whose logits are -inf: all is finite, and targets avoid them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from disco.values import (
    entropy,
    kl_divergence,
    mean_of_legal,
    zero_where_all_illegal,
)
from meta.objective import target_statistics
from tests.disco.common import (
    TRANSFORMER_SIZES,
    extended_rule,
    gradient_of,
    mlp_params,
    mlp_unroll,
    random_trajectory,
    relative_difference,
    small_rule,
)

HAND_DESIGNED = {
    "hand-set": disco.HandSetRule(num_bins=21, max_value=10.0, action_advantage_weight=0.5),
    "actor-critic": disco.ActorCritic(normalize_advantage=True),
    "policy gradient": disco.PolicyGradient(),
}
DISCOVERED = {
    "discovered": small_rule(),
    "anchored": small_rule(policy_prior=0.9, advantage_weight=1.0, action_advantage_weight=0.5),
    "learned prior": extended_rule(),
    "transformer": small_rule(sizes=TRANSFORMER_SIZES),
}
RULES = DISCOVERED | HAND_DESIGNED
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)

TRAJECTORY = random_trajectory()
A = 3
# In each state an action that is not taken; in the last state, and in one masked row, all of them.
MASKED = tuple(np.argwhere(~np.asarray(TRAJECTORY.mask))[0].tolist())
IS_LEGAL = np.ones((8, 3, A), bool)
np.put_along_axis(IS_LEGAL[:-1], (np.asarray(TRAJECTORY.action)[..., None] + 1) % A, False, axis=-1)
IS_LEGAL[-1] = IS_LEGAL[MASKED] = False


def legal_unroll(params, trajectory):
    outputs = mlp_unroll(params, trajectory)
    return outputs | {"logits": jnp.where(IS_LEGAL, outputs["logits"], -jnp.inf)}


def of_legal_behaviour(trajectory=TRAJECTORY):
    logits = jnp.where(IS_LEGAL[:-1], trajectory.behaviour_logits, -jnp.inf)
    return dataclasses.replace(trajectory, behaviour_logits=logits)


def all_finite(tree):
    return all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(tree))


@every_rule
@pytest.mark.parametrize("trajectory", [TRAJECTORY, of_legal_behaviour()], ids=["any", "legal"])
def test_updates_are_finite(rule, trajectory):
    params = mlp_params(rule, trajectory)
    arguments = rule, params, rule.init(params), trajectory, legal_unroll
    gradient, aux = gradient_of(*arguments)
    assert all_finite((gradient, aux.state, aux.metrics))
    assert any(jnp.any(x != 0) for x in jax.tree.leaves(gradient))
    if hasattr(aux.targets, "pi"):
        illegal = ~IS_LEGAL[:-1] & IS_LEGAL[:-1].any(-1, keepdims=True)
        assert np.all(np.asarray(jax.nn.softmax(aux.targets.pi))[illegal] == 0.0)


def unroll_without_action_0(params, trajectory):
    outputs = mlp_unroll(params, trajectory)
    return outputs | {"logits": outputs["logits"].at[(*MASKED, 0)].set(-jnp.inf)}


@every_rule
def test_a_masked_row_may_have_an_illegal_action(rule):
    trajectory = dataclasses.replace(
        TRAJECTORY,
        action=TRAJECTORY.action.at[MASKED].set(0),
        behaviour_logits=TRAJECTORY.behaviour_logits.at[(*MASKED, 0)].set(-jnp.inf),
    )
    params = mlp_params(rule, trajectory)
    gradient, aux = gradient_of(
        rule, params, rule.init(params), trajectory, unroll_without_action_0
    )
    assert all_finite((gradient, aux.state, aux.metrics))


@pytest.mark.parametrize("rule", HAND_DESIGNED.values(), ids=HAND_DESIGNED)
def test_an_illegal_action_is_as_none(rule):
    """The gradient is that of an agent that does not have the action."""
    trajectory = random_trajectory(num_actions=A - 1)
    params = mlp_params(rule, trajectory)

    def with_illegal(params, trajectory):
        outputs = mlp_unroll(params, trajectory)

        def more(x, value):
            return jnp.concatenate([x, jnp.full_like(x[:, :, :1], value)], axis=2)

        more_outputs = {name: more(x, 0.0) for name, x in outputs.items() if name != "value"}
        return outputs | more_outputs | {"logits": more(outputs["logits"], -jnp.inf)}

    logits = jnp.pad(
        trajectory.behaviour_logits, ((0, 0), (0, 0), (0, 1)), constant_values=-jnp.inf
    )
    more = dataclasses.replace(trajectory, behaviour_logits=logits)
    found, _ = gradient_of(rule, params, rule.init(params), more, with_illegal)
    expected, _ = gradient_of(rule, params, rule.init(params), trajectory)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "discovered",
        pytest.param("learned prior", marks=pytest.mark.slow),
        pytest.param("anchored", marks=pytest.mark.thorough),
        pytest.param("transformer", marks=pytest.mark.thorough),
    ],
)
def test_meta_gradients_are_finite(name):
    rule, trajectory = DISCOVERED[name], of_legal_behaviour()
    params = mlp_params(rule, trajectory)

    @jax.jit
    @jax.grad
    def meta_gradient(arguments):
        rule, params = arguments
        gradient, aux = rule.gradient(params, rule.init(params), trajectory, legal_unroll)
        after = jax.tree.map(lambda p, g: p - g, params, gradient)
        gradient, aux = rule.gradient(after, aux.state, trajectory, legal_unroll)
        logits = zero_where_all_illegal(legal_unroll(after, trajectory)["logits"])
        statistics = jax.tree.leaves(target_statistics(aux.targets, logits))
        return sum(jnp.sum(jnp.square(x)) for x in [*jax.tree.leaves(gradient), *statistics])

    found = meta_gradient((rule, params))
    assert all_finite(found)
    assert any(jnp.any(x != 0) for x in jax.tree.leaves(found[0]))


def test_zero_log_zero_is_zero_with_its_derivatives():
    with_zero = jnp.array([0.3, -1.0, -jnp.inf])
    without, other = with_zero[:2], jnp.array([0.1, 0.7, 2.0])

    def divergence(logits):
        log_q = jax.nn.log_softmax(jnp.where(jnp.isinf(logits), logits, other[: len(logits)]))
        return kl_divergence(jax.nn.log_softmax(logits), log_q)

    for function in (lambda logits: entropy(jax.nn.log_softmax(logits)), divergence):
        for derivative in (jax.grad, jax.hessian):
            found = derivative(function)(with_zero)
            expected = derivative(function)(without)
            np.testing.assert_allclose(found[:2][..., :2], expected, rtol=1e-5, atol=1e-7)
            assert np.all(np.asarray(found)[2] == 0.0)
        np.testing.assert_allclose(function(with_zero), function(without), rtol=1e-6)
    assert mean_of_legal(with_zero) == pytest.approx(-0.35)

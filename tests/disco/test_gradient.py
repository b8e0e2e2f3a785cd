"""The learning gradient, and its derivative: what discovery differentiates."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import disco
from tests.disco.common import (
    TRANSFORMER_SIZES,
    extended_rule,
    float64,
    mlp_params,
    mlp_unroll,
    random_state,
    random_trajectory,
    relative_difference,
    small_rule,
)

RULES: dict[str, Callable[[], disco.Rule]] = {
    "discovered": small_rule,
    "discovered, extended": extended_rule,
    "discovered, transformer": lambda: small_rule(sizes=TRANSFORMER_SIZES),
    "published sizes": lambda: disco.DiscoveredRule.create(jax.random.key(0)),
    "actor-critic": disco.ActorCritic,
    "categorical actor-critic": lambda: disco.ActorCritic(num_bins=21, normalize_advantage=True),
    "policy gradient": disco.PolicyGradient,
    "hand-set": lambda: disco.HandSetRule(num_bins=21, max_value=10.0),
}


def compiled(function):
    return jax.jit(function, static_argnums=3)


def agent_of(rule: disco.Rule, trajectory: disco.Trajectory):
    """Parameters, a state in the middle of a lifetime, and the network."""
    params = mlp_params(rule, trajectory, seed=1)
    state = rule.init(params)
    if isinstance(rule, disco.DiscoveredRule):
        memory = random_state(rule).memory
        state = disco.RuleState(target_params=mlp_params(rule, trajectory, seed=2), memory=memory)
    return params, state, mlp_unroll


@pytest.mark.parametrize("make_rule", RULES.values(), ids=RULES)
def test_gradient_is_the_gradient_of_the_loss(make_rule):
    with float64():
        rule = make_rule()
        trajectory = random_trajectory()
        assert bool(trajectory.last.any())
        assert not bool(trajectory.mask.all())
        assert not jnp.array_equal(trajectory.last, trajectory.discount == 0)
        params, state, unroll = agent_of(rule, trajectory)

        gradients, aux = compiled(rule.gradient)(params, state, trajectory, unroll)
        expected, expected_aux = compiled(jax.grad(rule.loss, has_aux=True))(
            params, state, trajectory, unroll
        )

        assert relative_difference(gradients, expected) < 1e-12
        assert relative_difference(aux, expected_aux) < 1e-12


def plain_gradient(rule: disco.Rule, params, state, trajectory, unroll):
    """`rule.gradient` as one would write it, to be differentiated in reverse over reverse."""
    outputs = unroll(params, trajectory)
    has_target = state.target_params is not None
    target_outputs = unroll(state.target_params, trajectory) if has_target else None
    targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
    gradients = jax.grad(lambda p: rule.output_loss(unroll(p, trajectory), targets, trajectory)[0])(
        params
    )
    if has_target:
        keep = rule.target_params_coefficient
        assert keep is not None
        new_state = dataclasses.replace(
            new_state,
            target_params=jax.tree.map(
                lambda old, new: keep * old + (1.0 - keep) * new, state.target_params, params
            ),
        )
    return gradients, targets, new_state


def mixed_mode_gradient(rule: disco.Rule, params, state, trajectory, unroll):
    gradients, aux = rule.gradient(params, state, trajectory, unroll)
    return gradients, aux.targets, aux.state


def scalar_of(tree: Any) -> jax.Array:
    """A number that depends on every entry of every leaf."""
    return sum(
        (
            jnp.sum(jnp.sin(x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape)))
            for x in jax.tree.leaves(tree)
        ),
        jnp.zeros(()),
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("discovered", marks=pytest.mark.slow),
        pytest.param("discovered, extended", marks=pytest.mark.thorough),
        "categorical actor-critic",
        "policy gradient",
    ],
)
def test_derivative_of_the_gradient_equals_reverse_over_reverse(name):
    """With respect to rule, parameters and state, through two updates by gradient descent."""

    def two_updates(gradient, unroll, trajectories, rule, params, state):
        def update(agent, trajectory):
            params, state = agent
            gradients, targets, state = gradient(rule, params, state, trajectory, unroll)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
            return (params, state), scalar_of((gradients, targets, state))

        _, scalars = jax.lax.scan(update, (params, state), trajectories)
        return jnp.sum(scalars)

    with float64():
        rule = RULES[name]()
        first = random_trajectory(0)
        trajectories = jax.tree.map(lambda *x: jnp.stack(x), first, random_trajectory(1))
        params, state, unroll = agent_of(rule, first)

        def differentiate(gradient):
            function = jax.grad(two_updates, argnums=(3, 4, 5))
            return jax.jit(function, static_argnums=(0, 1))(
                gradient, unroll, trajectories, rule, params, state
            )

        mixed = differentiate(mixed_mode_gradient)
        plain = differentiate(plain_gradient)

        assert relative_difference(mixed, plain) < 1e-9
        if isinstance(rule, disco.DiscoveredRule):
            assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(plain[0]))


def test_no_gradient_flows_through_targets_of_the_loss():
    rule = small_rule()
    trajectory = random_trajectory()
    params, state, unroll = agent_of(rule, trajectory)
    loss = jax.jit(lambda state: rule.loss(params, state, trajectory, unroll)[0])
    by_state = jax.grad(loss)(state)
    assert all(bool(jnp.all(leaf == 0)) for leaf in jax.tree.leaves(by_state))

"""What a rule reads of an agent's progress, and the factor of the agent's steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import disco
from disco import anchored, moments
from disco.anchored import AGENT_FEATURES
from tests.disco.common import (
    TEN_FEATURES,
    mlp_params,
    mlp_unroll,
    random_outputs,
    random_trajectory,
    targets_of,
)

SIZES = dataclasses.replace(TEN_FEATURES, prior_outputs=4, agent_features=7, prior_features=3)


def progressing(step: float = 0.0) -> disco.AnchoredRule:
    """A rule whose factor of steps is a constant."""
    rule = disco.AnchoredRule.create(
        jax.random.key(0),
        SIZES,
        num_bins=21,
        max_value=10.0,
        policy_prior=0.9,
        advantage_weight=1.0,
        action_advantage_weight=0.1,
        masks_moments=True,
    )
    head = rule.parameters[anchored.PRIOR]
    changed = {"w": head["w"], "b": head["b"].at[3].set(step)}
    return dataclasses.replace(rule, parameters=rule.parameters | {anchored.PRIOR: changed})


def features_after(batches):
    rule = progressing()
    state = rule.init({})
    inputs = None
    for trajectory in batches:
        outputs = random_outputs(rule, trajectory)
        inputs, _ = rule.inputs_and_memory(outputs, outputs, trajectory, state.memory)
        _, state = targets_of(rule, outputs, outputs, trajectory, state)
    assert inputs is not None
    found = anchored.agent_features(state.memory, inputs)
    return dict(zip(AGENT_FEATURES, map(float, found), strict=True)), state.memory, inputs


def rewarded(reward, seed=0):
    trajectory = random_trajectory(seed)
    whole = jnp.ones_like(trajectory.mask)
    return dataclasses.replace(
        trajectory, reward=jnp.broadcast_to(reward, whole.shape).astype(float), mask=whole
    )


def test_what_is_read_of_the_progress():
    one_in_seven = jnp.zeros((7, 3)).at[2].set(2.0)
    found, memory, inputs = features_after([rewarded(one_in_seven)] * 3)
    logits = np.asarray(inputs.outputs["logits"][:-1])
    assert found["age"] == pytest.approx(np.log(4.0) / 10.0)
    policy = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = -(policy * np.log(policy)).sum(axis=-1).mean() / np.log(3.0)
    assert found["entropy"] == pytest.approx(expected, rel=1e-5)
    assert found["arrivals"] == pytest.approx(np.log10(1.0 / 7.0), rel=1e-4)
    by_value, action = np.asarray(inputs.estimates.action_advantage), inputs.trajectory.action
    of_taken = np.take_along_axis(by_value[:-1], np.asarray(action)[..., None], -1)
    expected = np.sqrt(np.mean(of_taken**2)) / moments.deviation(memory.advantage)
    assert found["signal"] == pytest.approx(np.log10(expected), rel=1e-4)


def test_rewards_that_rise_are_a_trend():
    flat, *_ = features_after([rewarded(1.0)] * 30)
    rising, *_ = features_after([rewarded(0.1)] * 20 + [rewarded(1.0)] * 10)
    falling, *_ = features_after([rewarded(1.0)] * 20 + [rewarded(0.1)] * 10)
    scaled, *_ = features_after([rewarded(10.0)] * 20 + [rewarded(100.0)] * 10)
    assert flat["trend"] < 0.05
    assert rising["trend"] > 0.2
    assert falling["trend"] < -0.2
    assert scaled["trend"] == pytest.approx(rising["trend"], rel=1e-3)


def test_without_rewards_nothing_arrives():
    found, *_ = features_after([rewarded(0.0)] * 2)
    assert found["arrivals"] == -3.0
    assert found["trend"] == 0.0


@pytest.mark.parametrize("number", range(8))
def test_each_number_of_features_is_read(number):
    sizes = dataclasses.replace(SIZES, agent_features=number)
    rule = disco.AnchoredRule.create(
        jax.random.key(0),
        sizes,
        num_bins=21,
        max_value=10.0,
        policy_prior=0.9,
        advantage_weight=1.0,
        action_advantage_weight=0.1,
    )
    rows = rule.parameters[anchored.PRIOR]["w"].shape[0]
    assert rows == sizes.trajectory + number + 3
    trajectory = random_trajectory()
    outputs = random_outputs(rule, trajectory)
    targets, state = targets_of(rule, outputs, outputs, trajectory, rule.init({}))
    assert (state.memory.updates is not None) == (number > 0)
    assert (state.memory.recent is not None) == (number > 4)
    assert np.isfinite(targets.pi).all()


@pytest.mark.parametrize("step", [0.0, -1.5])
def test_the_factor_of_steps(step):
    """It is the same from the loss and the gradient, and multiplies what the optimiser makes."""
    rule, trajectory = progressing(step), random_trajectory()
    params = mlp_params(rule, trajectory)
    state = rule.init(params)
    _, by_loss = rule.loss(params, state, trajectory, mlp_unroll)
    _, by_gradient = rule.gradient(params, state, trajectory, mlp_unroll)
    for found in (by_loss.step, by_gradient.step, by_loss.metrics["step"]):
        assert np.asarray(found) == pytest.approx(np.exp(step), rel=1e-5)


def test_rules_without_it_ask_for_none():
    rule, trajectory = disco.HandSetRule(num_bins=21, max_value=10.0), random_trajectory()
    params = mlp_params(rule, trajectory)
    assert rule.gradient(params, rule.init(params), trajectory, mlp_unroll)[1].step is None


def test_the_factor_can_be_learned():
    """Its derivative reaches the rule through the targets."""
    trajectory = random_trajectory()

    def moved(rule):
        params = mlp_params(rule, trajectory)
        gradients, aux = rule.gradient(params, rule.init(params), trajectory, mlp_unroll)
        step = jax.lax.stop_gradient(optax.tree.norm(gradients))
        return aux.step * step

    gradient = jax.grad(moved)(progressing()).parameters[anchored.PRIOR]["b"]
    assert float(gradient[3]) > 0.0

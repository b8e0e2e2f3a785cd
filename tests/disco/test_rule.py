"""A rule as a pytree and as an interface; what it refuses."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from disco import meta_network
from disco.architectures import ARCHITECTURES, TRANSFORMER
from disco.values import decode_value
from tests.annotations import unchecked
from tests.disco.common import (
    SIZES,
    TEN_FEATURES,
    TRANSFORMER_SIZES,
    anchored,
    extended_rule,
    gradient_of,
    mlp_params,
    mlp_unroll,
    random_outputs,
    random_state,
    random_trajectory,
    relative_difference,
    small_rule,
    targets_of,
)


def test_leaves_are_the_meta_parameters():
    rule = small_rule()
    shapes = meta_network.layer_shapes(SIZES)
    count = sum(inputs * outputs + outputs for inputs, outputs in shapes.values())
    leaves = jax.tree.leaves(rule)
    assert len(leaves) == 2 * len(shapes)
    assert sum(leaf.size for leaf in leaves) == count
    doubled = jax.tree.map(lambda x: 2 * x, rule)
    assert isinstance(doubled, disco.DiscoveredRule)
    assert doubled.sizes == rule.sizes
    assert jax.tree.leaves(disco.ActorCritic()) == []


def test_default_sizes_have_the_published_number_of_parameters():
    shapes = meta_network.layer_shapes(disco.MetaNetworkSizes())
    assert sum(inputs * outputs + outputs for inputs, outputs in shapes.values()) == 754_778


def test_rules_can_be_stacked_and_vmapped():
    trajectory = random_trajectory()
    rules = [small_rule(seed) for seed in (0, 1)]
    outputs, state = random_outputs(rules[0], trajectory), random_state(rules[0])

    def targets(rule):
        return targets_of(rule, outputs, outputs, trajectory, state)[0]

    stacked = jax.vmap(targets)(jax.tree.map(lambda *x: jnp.stack(x), *rules))
    for index, rule in enumerate(rules):
        one = jax.tree.map(lambda x, i=index: x[i], stacked)
        assert relative_difference(one, targets(rule)) < 1e-4


def test_output_shapes():
    assert disco.DiscoveredRule.create(jax.random.key(0)).output_shapes(4) == {
        "logits": (4,),
        "y": (600,),
        "z": (4, 600),
        "q": (4, 601),
        "aux_pi": (4, 4),
    }
    assert small_rule().output_shapes(2)["z"] == (2, 12)
    assert disco.ActorCritic().output_shapes(5) == {"logits": (5,), "value": (1,)}
    assert disco.PolicyGradient(num_bins=31).output_shapes(5)["value"] == (31,)


@pytest.mark.parametrize("num_actions", [1, 2, 5])
def test_works_with_any_number_of_actions(num_actions):
    rule = small_rule()
    trajectory = random_trajectory(num_actions=num_actions, num_transitions=2)
    outputs = random_outputs(rule, trajectory)
    targets, _ = targets_of(rule, outputs, outputs, trajectory, random_state(rule))
    assert targets.pi.shape == (2, 3, num_actions)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(targets))


def test_target_network_averages_the_parameters_from_before_the_update():
    rule = small_rule(target_params_coefficient=0.75)
    trajectory = random_trajectory()
    params, other = (mlp_params(rule, trajectory, seed) for seed in (0, 1))
    state = dataclasses.replace(rule.init(params), target_params=other)
    _, aux = gradient_of(rule, params, state, trajectory)
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, other, params)
    assert relative_difference(aux.state.target_params, expected) < 1e-6


def test_an_initial_agent_is_its_own_target_network():
    rule = small_rule()
    params = {"w": jnp.ones(3, jnp.float32)}
    state = rule.init(params)
    assert relative_difference(state.target_params, params) == 0
    assert float(state.memory.advantage.decay_product) == 1.0
    assert not np.any(state.memory.lifetime.hidden)
    assert disco.ActorCritic().init(params).target_params is None


def test_creation_is_reproducible():
    assert relative_difference(small_rule(3), small_rule(3)) == 0
    assert relative_difference(small_rule(3), small_rule(4)) > 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"num_bins": 20}, "num_bins is 20"),
        ({"max_value": -1.0}, "max_value is -1.0"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"lambda_": float("nan")}, "lambda_ is nan"),
        ({"y_cost": -2.0}, "y_cost is -2.0"),
        ({"policy_prior": 1.1}, "policy_prior is 1.1"),
    ],
)
def test_refuses_hyper_parameters_out_of_range(change, found):
    with pytest.raises(ValueError, match=found):
        small_rule(**change)


def test_a_transformer_sees_what_comes_and_not_what_was():
    """So the last transitions of a trajectory are read as if they were all of it."""
    layers = meta_network.init(jax.random.key(0), TRANSFORMER_SIZES)
    layers = {name.removeprefix("trajectory/"): layer for name, layer in layers.items()}
    shape = (9, 3, TRANSFORMER_SIZES.features)
    features = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    ends = jnp.zeros(shape[:2], bool)
    read = ARCHITECTURES[TRANSFORMER].apply
    whole = read(layers, features, ends)
    part = read(layers, features[4:], ends[4:])
    np.testing.assert_allclose(part, whole[4:], atol=1e-5)
    others = read(layers, features.at[8].add(1.0), ends)
    assert bool(jnp.all(jnp.max(jnp.abs(others - whole), axis=-1) > 1e-4))


def test_a_transformer_has_as_many_layers_and_heads_as_fit():
    names = meta_network.layer_shapes(TRANSFORMER_SIZES)
    assert sum(name.endswith("/heads") for name in names) == 2
    assert "trajectory/lstm" not in names
    with pytest.raises(ValueError, match=r"sizes.trajectory is 18; expected a multiple of .* 4"):
        dataclasses.replace(TRANSFORMER_SIZES, trajectory=18)
    with pytest.raises(ValueError, match=r"sizes.transformer_layers is -1; expected .* least 0"):
        dataclasses.replace(SIZES, transformer_layers=-1)


def test_refuses_empty_sizes():
    with pytest.raises(ValueError, match=r"sizes\.lifetime is 0"):
        dataclasses.replace(SIZES, lifetime=0)


def test_refuses_a_number_of_action_features_that_means_nothing():
    with pytest.raises(ValueError, match=r"sizes\.action_features is 11; expected 9 or 10"):
        dataclasses.replace(SIZES, action_features=11)


def test_a_silent_rule_with_a_policy_prior_keeps_that_much_of_the_policy():
    def policy_target(prior):
        rule = anchored(small_rule(), policy_prior=prior)
        silent = jax.tree.map(jnp.zeros_like, rule.parameters["trajectory/policy_target_1"])
        parameters = rule.parameters | {"trajectory/policy_target_1": silent}
        rule = dataclasses.replace(rule, parameters=parameters)
        targets, _ = targets_of(rule, outputs, outputs, trajectory, random_state(rule))
        return jax.nn.softmax(targets.pi)

    trajectory = random_trajectory()
    outputs = random_outputs(small_rule(), trajectory)
    logits = outputs["logits"][:-1]
    for prior in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(policy_target(prior), jax.nn.softmax(prior * logits), rtol=1e-5)


def test_the_tenth_feature_is_the_advantage_of_the_action_taken():
    """Without weights it leaves the rule that has nine; with them the targets change."""
    rule = small_rule(sizes=TEN_FEATURES)
    trajectory = random_trajectory()
    outputs, state = random_outputs(rule, trajectory), random_state(rule)

    def logits(rule):
        return targets_of(rule, outputs, outputs, trajectory, state)[0].pi

    def weights(rule, change):
        layers = {
            name: rule.parameters[name] | {"w": change(rule.parameters[name]["w"])}
            for name in ("trajectory/policy_net_0", "lifetime/policy_net_0")
        }
        return dataclasses.replace(rule, parameters=rule.parameters | layers)

    without = np.array([i for i in range(20) if i not in (9, 19)])
    nine = dataclasses.replace(weights(rule, lambda w: w[without]), sizes=SIZES)
    ten = weights(rule, lambda w: w.at[jnp.array([9, 19])].set(0.0))
    np.testing.assert_allclose(logits(ten), logits(nine), rtol=1e-5, atol=1e-6)
    assert not np.allclose(logits(rule), logits(ten), atol=1e-3)


# Bad outputs of a network.


def update_with_outputs(change):
    rule = small_rule()
    trajectory = random_trajectory()
    params = mlp_params(rule, trajectory)
    return gradient_of(
        rule, params, rule.init(params), trajectory, lambda p, t: change(mlp_unroll(p, t))
    )


def test_refuses_a_missing_output():
    with pytest.raises(ValueError, match=r"lack \['z'\].*found \['aux_pi', 'logits', 'q', 'y'\]"):
        update_with_outputs(lambda o: {name: x for name, x in o.items() if name != "z"})


def test_refuses_an_output_of_the_wrong_shape():
    with pytest.raises(
        ValueError, match=r"'q' has shape \(8, 3, 3, 20\); expected \(8, 3, 3, 21\)"
    ):
        update_with_outputs(lambda o: o | {"q": o["q"][..., 1:]})


def test_refuses_an_output_at_the_actions_taken_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"'z_taken' has shape \(8, 3, \d+\); expected \(7, 3, "):
        update_with_outputs(lambda o: o | {"z_taken": o["z"][:, :, 0]})


def test_refuses_outputs_without_the_last_state():
    with pytest.raises(ValueError, match=r"has shape \(7, 3, .*expected \(8, 3, "):
        update_with_outputs(lambda o: {name: x[:-1] for name, x in o.items()})


def test_ignores_outputs_that_it_does_not_need():
    gradients, _ = update_with_outputs(lambda o: o | {"value": jnp.zeros((1,))})
    expected, _ = update_with_outputs(lambda o: o)
    assert relative_difference(gradients, expected) == 0


def test_a_discovered_rule_asks_for_a_target_network():
    rule, trajectory = small_rule(), random_trajectory()
    with pytest.raises(ValueError, match="target_outputs is None"):
        targets_of(rule, random_outputs(rule, trajectory), None, trajectory, random_state(rule))


# Bad trajectories.


TRAJECTORY = random_trajectory()
with unchecked():
    BAD_TRAJECTORIES = {
        "no transition": (
            dataclasses.replace(
                jax.tree.map(lambda x: x[:0], TRAJECTORY), observation=TRAJECTORY.observation[:1]
            ),
            r"trajectory\.action has shape \(0, 3\); expected \[T, B\], with at least one tr",
        ),
        "no trajectory": (
            jax.tree.map(lambda x: x[:, :0], TRAJECTORY),
            r"trajectory\.action has shape \(7, 0\); expected \[T, B\], with at least",
        ),
        "no batch axis": (
            jax.tree.map(lambda x: x[:, 0], TRAJECTORY),
            r"trajectory\.action has shape \(7,\); expected \[T, B\]",
        ),
        "observation without the last state": (
            dataclasses.replace(TRAJECTORY, observation={"grid": TRAJECTORY.observation[:-1]}),
            r"trajectory\.observation\['grid'\] has shape \(7, 3, 4\); expected .*\[8, 3, \.\.\.\]",
        ),
        "observation without axes": (
            dataclasses.replace(TRAJECTORY, observation=jnp.zeros(())),
            r"trajectory\.observation has shape \(\)",
        ),
        "behaviour logits too long": (
            dataclasses.replace(TRAJECTORY, behaviour_logits=jnp.zeros((8, 3, 3))),
            r"trajectory\.behaviour_logits has shape \(8, 3, 3\); expected \(7, 3\)",
        ),
    } | {
        f"{name} too long": (
            dataclasses.replace(
                TRAJECTORY, **{name: jnp.zeros((8, 3), getattr(TRAJECTORY, name).dtype)}
            ),
            rf"trajectory\.{name} has shape \(8, 3\); expected \(7, 3\)",
        )
        for name in ("reward", "discount", "last", "mask")
    }


@pytest.mark.parametrize(("trajectory", "message"), BAD_TRAJECTORIES.values(), ids=BAD_TRAJECTORIES)
@pytest.mark.parametrize("rule", [small_rule(), disco.ActorCritic()], ids=["discovered", "ac"])
@unchecked()
def test_refuses_a_malformed_trajectory(rule, trajectory, message):
    params = mlp_params(rule, TRAJECTORY)
    state = rule.init(params)
    with pytest.raises(ValueError, match=message):
        rule.gradient(params, state, trajectory, mlp_unroll)
    with pytest.raises(ValueError, match=message):
        rule.loss(params, state, trajectory, mlp_unroll)


def test_a_rule_without_predictions_asks_for_none_of_them():
    """Its targets and losses are those of a rule that has them and does not use them."""
    unread = anchored(small_rule(), reads_predictions=False)
    without = dataclasses.replace(unread, y_cost=0.0, z_cost=0.0, aux_policy_cost=0.0)
    asked = {
        "nothing": without,
        "aux_pi": dataclasses.replace(without, aux_policy_cost=1.0),
        "y z": dataclasses.replace(without, reads_predictions=True),
        "z y": dataclasses.replace(without, z_cost=0.5),
    }
    for names, rule in asked.items():
        assert set(rule.output_shapes(3)) - {"logits", "q"} == set(names.split()) - {"nothing"}
    trajectory = random_trajectory()
    outputs = random_outputs(unread, trajectory)
    own = {name: outputs[name] for name in ("logits", "q")}
    expected, _ = targets_of(unread, outputs, outputs, trajectory, unread.init({}))
    found, _ = targets_of(without, own, own, trajectory, without.init({}))
    np.testing.assert_allclose(found.pi, expected.pi, rtol=1e-6)
    losses, metrics = without.transition_losses(own, found, trajectory)
    _, of_unread = unread.transition_losses(outputs, expected, trajectory)
    assert set(of_unread) - set(metrics) == {
        *("y_loss", "z_loss", "y_entropy", "z_entropy", "aux_policy_loss")
    }
    total = of_unread["pi_loss"] + 0.2 * of_unread["q_loss"]
    assert float(jnp.mean(losses)) == pytest.approx(float(total), rel=1e-5)


def test_the_prior_is_an_output_of_each_transition():
    """With weights of 0 it is the hyper-parameter, and its bias moves the logit of that."""
    fixed = anchored(small_rule(sizes=TEN_FEATURES), policy_prior=0.9)
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=1)
    trajectory = random_trajectory()
    outputs, state = random_outputs(fixed, trajectory), random_state(fixed)

    def policy_target(rule):
        return targets_of(rule, outputs, outputs, trajectory, state)[0].pi

    def learned(weight, bias):
        head = {"w": jnp.full((sizes.trajectory, 1), weight), "b": jnp.full(1, bias)}
        parameters = fixed.parameters | {"trajectory/policy_prior": head}
        return dataclasses.replace(fixed, sizes=sizes, parameters=parameters)

    np.testing.assert_allclose(policy_target(learned(0.0, 0.0)), policy_target(fixed), rtol=1e-5)
    at_half = dataclasses.replace(fixed, policy_prior=0.5)
    to_half = -float(np.log(9.0))
    np.testing.assert_allclose(
        policy_target(learned(0.0, to_half)), policy_target(at_half), rtol=1e-4, atol=1e-5
    )
    change = policy_target(learned(1.0, 0.0)) - policy_target(fixed)
    logits = outputs["logits"][:-1]
    of_logits = change / (logits - jnp.mean(logits, axis=-1, keepdims=True))
    assert float(jnp.max(jnp.std(of_logits, axis=-1))) < 1e-4  # One weight for all actions,
    assert float(jnp.std(of_logits[..., 0])) > 1e-4  # and another for each transition.
    with pytest.raises(ValueError, match=r"policy_prior is 0\.0; expected more than 0 and less"):
        dataclasses.replace(learned(0.0, 0.0), policy_prior=0.0)


@pytest.mark.parametrize("is_normalized", [True, False])
def test_a_new_rule_with_an_advantage_weight_is_the_hand_set_rule(is_normalized):
    """And the other outputs of the prior are the logarithms of factors of its weights."""
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=3)
    constants: dict[str, Any] = {
        "policy_prior": 0.9,
        "advantage_weight": 3.0,
        "action_advantage_weight": 0.5,
        "normalize_advantage": is_normalized,
    }
    rule = disco.AnchoredRule.create(
        jax.random.key(0), sizes, num_bins=21, max_value=10.0, masks_moments=True, **constants
    )
    trajectory = random_trajectory()
    outputs, state = random_outputs(rule, trajectory), rule.init({})

    def policy_target(rule, outputs):
        return targets_of(rule, outputs, outputs, trajectory, rule.init({}))[0].pi

    hand_set = disco.HandSetRule(num_bins=21, max_value=10.0, **constants)
    own = {name: outputs[name] for name in ("logits", "q")}
    np.testing.assert_allclose(
        policy_target(rule, outputs), policy_target(hand_set, own), rtol=1e-5, atol=1e-5
    )
    targets, _ = targets_of(rule, outputs, outputs, trajectory, state)
    head = rule.parameters["trajectory/policy_prior"]

    def change(*factors):
        changed = {"w": head["w"], "b": jnp.log(jnp.array([1.0, *factors]))}
        parameters = rule.parameters | {"trajectory/policy_prior": changed}
        other = dataclasses.replace(rule, parameters=parameters)
        return policy_target(other, outputs) - targets.pi

    taken = jax.nn.one_hot(trajectory.action, outputs["logits"].shape[-1])
    advantage = targets.normalized_advantage if is_normalized else targets.advantage
    expected = 3.0 * advantage[..., None] * taken
    np.testing.assert_allclose(change(2.0, 1.0), expected, rtol=1e-4, atol=1e-5)
    value = decode_value(outputs["q"][:-1], 10.0)
    differences = value - jnp.mean(value, axis=-1, keepdims=True)
    found = change(1.0, 3.0)
    scale = jnp.linalg.norm(found - jnp.mean(found, axis=-1, keepdims=True))
    scale /= jnp.linalg.norm(differences)
    assert is_normalized or float(scale) == pytest.approx(1.0, rel=1e-4)
    np.testing.assert_allclose(
        found - jnp.mean(found, axis=-1, keepdims=True), scale * differences, rtol=1e-3, atol=1e-4
    )
    for name in ("advantage_weight", "action_advantage_weight"):
        with pytest.raises(ValueError, match=rf"^{name} is 0\.0; expected more than 0 beside"):
            dataclasses.replace(rule, **{name: 0.0})


@pytest.mark.parametrize("feature", ["age", "scale", "probability", "ratio", "advantage"])
def test_the_weights_of_the_prior_may_depend_on_the_agent_and_on_the_action(feature):
    """They are linear in five numbers, beside the output of the LSTM."""
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=2, agent_features=2, prior_features=3)
    rule = disco.AnchoredRule.create(
        jax.random.key(0),
        sizes,
        num_bins=21,
        max_value=10.0,
        policy_prior=0.9,
        advantage_weight=1.0,
        normalize_advantage=False,
    )
    head = rule.parameters["trajectory/policy_prior"]
    assert head["w"].shape == (sizes.trajectory + 5, 2)
    row = {"age": -5, "scale": -4, "probability": -3, "ratio": -2, "advantage": -1}[feature]
    changed = {"w": head["w"].at[row].set(jnp.array([0.0, 2.0])), "b": head["b"]}
    other = dataclasses.replace(
        rule, parameters=rule.parameters | {"trajectory/policy_prior": changed}
    )
    trajectory = random_trajectory()
    outputs, young = random_outputs(rule, trajectory), rule.init({})
    updates = jnp.float32(math.exp(5.0) - 1.0)
    old = dataclasses.replace(young, memory=dataclasses.replace(young.memory, updates=updates))

    def of_taken(rule, state):
        """Return k(advantage), the change of the taken action's logit, and the advantages."""
        targets, _ = targets_of(rule, outputs, outputs, trajectory, state)
        centred = outputs["logits"][:-1] - jnp.mean(outputs["logits"][:-1], axis=-1, keepdims=True)
        return targets.pi - 0.9 * centred, targets.advantage

    weighted, advantage = of_taken(rule, young)
    taken = jax.nn.one_hot(trajectory.action, outputs["logits"].shape[-1])
    policies = jax.nn.softmax(outputs["logits"][:-1]), jax.nn.softmax(trajectory.behaviour_logits)
    pi, mu = (jnp.sum(taken * x, axis=-1, keepdims=True) for x in policies)
    normalized = (advantage - jnp.mean(advantage)) / jnp.std(advantage)
    at_birth, after = {
        "age": (1.0, math.exp(2.0 * 5.0 / 10.0)),
        "scale": (math.exp(2.0 * math.log10(float(jnp.std(advantage)))),) * 2,
        "probability": (pi**2,) * 2,
        "ratio": ((pi / mu) ** 2,) * 2,
        "advantage": (jnp.exp(2.0 * jnp.clip(normalized / 3.0, -1.0, 1.0))[..., None],) * 2,
    }[feature]
    for state, factor in ((young, at_birth), (old, after)):
        np.testing.assert_allclose(
            of_taken(other, state)[0], factor * weighted, rtol=1e-3, atol=1e-4
        )


def test_a_rule_may_depend_on_the_agents_age():
    old, trajectory = extended_rule(), random_trajectory()
    outputs, young = random_outputs(old, trajectory), old.init({})
    aged = dataclasses.replace(
        young, memory=dataclasses.replace(young.memory, updates=jnp.full((), 1000.0))
    )
    targets, after = targets_of(old, outputs, outputs, trajectory, young)
    assert float(after.memory.updates) == 1.0
    other, _ = targets_of(old, outputs, outputs, trajectory, aged)
    assert relative_difference(targets.pi, other.pi) > 0
    assert anchored(small_rule()).init({}).memory.updates is None
    with pytest.raises(ValueError, match=r"agent_features, .* expected 0, or disco.AnchoredRule"):
        disco.DiscoveredRule({}, old.sizes)
    with pytest.raises(ValueError, match=r"sizes\.agent_features is 8; expected 0 to 7"):
        dataclasses.replace(SIZES, agent_features=8)
    with pytest.raises(ValueError, match=r"sizes\.prior_features is 1 and .* expected outputs"):
        dataclasses.replace(SIZES, prior_features=1)

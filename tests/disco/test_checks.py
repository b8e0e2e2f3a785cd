"""What rules refuse, what they bear, and what the debug checks notice."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify

import disco
from disco import rule as rule_module
from tests.annotations import unchecked
from tests.disco.common import (
    gradient_of,
    loss_of,
    mlp_params,
    mlp_unroll,
    random_outputs,
    random_trajectory,
    relative_difference,
    small_rule,
)

RULES = {"discovered": small_rule(), "actor-critic": disco.ActorCritic(normalize_advantage=True)}
TRAJECTORY = random_trajectory()
MASKED = tuple(np.argwhere(~np.asarray(TRAJECTORY.mask))[0].tolist())
UNMASKED = tuple(np.argwhere(np.asarray(TRAJECTORY.mask))[0].tolist())

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def update(rule, trajectory=TRAJECTORY, state=None, unroll=mlp_unroll, call="gradient"):
    params = mlp_params(rule, TRAJECTORY)
    state = rule.init(params) if state is None else state
    function = {"gradient": gradient_of, "loss": loss_of}[call]
    return function(rule, params, state, trajectory, unroll)


def changed(name, place, value, trajectory=TRAJECTORY):
    """The trajectory with one number changed."""
    field = getattr(trajectory, name)
    return dataclasses.replace(trajectory, **{name: field.at[place].set(value)})


# Dtypes.


@every_rule
@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("action", jnp.float32, "integers"),
        ("action", jnp.bool_, "integers"),
        ("reward", jnp.complex64, "real numbers"),
        ("discount", jnp.bool_, "real numbers"),
        ("last", jnp.float32, "booleans"),
        ("mask", jnp.float32, "booleans"),
        ("behaviour_logits", jnp.int32, "floats"),
    ],
)
@unchecked()
def test_a_field_of_another_dtype_is_refused(rule, name, dtype, expected):
    field = jnp.asarray(getattr(TRAJECTORY, name)).astype(dtype)
    trajectory = dataclasses.replace(TRAJECTORY, **{name: field})
    message = rf"trajectory\.{name} has dtype {jnp.dtype(dtype)}; expected {expected}"
    for call in ("gradient", "loss"):
        with pytest.raises(ValueError, match=message):
            update(rule, trajectory, call=call)


@every_rule
def test_integer_rewards_are_as_good_as_floats(rule):
    rounded = jnp.round(3 * TRAJECTORY.reward)
    floats, _ = update(rule, dataclasses.replace(TRAJECTORY, reward=rounded))
    integers, _ = update(rule, dataclasses.replace(TRAJECTORY, reward=rounded.astype(jnp.int32)))
    assert relative_difference(integers, floats) < 1e-6


@every_rule
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_outputs_of_half_precision_are_learned_from(rule, dtype):
    def half(params, trajectory):
        return {name: x.astype(dtype) for name, x in mlp_unroll(params, trajectory).items()}

    gradients, aux = update(rule, unroll=half)
    expected, _ = update(rule)
    assert relative_difference(gradients, expected) < 0.1
    assert {x.dtype for x in jax.tree.leaves((gradients, aux.targets))} == {jnp.dtype("float32")}


@every_rule
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: list(outputs.values()), "outputs are a list; expected a mapping"),
        (lambda outputs: (outputs, None), "outputs are a tuple; expected a mapping"),
        (lambda outputs: None, "outputs are a NoneType; expected a mapping"),
        (
            lambda outputs: outputs | {"logits": outputs["logits"].astype(jnp.int32)},
            "'logits' has dtype int32; expected floats",
        ),
        (lambda outputs: outputs | {"logits": "none"}, "'logits' is a str; expected an array"),
    ],
    ids=["list", "tuple", "nothing", "integers", "text"],
)
@unchecked()
def test_outputs_of_another_kind_are_refused(rule, change, message):
    with pytest.raises(ValueError, match=message):
        update(rule, unroll=lambda params, trajectory: change(mlp_unroll(params, trajectory)))


# States.


def strange_states(rule):
    params = mlp_params(rule, TRAJECTORY)
    own = rule.init(params)
    other = small_rule() if isinstance(rule, disco.ActorCritic) else disco.ActorCritic()
    strange = {
        "nothing": ("a rule's state", r"state is a str; expected what rule\.init"),
        "a dictionary": ({"memory": own.memory}, r"state is a dict; expected what rule\.init"),
        "of another rule": (other.init(params), r"state\.memory is of another rule: its structure"),
        "of another shape": (
            dataclasses.replace(own, memory=jax.tree.map(lambda x: x[None], own.memory)),
            r"state\.memory is of another rule: .* has shape \(1.* is due",
        ),
    }
    if own.target_params is not None:
        strange["without a target network"] = (
            dataclasses.replace(own, target_params=None),
            r"state\.target_params do not fit the parameters: its structure is not the same",
        )
    return strange


@every_rule
@unchecked()
def test_a_state_of_another_kind_is_refused(rule):
    params = mlp_params(rule, TRAJECTORY)
    for state, message in strange_states(rule).values():
        for call in (rule.gradient, rule.loss):
            with pytest.raises(ValueError, match=message):
                call(params, state, TRAJECTORY, mlp_unroll)
    with pytest.raises(ValueError, match=r"state is a NoneType; expected what rule\.init"):
        rule.gradient(params, None, TRAJECTORY, mlp_unroll)


# Hyper-parameters.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discount": 5.0}, "discount is 5.0; expected 0 to 1"),
        ({"lambda_": -1.0}, "lambda_ is -1.0; expected 0 to 1"),
        ({"entropy_cost": float("nan")}, "entropy_cost is nan; expected at least 0"),
        ({"value_cost": float("inf")}, "value_cost is inf; expected at least 0, at most 1e"),
        ({"max_value": float("inf")}, "max_value is inf; expected a positive number of at most"),
        ({"num_bins": 10**12 + 1}, "num_bins is 1000000000001; expected .* at most 100001"),
    ],
)
@pytest.mark.parametrize("kind", [disco.ActorCritic, disco.PolicyGradient])
def test_hand_designed_rules_refuse_hyper_parameters_out_of_range(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_prior": 1.5}, "policy_prior is 1.5; expected 0 to 1"),
        ({"advantage_weight": float("nan")}, "advantage_weight is nan; expected at least 0"),
        ({"target_params_coefficient": -1.0}, "target_params_coefficient is -1.0; expected 0 to 1"),
        ({"num_bins": 1}, "num_bins is 1; expected .* at least 3"),
        ({"max_value": 0.0}, "max_value is 0.0; expected a positive number"),
    ],
)
def test_the_hand_set_rule_refuses_hyper_parameters_out_of_range(change, message):
    with pytest.raises(ValueError, match=message):
        disco.HandSetRule(**change)


@every_rule
def test_a_number_of_actions_below_one_is_refused(rule):
    with pytest.raises(ValueError, match="num_actions is -1; expected at least 1"):
        rule.output_shapes(-1)


# Numbers that are not finite.


@every_rule
@pytest.mark.parametrize("name", ["reward", "discount", "behaviour_logits"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_masked_transitions_do_not_count_whatever_they_hold(rule, name, value):
    gradients, aux = update(rule, changed(name, MASKED, value))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((gradients, aux.state)))
    if name == "reward":  # That of the neutral number.
        expected, _ = update(rule, changed(name, MASKED, 0.0))
        assert relative_difference(gradients, expected) == 0


@every_rule
def test_actions_that_are_not_allowed_have_no_part(rule):
    """Their logits are -inf in the behaviour policy's; that of actions taken is finite."""
    is_taken = jax.nn.one_hot(TRAJECTORY.action, 3, dtype=bool)
    forbidden = ~is_taken & (jnp.arange(3) == 1)[None, None]

    def gradient(logit):
        logits = jnp.where(forbidden, logit, TRAJECTORY.behaviour_logits)
        return update(rule, dataclasses.replace(TRAJECTORY, behaviour_logits=logits))

    gradients, aux = gradient(-jnp.inf)
    expected, expected_aux = gradient(-1e4)  # As good as impossible.
    assert relative_difference(gradients, expected) < 1e-6
    assert relative_difference(aux.state, expected_aux.state) < 1e-6


@every_rule
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_one_bad_reward_does_not_spoil_later_batches(rule, value):
    before = update(rule)[1].state
    # Its batch is lost, and nothing else.
    after = update(rule, changed("reward", UNMASKED, value), before)[1].state
    assert relative_difference(after.memory, before.memory) == 0
    gradients, aux = update(rule, TRAJECTORY, before)
    again, again_aux = update(rule, TRAJECTORY, dataclasses.replace(before, memory=after.memory))
    assert relative_difference(again, gradients) == 0
    assert relative_difference(again_aux.targets, aux.targets) == 0


# The debug checks.

BAD = {
    "action too large": (
        changed("action", UNMASKED, 3),
        r"trajectory\.action has 3.*expected 0 to 2",
    ),
    "action negative": (changed("action", UNMASKED, -1), r"trajectory\.action has -1"),
    "reward": (changed("reward", UNMASKED, jnp.nan), r"reward has nan.*expected a finite number"),
    "discount": (changed("discount", UNMASKED, 2.0), r"discount has 2\.0.*expected 0 where"),
    "discount with gamma": (
        dataclasses.replace(TRAJECTORY, discount=0.5 * TRAJECTORY.discount),
        r"discount has 0\.5.*expected 0 where.*else 1 \(gamma is the rule's\)",
    ),
    "logits": (
        changed("behaviour_logits", (*UNMASKED, 0), jnp.inf),
        r"behaviour_logits has inf.*or -inf for illegal actions",
    ),
    "logit of what was taken": (
        changed("behaviour_logits", UNMASKED, -jnp.inf),
        r"behaviour_logits of the action taken has -inf.*expected a finite number",
    ),
}


@pytest.mark.parametrize(("trajectory", "message"), BAD.values(), ids=BAD)
def test_bad_numbers_are_noticed(trajectory, message):
    with pytest.raises(ValueError, match=message):
        disco.check_values(trajectory)
    error, _ = jax.jit(checkify.checkify(disco.check_values))(trajectory)
    with pytest.raises(checkify.JaxRuntimeError, match=message):
        error.throw()


def test_the_place_of_a_bad_number_is_told():
    trajectory = changed("reward", UNMASKED, -jnp.inf)
    with pytest.raises(ValueError, match=rf"has -inf at \[{UNMASKED[0]}, {UNMASKED[1]}\]"):
        disco.check_values(trajectory)


def test_good_numbers_and_masked_ones_pass():
    trajectory = changed("reward", MASKED, jnp.nan)
    trajectory = changed("action", MASKED, 7, trajectory)
    outputs = random_outputs(RULES["discovered"], trajectory)
    disco.check_values(trajectory, outputs)
    error, _ = jax.jit(checkify.checkify(disco.check_values))(trajectory, outputs)
    error.throw()


def test_outputs_that_are_not_finite_are_noticed():
    outputs = random_outputs(RULES["discovered"], TRAJECTORY)
    outputs["q"] = outputs["q"].at[2, 1, 0, 3].set(jnp.nan)
    with pytest.raises(ValueError, match=r"output 'q' has nan at \[2, 1, 0, 3\]; expected finite"):
        disco.check_values(TRAJECTORY, outputs)


def with_logit(place, value):
    outputs = random_outputs(RULES["discovered"], TRAJECTORY)
    return outputs | {"logits": outputs["logits"].at[place].set(value)}


NOT_TAKEN = (*UNMASKED, (int(TRAJECTORY.action[UNMASKED]) + 1) % 3)


@pytest.mark.parametrize("place", [NOT_TAKEN, MASKED, -1])
def test_logits_of_illegal_actions_pass(place):
    disco.check_values(TRAJECTORY, with_logit(place, -jnp.inf))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (NOT_TAKEN, jnp.nan, "'logits' has nan at.*finite numbers, or -inf for illegal actions"),
        (MASKED, jnp.inf, "'logits' has inf at"),
        (UNMASKED, -jnp.inf, "'logits' of the action taken has -inf at.*a finite number"),
    ],
)
def test_other_logits_that_are_not_finite_are_noticed(place, value, message):
    with pytest.raises(ValueError, match=message):
        disco.check_values(TRAJECTORY, with_logit(place, value))


def test_logits_of_other_states_are_noticed():
    outputs = random_outputs(RULES["discovered"], TRAJECTORY)
    with pytest.raises(ValueError, match=r"'logits' has shape \(7, 3, 3\); expected \(8, 3, 3\)"):
        disco.check_values(TRAJECTORY, outputs | {"logits": outputs["logits"][:-1]})


@every_rule
@pytest.mark.parametrize("passes_on", [True, False])
def test_a_state_that_is_not_passed_on_is_noticed(rule, passes_on):
    params = mlp_params(rule, TRAJECTORY)
    state = rule.init(params)
    check = jax.jit(checkify.checkify(lambda *x: disco.check_values(TRAJECTORY, None, *x)))
    disco.check_values(TRAJECTORY, state=state, params=params)
    check(state, params)[0].throw()
    for _ in range(2):
        gradient, aux = update(rule, state=state)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
        state = aux.state if passes_on else state
    if passes_on or rule.target_params_coefficient is None:  # The latter has nothing to notice.
        disco.check_values(TRAJECTORY, state=state, params=params)
        check(state, params)[0].throw()
        return
    message = (
        r"state\.target_params\[.*the state has seen no update .*: pass aux\.state.*rule\.init"
    )
    with pytest.raises(ValueError, match=message):
        disco.check_values(TRAJECTORY, state=state, params=params)
    with pytest.raises(checkify.JaxRuntimeError, match=message):
        check(state, params)[0].throw()


def test_a_state_is_checked_with_its_parameters():
    rule = RULES["discovered"]
    params = mlp_params(rule, TRAJECTORY)
    with pytest.raises(ValueError, match="params is None; expected both"):
        disco.check_values(TRAJECTORY, state=rule.init(params))
    with pytest.raises(ValueError, match="state is None; expected both"):
        disco.check_values(TRAJECTORY, params=params)
    with pytest.raises(ValueError, match=r"state\.target_params do not fit"):
        disco.check_values(TRAJECTORY, state=rule.init(params), params=params["torso"])


# Meta-gradients.


def meta_loss_after_an_update(rule, optimizer, by):
    params = mlp_params(rule, TRAJECTORY)
    grads = by(rule, params, rule.init(params), TRAJECTORY, mlp_unroll)
    updates, _ = optimizer.update(grads, optimizer.init(params))
    agent = optax.apply_updates(params, updates)
    return jnp.mean(mlp_unroll(agent, TRAJECTORY)["logits"][..., 0])


def by_gradient(rule, *arguments):
    return rule.gradient(*arguments)[0]


def by_loss(rule, *arguments):
    return jax.grad(rule.loss, has_aux=True)(*arguments)[0]


def test_a_meta_gradient_through_adam_is_finite_with_eps_root():
    meta_loss = partial(meta_loss_after_an_update, optimizer=optax.adam(1e-3, eps_root=1e-8))
    gradient = jax.jit(jax.grad(partial(meta_loss, by=by_gradient)))(small_rule())
    leaves = jax.tree.leaves(gradient)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in leaves)
    assert float(optax.tree.norm(gradient)) > 0


def in_a_scan(rule, *arguments):
    """Gradients by the loss in each step of a scan, as in an inner loop of several updates."""
    step = jax.checkpoint(lambda carry, _: (by_loss(rule, *arguments), None))
    return jax.lax.scan(step, by_loss(rule, *arguments), jnp.arange(2))[0]


def of_each_agent(rule, params, *arguments):
    params = jax.tree.map(lambda x: x[None], params)
    gradients = jax.vmap(jax.jit(lambda p: by_loss(rule, p, *arguments)))(params)
    return jax.tree.map(lambda x: x[0], gradients)


@pytest.mark.parametrize("by", [by_loss, in_a_scan, of_each_agent])
@pytest.mark.parametrize("derivative", [jax.grad, jax.jit, jax.jacfwd])
def test_a_meta_gradient_through_the_loss_is_refused_rather_than_zero(by, derivative):
    meta_loss = partial(meta_loss_after_an_update, optimizer=optax.sgd(1e-3), by=by)
    function = derivative(jax.grad(meta_loss) if derivative is jax.jit else meta_loss)
    with pytest.raises(TypeError, match=r"derivative would be 0; expected rule\.gradient"):
        jax.eval_shape(function, small_rule())  # While it is traced: nothing is compiled.


def test_derivatives_of_the_loss_by_the_agent_are_not_refused():
    """Whatever happens to the rule meanwhile: each agent may have its own, as in a population."""
    rule = small_rule()
    params = mlp_params(rule, TRAJECTORY)

    def gradient(rule, params):
        return by_loss(rule, params, rule.init(params), TRAJECTORY, mlp_unroll)

    rules, agents = jax.tree.map(lambda x: jnp.stack([x, x]), (rule, params))
    jax.eval_shape(jax.vmap(gradient), rules, agents)
    # Second derivatives, of a meta-gradient with respect to the initial agent.
    jax.eval_shape(lambda p: jax.jvp(partial(gradient, rule), (p,), (p,)), params)
    jax.eval_shape(jax.jit(jax.grad(lambda p, r: optax.tree.sum(gradient(r, p)))), params, rule)


def test_the_check_of_derivatives_leaves_no_trace_in_a_program(monkeypatch):
    rule = small_rule()
    params = mlp_params(rule, TRAJECTORY)

    def program():
        def update(rule, *arguments):
            return jax.grad(rule.loss, has_aux=True)(*arguments, mlp_unroll)

        return jax.jit(update).lower(rule, params, rule.init(params), TRAJECTORY).as_text()

    checked = program()
    monkeypatch.setattr(rule_module, "_constant", lambda rule: rule)
    assert program() == checked


@pytest.mark.slow
def test_the_gradient_by_the_loss_is_that_of_the_rule():
    rule = small_rule()
    params = mlp_params(rule, TRAJECTORY)
    arguments = (params, rule.init(params), TRAJECTORY, mlp_unroll)
    assert relative_difference(by_loss(rule, *arguments), by_gradient(rule, *arguments)) < 1e-5

"""Disco103 and the value functions against the public reference (shared/golden)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import disco
from agents.optimizers import agent_optimizer
from disco import moments, values
from tests.golden import (
    Arrays,
    Case,
    Tolerance,
    absolute,
    disco103,
    golden_cases,
    linear_unroll,
    prefixed,
    read_memory,
    read_moments,
    read_tree,
    rollout_trajectory,
    transition_trajectory,
    write_memory,
    write_moments,
    write_tree,
)

OUTPUTS = ("logits", "y", "z", "q", "aux_pi")


# Values.


@golden_cases("value_utils", op="codec")
def test_golden_codec(case: Case):
    with case.computing():
        given = case.inputs()
        actual = jax.jit(_codec)(given["scalars"], given["logits"])
    case.check(actual, _codec_tolerance)


def _codec(scalars: jax.Array, logits: jax.Array):
    transformed = values.signed_hyperbolic(scalars)
    return {
        "signed_hyperbolic": transformed,
        "signed_parabolic": values.signed_parabolic(scalars),
        "signed_logp1": values.signed_log(scalars),
        "two_hot": values.two_hot(scalars, 601, 300.0),
        "two_hot_of_transformed": values.two_hot(transformed, 601, 300.0),
        "decoded_transformed": values.decode(logits, 300.0),
        "decoded_value": values.decode_value(logits, 300.0),
    }


def _codec_tolerance(name: str) -> Tolerance | float:
    return {"two_hot": absolute(1e-6), "two_hot_of_transformed": absolute(1e-4)}.get(name, 1e-6)


@golden_cases("value_utils", op="estimates")
def test_golden_estimates(case: Case):
    with case.computing():
        given = case.inputs()
        of = _action_value_estimates if "q_out" in given else _state_value_estimates
        actual = jax.jit(functools.partial(of, case))(given)
    case.check(actual, lambda name: 5e-6 if name == "rho" else 1e-4)


def _decoded(case: Case, given: Mapping[str, jax.Array], name: str) -> jax.Array | None:
    """Values that the outputs `name` stand for; the online ones if there are no target ones."""
    if name not in given:
        name = name.removeprefix("target_")
    if name not in given:
        return None
    options = case.attrs["opts"]
    output = given[name]
    code = values.decode(output, options["max_abs"]) if options["categorical"] else output[..., 0]
    return values.signed_parabolic(code) if options["nonlinear"] else code


def _state_value_estimates(case: Case, given: Mapping[str, jax.Array]):
    value, target_value = (_decoded(case, given, n) for n in ("value_out", "target_value_out"))
    assert value is not None
    assert target_value is not None
    estimates = values.vtrace(
        given["pi_logits"],
        value,
        target_value,
        transition_trajectory(given),
        discount=case.attrs["opts"]["discount"],
        lambda_=case.attrs["opts"]["lambda"],
    )
    advantage = moments.update(read_moments(given, "adv_ema"), estimates.advantage)
    td = moments.update(read_moments(given, "td_ema"), estimates.td)
    return {
        "value": value,
        "target_value": target_value,
        "rho": estimates.importance_ratio,
        "adv": estimates.advantage,
        "normalized_adv": moments.normalize(advantage, estimates.advantage),
        "value_target": estimates.value_target,
        "td": estimates.td,
        "normalized_td": moments.normalize(td, estimates.td, subtract_mean=False),
        **write_moments(advantage, "new_adv_ema"),
        **write_moments(td, "new_td_ema"),
    }


def _action_value_estimates(case: Case, given: Mapping[str, jax.Array]):
    q_value, target_q_value = (_decoded(case, given, n) for n in ("q_out", "target_q_out"))
    assert q_value is not None
    assert target_q_value is not None
    estimates = values.retrace(
        given["pi_logits"],
        q_value,
        target_q_value,
        transition_trajectory(given),
        discount=case.attrs["opts"]["discount"],
        lambda_=case.attrs["opts"]["lambda"],
        value=_decoded(case, given, "value_out"),
        target_value=_decoded(case, given, "target_value_out"),
    )
    advantage = moments.update(read_moments(given, "adv_ema"), estimates.advantage)
    td = moments.update(read_moments(given, "td_ema"), estimates.td)
    value_target = _value_target(estimates)
    return {
        "value": estimates.value,
        "target_value": estimates.target_value,
        "q_value": q_value,
        "target_q_value": target_q_value,
        "rho": estimates.importance_ratio,
        "q_target": estimates.q_target,
        "adv": estimates.advantage,
        "normalized_adv": moments.normalize(advantage, estimates.advantage),
        "qv_adv": estimates.action_advantage,
        "normalized_qv_adv": moments.normalize(advantage, estimates.action_advantage),
        "q_td": estimates.td,
        "normalized_q_td": moments.normalize(td, estimates.td, subtract_mean=False),
        "value_target": value_target,
        "td": value_target - estimates.value[:-1],
        **write_moments(advantage, "new_adv_ema"),
        **write_moments(td, "new_td_ema"),
    }


def _value_target(estimates: values.ActionValueEstimates) -> jax.Array:
    """What the reference calls the target of a state value beside action values."""
    weight = jnp.minimum(1.0, estimates.importance_ratio)
    target_value = estimates.target_value[:-1]
    return target_value + weight * (estimates.q_target - target_value)


@golden_cases("value_utils", op="loss")
def test_golden_value_loss(case: Case):
    options = case.attrs["opts"]

    def loss(output, target):
        transformed = values.signed_hyperbolic(target) if options["nonlinear"] else target
        return values.value_loss_to(output, transformed, options["max_abs"])

    with case.computing():
        given = case.inputs()
        output, target = given["value_out"], given["value_target"]
        value = _decoded(case, given, "value_out")
        assert value is not None
        from_td = value + given["td"]
        compiled = jax.jit(loss)
        gradient = jax.jit(jax.grad(lambda *xs: jnp.sum(loss(*xs))))
        actual = {
            "loss_from_td": compiled(output, from_td),
            "loss_from_target": compiled(output, target),
            "grad_loss_from_td": gradient(output, from_td),
            "grad_loss_from_target": gradient(output, target),
        }
    case.check(actual, lambda name: _value_loss_tolerance(name, options["categorical"]))


def _value_loss_tolerance(name: str, categorical: bool) -> Tolerance | float:
    if name == "grad_loss_from_td":
        return absolute(3e-4)
    return absolute(1e-6) if name == "loss_from_td" and not categorical else 1e-4


# The rule.


@golden_cases("rule_targets")
def test_golden_rule_targets(case: Case):
    with case.computing():
        rule = disco103(case.attrs["hyper"])
        actual = jax.jit(_targets)(rule, case.inputs())
    case.check(actual, _targets_tolerance)


def _targets(rule: disco.DiscoveredRule, given: Mapping[str, jax.Array]):
    outputs = {name: given[f"agent/{name}"] for name in OUTPUTS}
    # aux_pi of the target network is not given, because the rule does not read it.
    target_outputs = outputs | {name: given[f"target/{name}"] for name in OUTPUTS[:-1]}
    trajectory = transition_trajectory(given)
    state = disco.RuleState(target_params=None, memory=read_memory(given))
    targets, new_state = rule.targets(outputs, target_outputs, trajectory, state)
    estimates = values.estimates_from_outputs(outputs, target_outputs, trajectory, rule)
    return {
        "pi": targets.pi,
        "y": targets.y,
        "z": targets.z,
        "meta_input_emb": targets.summary,
        "q_target": targets.q_target,
        "q_td": targets.q_td,
        "normalized_q_td": targets.normalized_q_td,
        "adv": targets.advantage,
        "normalized_adv": targets.normalized_advantage,
        "q_value": values.decode_value(outputs["q"], rule.max_value),
        "qv_adv": estimates.action_advantage,
        "normalized_qv_adv": moments.normalize(
            new_state.memory.advantage, estimates.action_advantage
        ),
        "dbg/value": estimates.value,
        "dbg/target_value": estimates.target_value,
        "dbg/target_q_value": values.decode_value(target_outputs["q"], rule.max_value),
        "dbg/rho": estimates.importance_ratio,
        "dbg/value_target": _value_target(estimates),
        **write_memory(new_state.memory),
    }


def _targets_tolerance(name: str) -> float:
    if name in ("pi", "y", "z", "meta_input_emb"):
        return 2e-4
    if name.startswith("meta/rnn"):
        return 5e-5
    return 5e-6 if name == "dbg/rho" else 1e-4


@golden_cases("rule_loss")
def test_golden_rule_loss(case: Case):
    with case.computing():
        rule = disco103(case.attrs["hyper"])
        given, given_targets = case.given_targets()
        actual = jax.jit(_loss)(rule, given, given_targets)
    sizes = {name: float(np.max(np.abs(x))) for name, x in given_targets.items()}
    case.check(actual, lambda name: _loss_tolerance(name, sizes))


def _loss(rule: disco.DiscoveredRule, given, given_targets):
    outputs = {name: given[f"agent/{name}"] for name in OUTPUTS}
    trajectory = transition_trajectory(given)
    targets = disco.DiscoveredTargets(
        pi=given_targets["pi"],
        y=given_targets["y"],
        z=given_targets["z"],
        q_target=given_targets["q_target"],
        q_td=given_targets["q_td"],
        advantage=given_targets["adv"],
        normalized_advantage=given_targets["normalized_adv"],
        normalized_q_td=given_targets["normalized_q_td"],
        summary=given_targets["meta_input_emb"],
    )
    without_value = dataclasses.replace(rule, value_cost=0.0)
    nothing = dict.fromkeys(("pi_cost", "y_cost", "z_cost", "aux_policy_cost"), 0.0)
    agent_loss, value_loss = (
        x.transition_losses(outputs, targets, trajectory)[0]
        for x in (without_value, dataclasses.replace(rule, **nothing))
    )
    gradients, metrics = jax.grad(rule.output_loss, has_aux=True)(outputs, targets, trajectory)
    return {
        "agent_loss": agent_loss,
        "agent_loss_no_meta": value_loss,
        "total_loss": metrics["loss"],
        **prefixed(gradients, "grad"),
        **prefixed(_log(outputs, targets, trajectory, metrics, given_targets["q_value"]), "log"),
    }


def _log(outputs, targets, trajectory, metrics, q_value):
    """What the reference logs, from our metrics and, where they do not say it, the arrays."""

    def entropy(logits):
        log_p = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=-1))

    ours = {
        "pi_loss": "pi_loss",
        "aux_kl_loss": "aux_policy_loss",
        "q_loss": "q_loss",
        "entropy": "entropy",
        "y_entropy": "y_entropy",
        "z_entropy": "z_entropy",
        "pi_hat_entropy": "pi_target_entropy",
        "q_target": "q_target",
        "td": "td",
        "normalized_td": "normalized_td",
    }
    return {name: metrics[our_name] for name, our_name in ours.items()} | {
        "aux_policy_entropy": entropy(values.select_action(outputs["aux_pi"], trajectory.action)),
        "aux_target_entropy": entropy(outputs["logits"][1:]),
        "logits": jnp.mean(outputs["logits"][:-1]),
        "y": jnp.mean(outputs["y"][:-1]),
        "z": jnp.mean(outputs["z"][:-1]),
        "pi_hat": jnp.mean(targets.pi),
        "y_hat": jnp.mean(targets.y),
        "z_hat": jnp.mean(targets.z),
        "agent_q_mean": jnp.mean(q_value),
    }


def _loss_tolerance(name: str, sizes: Mapping[str, float]) -> Tolerance | float:
    """As in FORMAT.md; a mean of values is as noisy as they are large, for they may cancel."""
    if name in MEAN_VALUES:
        return absolute(1e-6 * sizes[MEAN_VALUES[name]])
    if name == "grad/q":
        return 4e-3
    if name == "agent_loss" or name.startswith("grad/"):
        return 3e-6
    if name in ("agent_loss_no_meta", "log/q_loss"):
        return 3e-4
    return absolute(1e-5) if name in MEAN_LOGITS else 1e-4


MEAN_VALUES = {
    "log/td": "q_td",
    "log/normalized_td": "normalized_q_td",
    "log/q_target": "q_target",
    "log/agent_q_mean": "q_value",
}
MEAN_LOGITS = tuple(f"log/{name}" for name in ("logits", "y", "z", "pi_hat", "y_hat", "z_hat"))


@golden_cases("rule_sequence", rest="thorough")
def test_golden_rule_sequence(case: Case):
    with case.computing():
        rule = disco103(case.attrs["hyper"])
        given = case.inputs()
        batches = {
            name.removeprefix("batches/"): value
            for name, value in given.items()
            if name.startswith("batches/")
        }
        params = read_tree(given, "params")
        optimizer = agent_optimizer(case.attrs["lr"])
        state = disco.RuleState(target_params=params, memory=read_memory(given))
        optimizer_state: Any = optimizer.init(params)
        update = jax.jit(_update, static_argnums=0)
        actual = {}
        last = case.attrs["n"]
        for step in range(1, last + 1):
            batch = rollout_trajectory({name: x[step - 1] for name, x in batches.items()})
            params, optimizer_state, state, log = update(
                optimizer, rule, params, optimizer_state, state, batch
            )
            written = {
                **write_tree(params, "params"),
                **write_tree(state.target_params, "target_params"),
                **write_memory(state.memory),
                **log,
            }
            actual |= prefixed(written, f"step{step}")
        adam = optimizer_state[0]
        actual |= {
            **write_tree(adam.mu, f"step{last}/opt/mu"),
            **write_tree(adam.nu, f"step{last}/opt/nu"),
            f"step{last}/opt/count": adam.count,
        }
    expected = case.expected()
    case.check(actual, lambda name: _sequence_tolerance(name, expected))


def _update(optimizer, rule: disco.DiscoveredRule, params, optimizer_state, state, trajectory):
    gradients, aux = rule.gradient(params, state, trajectory, linear_unroll)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    targets = aux.targets
    outputs = linear_unroll(params, trajectory)
    q_value = values.decode_value(outputs["q"], rule.max_value)
    log = {
        **prefixed(_log(outputs, targets, trajectory, aux.metrics, q_value), "log"),
        "log/total_loss": aux.metrics["loss"],
        "log/global_gradient_norm": optax.tree.norm(gradients),
        "log/global_update_norm": optax.tree.norm(updates),
        "targ/pi": targets.pi,
        "targ/adv": targets.advantage,
        "targ/normalized_adv": targets.normalized_advantage,
        "targ/q_td": targets.q_td,
    }
    return optax.apply_updates(params, updates), optimizer_state, aux.state, log


def _sequence_tolerance(name: str, expected: Arrays) -> Tolerance | float:
    step, _, name = name.partition("/")
    if name in MEAN_VALUES:
        # The reference's own noise, 5e-4 of a mean that cancels, is 1e-6 of the values.
        td_size = np.max(np.abs(expected[f"{step}/targ/q_td"]))
        normalized = expected[f"{step}/log/normalized_td"] / expected[f"{step}/log/td"]
        return absolute(1e-5 * float(td_size * (normalized if "normalized" in name else 1.0)))
    if name.startswith(("params/", "target_params/")):
        return 5e-5 if step == "step1" else 1e-3
    if name.startswith("opt/"):
        return 3e-3
    if "_ema/" in name:
        return 2e-3
    if name in MEAN_LOGITS:
        return absolute(1e-5)
    return 3e-4 if name == "log/q_loss" else 1e-4

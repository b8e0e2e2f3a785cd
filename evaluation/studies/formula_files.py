"""A formula (`evaluation.studies.formula_rule`) as text to read, and as a loss in plain JAX."""

from collections.abc import Mapping
from typing import Any

from disco.anchored import AGENT_FEATURES
from evaluation.studies.formula_rule import ADDED, OUTPUTS, FormulaRule, Terms

_SYMBOLS: dict[str, str] = dict(
    zip(OUTPUTS, ("log(c / (1 - c))", "log k", "log m", "log step"), strict=True)
)
_ADDED: dict[str, str] = dict(zip(ADDED, ("1[a = a_t]", "π(a)", "A'(a)"), strict=True))

# What a feature is, and its code; the code of loss, below, has the other names.
_FEATURES = {
    "age": ("log(1 + updates) / 10", 'jnp.log1p(memory["updates"]) / 10.0'),
    "advantages": (
        "log10 of the advantages' moving standard deviation, at least 1e-3",
        "jnp.log10(jnp.maximum(deviation, 1e-3))",
    ),
    "entropy": (
        "the policy's mean entropy, by the largest there is",
        "-jnp.mean(jnp.sum(jnp.exp(log_pi) * log_pi, -1)[:-1]) / jnp.log(float(logits.shape[-1]))",
    ),
    "errors": (
        "log10 of the TD errors' root mean square by that deviation, from -2 to 2",
        'jnp.clip(jnp.log10(jnp.maximum(root(new["td"]) / jnp.maximum(deviation, 1e-3), 1e-3)),'
        " -2.0, 2.0)",
    ),
    "arrivals": (
        "log10 of the part of rewards that are not 0, at least 1e-3",
        'jnp.log10(jnp.maximum(new["arrived"][1] / new["arrived"][0], 1e-3))',
    ),
    "trend": (
        "mean reward of the last ten batches minus that of the last hundred, by their root mean"
        " square",
        '(new["recent"][1] / new["recent"][0] - new["reward"][1] / new["reward"][0])'
        ' / (root(new["reward"]) + 1e-6)',
    ),
    "signal": (
        "log10 of the root mean square of q(a_t) - v by that deviation, from -2 to 1",
        "jnp.clip(jnp.log10(jnp.maximum(jnp.sqrt(jnp.mean((q_bar - v[:-1]) ** 2))"
        " / jnp.maximum(deviation, 1e-3), 1e-2)), -2.0, 1.0)",
    ),
    "log_probability": (
        "log π(a_t), at least -5",
        "jnp.maximum(jnp.sum(chosen * log_pi[:-1], -1), -5.0)",
    ),
    "log_ratio": ("log π(a_t) - log μ(a_t), from -5 to 5", "jnp.clip(log_rho, -5.0, 5.0)"),
    "normalized_advantage": (
        "A minus its moving mean, by its deviation, from -3 to 3",
        "jnp.clip((advantage - mean) / (deviation + 1e-6), -3.0, 3.0)",
    ),
    "td": (
        "G - q(a_t), by the advantages' deviation, from -3 to 3",
        "jnp.clip(error / (deviation + 1e-6), -3.0, 3.0)",
    ),
}
# Moving moments besides those of advantages: of what, and the features that need them.
_MOMENTS = {
    "td": ("error", ("errors",)),
    "arrived": ('jnp.where(batch["reward"] == 0, 0.0, 1.0)', ("arrivals",)),
    "reward": ('batch["reward"]', ("trend",)),
}

_HEAD = '''"""The loss of {name}, a formula, in plain JAX.

`jax.grad(loss, has_aux=True)` of a policy's `logits` [T+1, B, A], all of them legal, and of action
values `q` [T+1, B, A, {bins}], categorical; `target_q` are those by a moving mean of the agent's
parameters, of decay {decay}. `batch` has `action`, `reward`, `discount` (0 where the transition
terminates its episode), `last` and `mask` (False between two episodes), [T, B], and
`behaviour_logits` [T, B, A]. The memory of a new agent is `MEMORY`.
"""

import jax
import jax.numpy as jnp

BINS = jnp.linspace(-{most}, {most}, {bins})
MEMORY = {{"updates": jnp.zeros(()), {moments}}}


def _value(logits):
    x = jax.nn.softmax(logits) @ BINS
    s = jnp.abs(x) + 1.001
    return jnp.sign(x) * ((2.0 * s / (1.0 + jnp.sqrt(1.0 + 0.004 * s))) ** 2 - 1.0)


def _moved(old, x, mask, decay=0.99):
    return decay * old + (1.0 - decay) * jnp.mean(jnp.stack([x**0, x, x**2]), (1, 2), where=mask)


def _targets(logits, q, target_q, batch, memory):
    log_pi, bar = jax.nn.log_softmax(logits), _value(target_q)
    v = jnp.sum(jnp.exp(log_pi) * bar, -1)
    chosen = jax.nn.one_hot(batch["action"], logits.shape[-1])
    log_rho = jnp.sum(chosen * (log_pi[:-1] - jax.nn.log_softmax(batch["behaviour_logits"])), -1)
    gamma, q_bar = {discount} * batch["discount"], jnp.sum(chosen * bar[:-1], -1)
    trace = jnp.roll({lambda_} * jnp.minimum(1.0, jnp.exp(log_rho)), -1, 0)
    rows = batch["reward"] + gamma * v[1:] - q_bar, jnp.where(batch["last"], 0.0, gamma * trace)
    errors = jax.lax.scan(lambda e, x: 2 * (x[0] + x[1] * e,), 0 * v[0], rows, reverse=True)[1]
    returns, advantage = q_bar + errors, q_bar + errors - v[:-1]
'''

_LOSS = '''

def loss(logits, q, target_q, batch, memory):
    """Return the loss, and [memory, factor of the optimiser's step]."""
    log_target, g, *after = jax.lax.stop_gradient(_targets(logits, q, target_q, batch, memory))
    kl = jnp.sum(jnp.exp(log_target) * (log_target - jax.nn.log_softmax(logits[:-1])), -1)
    h = jnp.sign(g) * (jnp.sqrt(jnp.abs(g) + 1.0) - 1.0) + 1e-3 * g
    distance = jnp.abs(jnp.clip(h, BINS[0], BINS[-1])[..., None] - BINS) / (BINS[1] - BINS[0])
    q_taken = jnp.take_along_axis(q[:-1], batch["action"][..., None, None], -2)[..., 0, :]
    q_loss = -jnp.sum(jnp.maximum(0.0, 1.0 - distance) * jax.nn.log_softmax(q_taken), -1)
    return jnp.mean({pi_cost}kl + {value_cost} * q_loss, where=batch["mask"]), after
'''


def loss_source(name: str, rule: FormulaRule) -> str:
    """Return a module in plain JAX with the loss of a rule; `name` is for its docstring.

    It needs no other package, and computes what `rule.loss` does where all actions are legal and
    a batch has a transition that is not masked.
    """
    terms = rule.terms
    used = [x for x in _FEATURES if any(x in term.split("*") for y in terms.values() for term in y)]
    kept = {"advantage": "advantage"}
    kept |= {x: code for x, (code, needed_by) in _MOMENTS.items() if set(needed_by) & set(used)}
    initial = [*kept, "recent"] if "trend" in used else list(kept)
    head = _HEAD.format(
        name=name,
        bins=rule.num_bins,
        most=rule.max_value,
        decay=rule.target_params_coefficient,
        discount=rule.discount,
        lambda_=rule.lambda_,
        moments=", ".join(f'"{x}": jnp.zeros(3)' for x in initial),
    )
    lines = [*_memory_lines(rule, used, kept), *(f"{x} = {_FEATURES[x][1]}" for x in used)]
    body = "".join(f"    {line}\n" for line in [*lines, *_target_lines(rule, terms)])
    cost = "" if rule.pi_cost == 1.0 else f"{rule.pi_cost} * "
    return head + body + _LOSS.format(pi_cost=cost, value_cost=rule.value_cost)


def _memory_lines(rule: FormulaRule, used: list[str], kept: Mapping[str, str]) -> list[str]:
    """Return the code of the memory after a batch, and of what features need besides."""
    lines = []
    if {"td", "errors"} & set(used):
        lines.append("error = returns - jnp.sum(chosen * _value(q[:-1]), -1)")
    lines.append('new = {"updates": memory["updates"] + 1.0}')
    for name, code in kept.items():
        is_masked = rule.masks_moments or name in ("arrived", "reward")
        mask = 'batch["mask"]' if is_masked else "None"
        lines.append(f'new["{name}"] = _moved(memory["{name}"], {code}, {mask})')
    if "trend" in used:
        lines.append(
            'new["recent"] = _moved(memory["recent"], batch["reward"], batch["mask"], 0.9)'
        )
    if {"errors", "trend"} & set(used):
        lines += ["def root(x):", "    return jnp.sqrt(x[2] / x[0] + 1e-12)", ""]
    lines.append('_, mean, square = new["advantage"] / new["advantage"][0]')
    lines.append("deviation = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) + 1e-12)")
    return lines


def _target_lines(rule: FormulaRule, terms: Mapping[str, Terms]) -> list[str]:
    """Return the code of the weights, and of what `targets` returns."""
    weights, step = {}, "1.0"
    constants = rule.policy_prior, rule.advantage_weight, rule.action_advantage_weight
    for symbol, name, constant in zip("ckm", OUTPUTS, constants, strict=False):
        function = "jax.nn.sigmoid" if symbol == "c" else "jnp.exp"
        weights[symbol] = f"{function}({_sum(terms[name])})" if name in terms else f"{constant}"
        if name in terms and _varies(terms[name]):
            weights[symbol] += "[..., None]"
    if OUTPUTS[3] in terms:
        step = f"jnp.exp(jnp.clip(jnp.mean({_sum(terms[OUTPUTS[3]])}), -5.0, 5.0))"
    lines = [f"{symbol} = {code}" for symbol, code in weights.items()]
    advantage, others = "advantage", "bar - v[..., None]"
    if rule.normalize_advantage:
        advantage, others = (f"(({x} - mean) / (deviation + 1e-6))" for x in (advantage, others))
    lines += [
        f"target = k * {advantage}[..., None] * chosen + m * ({others})[:-1]",
        "target += c * (logits - jnp.mean(logits, -1, keepdims=True))[:-1]",
    ]
    action_advantage = "jnp.clip((bar - v[..., None] - mean) / (deviation + 1e-6), -3.0, 3.0)"
    codes: dict[str, str] = dict(
        zip(ADDED, ("chosen", "jnp.exp(log_pi[:-1])", f"{action_advantage}[:-1]"), strict=True)
    )
    for name in (x for x in ADDED if x in terms):
        axis = "[..., None]" if _varies(terms[name]) else ""
        lines.append(f"target += ({_sum(terms[name])}){axis} * {codes[name]}")
    return [*lines, f"return jax.nn.log_softmax(target), returns, new, {step}"]


def _varies(terms: Terms) -> bool:
    """Return whether a sum differs between the transitions of a batch."""
    return any(set(term.split("*")) - {"1", *AGENT_FEATURES} for term in terms)


def _sum(terms: Terms) -> str:
    """Return the sum of terms as code."""
    parts = [
        f"{abs(x):g}" if term == "1" else f"{abs(x):g} * {term.replace('*', ' * ')}"
        for term, x in terms.items()
    ]
    signs = [" - " if x < 0 else " + " for x in terms.values()]
    text = "".join(sign + part for sign, part in zip(signs, parts, strict=True))
    return text.removeprefix(" + ").replace(" - ", "-", 1) if text.startswith(" - ") else text[3:]


def markdown(name: str, rule: FormulaRule, numbers: Mapping[str, Any]) -> str:
    """Return a page with the formula, what its names mean, and its errors (`formulas.fit`)."""
    terms, divergence = rule.terms, numbers["divergence"]
    added = "".join(f" + f{i} {_ADDED[x]}" for i, x in enumerate(x for x in ADDED if x in terms))
    lines = [f"π̂(a) ∝ exp(c (l(a) - mean l) + k A 1[a = a_t] + m A(a){added})", ""]
    constants = rule.policy_prior, rule.advantage_weight, rule.action_advantage_weight
    for i, constant in enumerate(constants):
        if OUTPUTS[i] not in terms:
            lines.append(f"{'ckm'[i]} = {constant:g}")
    for x in (x for x in OUTPUTS if x in terms):
        lines.append(f"{_SYMBOLS[x]} = {_sum(terms[x])}")
    for i, x in enumerate(x for x in ADDED if x in terms):
        lines.append(f"f{i} = {_sum(terms[x])}")
    used = {x for y in terms.values() for term in y for x in term.split("*")}
    names = [f"| {x} | {_FEATURES[x][0]} |" for x in _FEATURES if x in used]
    rows = [f"| {x}, R² | {y:.4f} |" for x, y in numbers["r2"].items()]
    rows += [
        f"| {x}, KL from the rule's target (nats) | {y:.3g} ({y / divergence['policy']:.2%}) |"
        for x, y in divergence.items()
    ]
    training, held_out = numbers["transitions"]
    return "\n".join(
        [
            f"# {name} as a formula",
            "",
            *("```", *lines, "```", ""),
            *("| name | is |", "| --- | --- |", *names, ""),
            f"{training:,} transitions of {len(numbers['tasks']) - len(numbers['held_out'])} tasks;"
            f" the errors are of {held_out:,} of {len(numbers['held_out'])} other tasks, and in"
            " brackets by the divergence from the policy.",
            "",
            *("| on held-out tasks | |", "| --- | --- |", *rows, ""),
        ]
    )

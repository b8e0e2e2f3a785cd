"""A discovered rule as a formula: a sparse regression of what its meta-network computes.

Agents learn tasks by the rule. At some of their updates, spread evenly over the logarithm of the
age, all that the rule reads is kept. Each output of the meta-network is regressed on products of at
most two `formula_rule.features`, f_η on `formula_rule.ADDED` times at most one, by orthogonal
matching pursuit (Pati et al. 1993), which adds one term after the other. The error on held-out
tasks chooses the number of terms: the fewest within `TOLERANCE` of the least error.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree
from sklearn.linear_model import orthogonal_mp

import disco
import environments
from agents.rule_agent import RuleAgent, to_trajectory
from disco import anchored
from disco_common import compilation
from evaluation.contenders import Contender
from evaluation.studies import formula_rule
from evaluation.studies.formula_rule import ADDED, OUTPUTS, FormulaRule, Terms
from training import iteration
from training.passes import StaticAgent, split_agent

TOLERANCE = 0.002  # Of the variance, or of the target's divergence from the policy.
_MOST_TERMS = 12
_AGES = 16  # Updates of a lifetime that are kept.
_TASKS = 16
_HELD_OUT = 4  # Of so many tasks one.
_DIGITS = 4

Seen = tuple[Mapping[str, Any], Mapping[str, Any] | None, disco.Trajectory, disco.RuleState]
"""The arguments of `Rule.targets`, without observations, with an axis of updates in front."""


class Samples(NamedTuple):
    """What a rule computes of the N unmasked transitions that agents have seen in a task.

    Attributes:
      features: by name, `[N]`.
      added: of each action by name, `[N, A]`, and here minus the mean over legal actions.
      outputs: by name, `[N]`: the logarithms of the weights, and of the step.
      logits: f_η, `[N, A]`, centred likewise.
      target, policy: logits, `[N, A]`; -inf for illegal actions.
    """

    features: dict[str, np.ndarray]
    added: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    logits: np.ndarray
    target: np.ndarray
    policy: np.ndarray


def chosen(tasks: Sequence[environments.Environment]) -> list[environments.Environment]:
    """Return at most `_TASKS` of them, evenly spread."""
    where = np.linspace(0, len(tasks) - 1, min(_TASKS, len(tasks)))
    return [tasks[i] for i in where.astype(int)]


def fit(
    contender: Contender, tasks: Sequence[environments.Environment], num_updates: int, seed: int
) -> tuple[FormulaRule, dict[str, Any]]:
    """Return a formula of a rule, and its errors on held-out tasks, JSON values.

    Every fourth task is held out. The errors are each output's R² (of constant ones 1), and
    `divergence`, the mean KL divergence (nats) from the rule's policy target of the formula's, of
    the rule's without its meta-network (`without_meta_network`), and of the policy itself.

    Args:
      contender: a discovered rule, and the agent that learns by it.
      tasks: at least four, in JAX.
      num_updates: of a lifetime.
      seed: of the agents.

    Raises:
      ValueError: if the tasks do not suit, or the rule does not read values.
    """
    if len(tasks) < _HELD_OUT or any(task.is_host for task in tasks):
        raise ValueError(f"A formula needs {_HELD_OUT} tasks in JAX; got {len(tasks)} tasks.")
    rule = contender.rule
    if not isinstance(rule, disco.AnchoredRule):
        rule = disco.AnchoredRule(**vars(rule))
        contender = contender.changed(rule=rule)
    if not getattr(rule, "reads_values", True):
        raise ValueError(f"{contender.name} does not read values; a formula has them.")
    seen = [_seen(contender, task, num_updates, seed) for task in tasks]
    samples = [_samples(rule, x) for x in seen]
    held_out = slice(_HELD_OUT - 1, None, _HELD_OUT)
    test, test_seen = samples[held_out], seen[held_out]
    training = [x for i, x in enumerate(samples) if i % _HELD_OUT != _HELD_OUT - 1]
    formula, r2 = {}, {}
    for name in OUTPUTS[: rule.sizes.prior_outputs]:
        formula[name], r2[name] = _fit_output(name, training, test)
    formula |= _fit_logits(training, test)
    found = FormulaRule.like(rule, formula)
    others = {"formula": found, "rule without its meta-network": without_meta_network(rule)}
    numbers = {
        "transitions": [sum(len(x.target) for x in part) for part in (training, test)],
        "tasks": [task.name for task in tasks],
        "held_out": [task.name for task in tasks[held_out]],
        "r2": r2,
        "divergence": {name: _divergence(test, test_seen, x) for name, x in others.items()},
    }
    numbers["divergence"]["policy"] = _mean([_kl(x.target, x.policy) for x in test])
    return found, numbers


def without_meta_network(rule: disco.AnchoredRule) -> disco.AnchoredRule:
    """Return the rule without f_η, and without the LSTM's share of the weights' logarithms."""
    parameters = dict(rule.parameters)
    name, width = anchored.PRIOR, rule.sizes.trajectory
    if name in parameters:
        w = jnp.asarray(parameters[name]["w"]).at[:width].set(0.0)
        parameters[name] = {**parameters[name], "w": w}
    last = "trajectory/policy_target_1"
    parameters[last] = jax.tree.map(jnp.zeros_like, parameters[last])
    return dataclasses.replace(rule, parameters=parameters)


def _seen(
    contender: Contender, task: environments.Environment, num_updates: int, seed: int
) -> Seen:
    """Return what the rule reads at some updates of an agent that learns a task."""
    static, arrays = split_agent(contender.configured.make(task))
    inputs = static, task.dynamics, num_updates, arrays, task.params, jax.random.key(seed)
    state, number, kept = _start(*inputs), 0, []
    for age in np.unique(np.geomspace(1, num_updates, _AGES).astype(int)):
        state, seen = _visit(*inputs, state, number, age - 1)
        kept.append(seen)
        number = age - 1
    return jax.tree.map(lambda *x: jnp.stack(x), *kept)


@compilation.jit_compiled_fast(static_argnums=(0, 1, 2))
def _start(
    static: StaticAgent,
    dynamics: environments.JaxEnvironment,
    num_updates: int,
    arrays: Any,
    task_params: PyTree,
    key: PRNGKeyArray,
) -> iteration.TrainingState:
    """Return the state of a new agent."""
    agent = static.with_arrays(arrays)
    steps = num_updates * agent.requirements.steps_per_unroll
    return iteration.init(agent, dynamics, task_params, key, steps)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _visit(
    static: StaticAgent,
    dynamics: environments.JaxEnvironment,
    num_updates: int,
    arrays: Any,
    task_params: PyTree,
    key: PRNGKeyArray,
    state: iteration.TrainingState,
    first: Int[Array, ""],
    last: Int[Array, ""],
) -> tuple[iteration.TrainingState, Seen]:
    """Make the updates from `first`; return the state before `last`, and what that one reads."""
    del num_updates
    agent = static.with_arrays(arrays)
    assert isinstance(agent, RuleAgent)

    def drawn(number, state):
        own = jax.random.fold_in(key, number)
        state, batch, _ = iteration.collect_and_draw(agent, dynamics, task_params, state, own)
        return state, to_trajectory(batch)

    def learn(number, state):
        state, trajectory = drawn(number, state)
        learner, _, _ = agent.learn(state.learner, trajectory)
        return dataclasses.replace(state, learner=learner)

    state = jax.lax.fori_loop(first, last, learn, state)
    after, trajectory = drawn(last, state)
    learner, scaled = agent.scaled(after.learner, trajectory)
    rule_state = learner.rule_state
    outputs, target_outputs = (
        agent.network.unroll(x, scaled) for x in (learner.params, rule_state.target_params)
    )
    seen = dataclasses.replace(scaled, observation=None, core_state=None)
    known = dataclasses.replace(rule_state, target_params=None)
    return state, (outputs, target_outputs, seen, known)


@jax.jit
def _computed(rule: disco.AnchoredRule, seen: Seen) -> Any:
    """Return features, added features, outputs, f_η and the policy target of what was seen."""

    def of_one(outputs, target_outputs, trajectory, state):
        all_inputs = outputs, target_outputs, trajectory
        inputs, memory = rule.inputs_and_memory(*all_inputs, state.memory)
        inputs = rule.read(inputs, memory)
        raw, prior, _ = rule.computed(inputs, memory)
        target = rule.targets(*all_inputs, state)[0].pi
        known = formula_rule.features(inputs, memory), formula_rule.added_features(inputs)
        return *known, prior, raw.pi, target

    return jax.vmap(of_one)(*seen)


def _samples(rule: disco.AnchoredRule, seen: Seen) -> Samples:
    mask, policy = np.asarray(seen[2].mask), np.asarray(seen[0]["logits"])[:, :-1]
    found = jax.tree.map(lambda x: np.asarray(x, np.float64)[mask], _computed(rule, seen))
    features, added, prior, logits, target = found
    policy = policy[mask].astype(np.float64)
    is_legal, at_0 = policy != -np.inf, [0.0] * len(OUTPUTS)
    if rule.sizes.prior_outputs:
        c, k, m = rule.policy_prior, rule.advantage_weight, rule.action_advantage_weight
        with np.errstate(divide="ignore"):  # Of weights that are no outputs.
            at_0[:3] = np.log(c / (1.0 - c)), np.log(k), np.log(m)
    outputs = OUTPUTS[: rule.sizes.prior_outputs]
    return Samples(
        features=features,
        added={name: _centred(x, is_legal) for name, x in added.items()},
        outputs={name: at_0[i] + prior[:, i] for i, name in enumerate(outputs)},
        logits=_centred(logits, is_legal),
        target=target,
        policy=policy,
    )


def _centred(
    x: Float[np.ndarray, "N A"], is_legal: Bool[np.ndarray, "N A"]
) -> Float[np.ndarray, "N A"]:
    mean = np.sum(x, axis=1, where=is_legal) / np.maximum(is_legal.sum(axis=1), 1)
    return np.where(is_legal, x - mean[:, None], 0.0)


def _fit_output(
    name: str, training: Sequence[Samples], test: Sequence[Samples]
) -> tuple[Terms, float]:
    """Return the terms of an output, and its R² on held-out tasks."""
    single = list(training[0].features)
    pairs = itertools.combinations_with_replacement(single, 2)
    dictionary = [*single, *("*".join(pair) for pair in pairs)]
    target, wanted = (np.concatenate([x.outputs[name] for x in part]) for part in (training, test))
    columns, others = (_columns(part, dictionary) for part in (training, test))
    found: list[tuple[float, Terms]] = []
    for number in (len(single), len(dictionary)):
        for intercept, coefficients in _path(columns[:, :number], target):
            terms = {"1": intercept, **dict(zip(dictionary, coefficients, strict=False))}
            terms = {term: x for term, x in terms.items() if x}
            predicted = terms.get("1", 0.0) + others[:, :number] @ coefficients
            found.append((_mean([np.square(wanted - predicted)]), terms))
    variance = float(np.var(wanted))
    error, terms = _fewest(found, TOLERANCE * variance)
    return terms, 1.0 - error / variance if variance > 1e-12 else 1.0


def _fit_logits(training: Sequence[Samples], test: Sequence[Samples]) -> dict[str, Terms]:
    """Return the terms of f_η, by feature of each action; empty if it hardly matters."""
    dictionary = ["1", *training[0].features]
    names = list(itertools.product(ADDED, dictionary))

    def columns(x: Samples) -> Float[np.ndarray, "N A terms"]:
        known = _columns([x], dictionary)[:, None]
        return np.concatenate([x.added[name][..., None] * known for name in ADDED], axis=-1)

    target = np.concatenate([x.logits.ravel() for x in training])
    rows = np.concatenate([columns(x).reshape(-1, len(names)) for x in training])
    others, found = [columns(x) for x in test], []
    for _, coefficients in _path(rows, target):
        guesses = [
            x.target - x.logits + y @ coefficients for x, y in zip(test, others, strict=True)
        ]
        error = _mean([_kl(x.target, y) for x, y in zip(test, guesses, strict=True)])
        terms = {name: x for name, x in zip(names, coefficients, strict=True) if x}
        found.append((error, terms))
    change = _mean([_kl(x.target, x.policy) for x in test])
    _, terms = _fewest(found, TOLERANCE * change)
    by_feature: dict[str, Any] = {}
    for (added, term), coefficient in terms.items():
        by_feature.setdefault(added, {})[term] = coefficient
    return by_feature


def _columns(part: Sequence[Samples], dictionary: Sequence[str]) -> Float[np.ndarray, "N terms"]:
    rows = [
        [np.broadcast_to(formula_rule.column(term, x.features), len(x.target)) for x in part]
        for term in dictionary
    ]
    return np.stack([np.concatenate(row) for row in rows], axis=-1)


def _path(
    columns: Float[np.ndarray, "N terms"], target: Float[np.ndarray, "N"]
) -> list[tuple[float, Float[np.ndarray, "terms"]]]:
    """Return intercept and coefficients, rounded, of 0 terms and more."""
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    varies = scale > 1e-6
    standard = (columns - mean)[:, varies] / scale[varies]
    most = min(_MOST_TERMS, int(varies.sum()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # It ends where nothing is left to explain.
        path = orthogonal_mp(
            standard,
            target - target.mean(),
            n_nonzero_coefs=most,
            precompute=True,
            return_path=True,
        )
    found = [np.zeros(len(scale))]
    for some in np.asarray(path).reshape(standard.shape[1], -1).T:
        coefficients = np.zeros(len(scale))
        coefficients[varies] = some / scale[varies]
        found.append(np.array([_rounded(x) for x in coefficients]))
    return [(_rounded(target.mean() - mean @ x), x) for x in found]


def _rounded(x: float) -> float:
    return float(f"{x:.{_DIGITS}g}")


def _fewest(found: Sequence[tuple[float, Any]], tolerance: float) -> tuple[float, Any]:
    """Return the first of the errors with the fewest terms that are near the least."""
    least = min(error for error, _ in found)
    near = [one for one in found if one[0] <= least + tolerance]
    return min(near, key=lambda one: len(one[1]))


def _divergence(test: Sequence[Samples], seen: Sequence[Seen], rule: disco.AnchoredRule) -> float:
    """Return the mean KL divergence of a rule's policy target from the one in the samples."""
    return _mean(
        [
            _kl(x.target, np.asarray(_computed(rule, y)[-1], np.float64)[np.asarray(y[2].mask)])
            for x, y in zip(test, seen, strict=True)
        ]
    )


def _kl(
    target: Float[np.ndarray, "N A"], other: Float[np.ndarray, "N A"]
) -> Float[np.ndarray, "N"]:
    log_p, log_q = scipy.special.log_softmax(target, 1), scipy.special.log_softmax(other, 1)
    p = np.exp(log_p)
    return np.sum(p * np.where(p > 0, log_p - log_q, 0.0), axis=1, where=p > 0)


def _mean(parts: Sequence[Float[np.ndarray, "_"]]) -> float:
    return float(np.mean(np.concatenate(parts)))

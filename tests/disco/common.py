"""Small rules, agents and trajectories for the tests of the rules."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import disco
from disco import meta_network
from disco.anchored import form_of

SIZES = disco.MetaNetworkSizes(
    prediction=12,
    prediction_embedding=4,
    action_hidden=5,
    action_embedding=3,
    trajectory=16,
    lifetime=8,
    lifetime_input=6,
)

# What our rules have and the published one has not.
TEN_FEATURES = dataclasses.replace(SIZES, action_features=10)
EXTENDED_SIZES = dataclasses.replace(
    TEN_FEATURES, prior_outputs=2, agent_features=1, prior_features=2
)
TRANSFORMER_SIZES = dataclasses.replace(SIZES, transformer_layers=2)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def small_rule(
    seed: int = 0, sizes: disco.MetaNetworkSizes = SIZES, **hyper_parameters: Any
) -> disco.DiscoveredRule:
    """A rule of the simplest form that has the hyper-parameters."""
    settings: dict[str, Any] = {"num_bins": 21, "max_value": 10.0}
    form, own = form_of(sizes, settings | hyper_parameters)
    return form(parameters_of(sizes, seed), sizes, **own)


def anchored(rule: disco.DiscoveredRule, **changes: Any) -> disco.AnchoredRule:
    """The rule as an anchored one, with some fields changed."""
    return disco.AnchoredRule(**{**vars(rule), **changes})


def parameters_of(sizes: disco.MetaNetworkSizes, seed: int) -> Any:
    """Of a new meta-network, in the current precision; drawn once for all rules that have them."""
    return _parameters(sizes, seed, jnp.result_type(float))


@functools.cache
def _parameters(sizes: disco.MetaNetworkSizes, seed: int, _: Any) -> Any:
    with jax.ensure_compile_time_eval():  # No part of a program that is traced.
        return meta_network.init(jax.random.key(seed), sizes)


def extended_rule(seed: int = 0) -> disco.AnchoredRule:
    rule = small_rule(
        seed, EXTENDED_SIZES, policy_prior=0.9, advantage_weight=2.0, masks_moments=True
    )
    assert isinstance(rule, disco.AnchoredRule)
    return rule


def random_trajectory(
    seed: int = 0, *, num_transitions: int = 7, batch_size: int = 3, num_actions: int = 3
) -> disco.Trajectory:
    """Random experience of several episodes: some terminated, some cut, none so at the start."""
    rng = np.random.default_rng(seed)
    shape = (num_transitions, batch_size)
    last = rng.random(shape) < 0.3
    terminated = last & (rng.random(shape) < 0.5)
    follows_last = np.concatenate([np.zeros_like(last[:1]), last[:-1]])
    dtype = jnp.result_type(float)
    return disco.Trajectory(
        observation=jnp.asarray(rng.normal(size=(num_transitions + 1, batch_size, 4)), dtype),
        action=jnp.asarray(rng.integers(num_actions, size=shape)),
        reward=jnp.asarray(rng.normal(size=shape), dtype),
        discount=jnp.asarray(1.0 - terminated, dtype),
        last=jnp.asarray(last),
        behaviour_logits=jnp.asarray(rng.normal(size=(*shape, num_actions)), dtype),
        mask=jnp.asarray(~follows_last),
    )


def random_outputs(
    rule: disco.Rule, trajectory: disco.Trajectory, seed: int = 0
) -> dict[str, jax.Array]:
    """Outputs of no network in particular."""
    rng = np.random.default_rng(seed)
    num_transitions, batch_size, num_actions = trajectory.behaviour_logits.shape
    rows = (num_transitions + 1, batch_size)
    return {
        name: jnp.asarray(rng.normal(size=(*rows, *shape)), jnp.result_type(float))
        for name, shape in rule.output_shapes(num_actions).items()
    }


def random_state(rule: disco.DiscoveredRule, seed: int = 0) -> disco.RuleState:
    """Memory in the middle of a lifetime, and no target parameters."""
    memory = rule.init_memory()
    rng = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(memory)
    # Positive, so that they are moments of something.
    leaves = [jnp.asarray(rng.uniform(0.3, 0.6, x.shape), x.dtype) for x in leaves]
    return disco.RuleState(target_params=None, memory=jax.tree.unflatten(structure, leaves))


def mlp_params(
    rule: disco.Rule, trajectory: disco.Trajectory, seed: int = 0, hidden: int = 6
) -> dict[str, Any]:
    """Parameters of a network with one hidden layer and a linear head per output."""
    rng = np.random.default_rng(seed)
    num_actions = trajectory.behaviour_logits.shape[-1]

    def linear(inputs: int, outputs: int) -> jax.Array:
        weight = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        return jnp.asarray(weight, jnp.result_type(float))

    heads = {
        name: linear(hidden, int(np.prod(shape))).reshape(hidden, *shape)
        for name, shape in rule.output_shapes(num_actions).items()
    }
    return {"torso": linear(trajectory.observation.shape[-1], hidden), "heads": heads}


def mlp_unroll(params: Any, trajectory: disco.Trajectory) -> dict[str, jax.Array]:
    hidden = jnp.tanh(trajectory.observation @ params["torso"])
    return {name: jnp.tensordot(hidden, head, 1) for name, head in params["heads"].items()}


def relative_difference(tree: Any, reference: Any) -> float:
    """Largest difference of any two leaves, relative to the reference leaf's largest entry.

    A leaf that vanishes is a sum that cancels, and its entries are what rounding left of it: a
    difference counts from 1e-14 of the whole reference's largest entry.
    """
    assert jax.tree.structure(tree) == jax.tree.structure(reference)

    def largest(x: Any) -> float:
        return float(np.max(np.abs(np.asarray(x, np.float64)), initial=0.0))

    rounding = 1e-14 * max(map(largest, jax.tree.leaves(reference)), default=0.0)

    def difference(a: Any, b: Any) -> float:
        found = largest(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        return found / max(largest(b), 1e-300) if found > rounding else 0.0

    return max(jax.tree.leaves(jax.tree.map(difference, tree, reference)), default=0.0)


# Compiled once for all rules that differ in their parameters only.


@jax.jit
def targets_of(rule: disco.Rule, outputs, target_outputs, trajectory: disco.Trajectory, state):
    return rule.targets(outputs, target_outputs, trajectory, state)


@functools.partial(jax.jit, static_argnums=4)
def gradient_of(
    rule: disco.Rule,
    params,
    state,
    trajectory: disco.Trajectory,
    unroll: disco.Unroll = mlp_unroll,
):
    return rule.gradient(params, state, trajectory, unroll)


@functools.partial(jax.jit, static_argnums=4)
def loss_of(
    rule: disco.Rule,
    params,
    state,
    trajectory: disco.Trajectory,
    unroll: disco.Unroll = mlp_unroll,
):
    return rule.loss(params, state, trajectory, unroll)

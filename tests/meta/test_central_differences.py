"""The meta-gradient against central differences, for every setting of an agent.

The meta-gradient holds some values constant (`jax.lax.stop_gradient`): what the meta-network reads
of policies and values, returns, the second moment of the agent's Adam. Central differences are
those of the forward updates, `RuleAgent.learn`, with these values held where they are at the rule.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.flatten_util import ravel_pytree

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import LearnerState, RuleAgent, RuleAgentConfig, to_trajectory
from meta import inner_loop
from meta.config import ObjectiveConfig
from meta.objective import meta_loss, target_statistics
from tests.disco.common import float64, random_state
from tests.environments.streams import dynamics_of
from tests.meta.common import small_rule
from training import iteration

K = 3
EXPERIENCE = RuleAgentConfig(
    network=NetworkConfig(torso=(6,), memory=4, model=4, head=()),
    num_environments=3,
    unroll_length=4,
    batch_size=4,
    replay_ratio=0.25,
    replay_capacity=12,
    frame_stack=2,
    burn_in=2,
)
# Together they have every field away from its default.
CASES = {
    "schedule, decay and clipping": dataclasses.replace(
        EXPERIENCE,
        reward_scale=0.1,
        learning_rate=3e-2,
        end_learning_rate=0.1,
        warmup=1 * EXPERIENCE.steps_per_update,
        lifetime=6 * EXPERIENCE.steps_per_update,
        weight_decay=0.3,
        max_abs_update=0.7,
        max_gradient_norm=0.02,
    ),
    # The first updates are 1, where a bound of 1 has no derivative.
    "RMSProp, scales": dataclasses.replace(
        EXPERIENCE,
        optimizer_kind="rmsprop",
        max_abs_update=2.0,
        adapts_steps=True,
        adapts_rewards=True,
    ),
}
# Fields that no meta-gradient can depend on, each with the reason.
NO_INFLUENCE: dict[str, str] = {}


def test_every_setting_of_an_agent_is_covered():
    """A new field is given another value in CASES, or a reason in NO_INFLUENCE."""
    default = RuleAgentConfig()
    names = {field.name for field in dataclasses.fields(RuleAgentConfig)}
    covered = {
        name
        for name in names
        if any(getattr(case, name) != getattr(default, name) for case in CASES.values())
    }
    assert names - covered == set(NO_INFLUENCE)


def evaluate(program: core.ClosedJaxpr, inputs: list, held: list, is_held: Any):
    """Return a program's outputs, and the results of each `stop_gradient` in it.

    Where `is_held`, these results are those of `held`; if it is empty, none are.
    """
    values = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    values |= zip(program.jaxpr.invars, inputs, strict=True)
    found = []

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in program.eqns:
        arguments = [read(atom) for atom in eqn.invars]
        called = [x for x in eqn.params.values() if isinstance(x, core.ClosedJaxpr)]
        if eqn.primitive.name == "stop_gradient":
            before = held[len(found) : len(found) + 1]
            results = [jnp.where(is_held, *before, *arguments)] if before else arguments
            found += results
        elif called and eqn.primitive.name not in ("scan", "while", "cond"):
            results, more = evaluate(called[0], arguments, held[len(found) :], is_held)
            found += more
        else:
            assert "stop_gradient" not in str(eqn.params)
            results = eqn.primitive.bind(*arguments, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values |= zip(eqn.outvars, results, strict=True)
    return [read(atom) for atom in program.jaxpr.outvars], found


def meta_loss_of(agent: RuleAgent, learner, statistics, validation, advantage):
    outputs = agent.network.unroll(learner.params, validation)
    return meta_loss(ObjectiveConfig(), outputs, advantage, validation, statistics)[0]


def in_float64(tree: Any) -> Any:
    def convert(x):
        return jnp.asarray(x, jnp.float64 if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    return jax.tree.map(convert, tree)


def in_mid_life(agent: RuleAgent, rule: disco.DiscoveredRule) -> LearnerState:
    """With a target network of its own, and moments that are not zero."""
    learner = jax.jit(agent.init)(jax.random.key(2))
    state = disco.RuleState(target_params=0.9 * learner.params, memory=random_state(rule).memory)
    return in_float64(dataclasses.replace(learner, rule_state=state))


@pytest.fixture(scope="module")
def experience():
    """K batches, with replayed trajectories, and one for validation; of an agent that plays."""
    environment = environments.make("catch/4x3")
    dynamics, task = dynamics_of(environment), environment.params
    agent = RuleAgent.create(EXPERIENCE, dynamics, small_rule())
    state = jax.jit(lambda key: iteration.init(agent, dynamics, task, key))(jax.random.key(0))

    @jax.jit
    def collect(state, key):
        state, batch, _ = iteration.collect_and_draw(agent, dynamics, task, state, key)
        return state, to_trajectory(batch)

    trajectories = []
    for key in jax.random.split(jax.random.key(1), 3 + K + 1):
        state, trajectory = collect(state, key)
        trajectories.append(jax.device_get(trajectory))
    return dynamics, trajectories[-K - 1 : -1], trajectories[-1]


@pytest.mark.parametrize("name", CASES)
def test_the_meta_gradient_is_that_of_the_forward_updates(name, experience):
    with float64():
        dynamics, *trajectories = experience
        batches, validation = in_float64(trajectories)
        rule = small_rule()
        agent = RuleAgent.create(CASES[name], dynamics, rule)
        learner = in_mid_life(agent, rule)
        advantage = jnp.asarray(np.random.default_rng(0).normal(size=validation.reward.shape))

        def forward(rule):
            """The meta-loss after K updates, and the updates' residuals."""
            updated, every = learner, []
            for batch in batches:
                updated, residuals, _ = inner_loop.update_with_residuals(
                    dataclasses.replace(agent, rule=rule), updated, batch
                )
                every.append(residuals)
            residuals = jax.tree.map(lambda *x: jnp.stack(x), *every)
            statistics = jax.vmap(
                lambda x: target_statistics(x.update.targets, x.target_network_logits)
            )(residuals)
            return meta_loss_of(agent, updated, statistics, validation, advantage), residuals

        @jax.jit
        def meta_gradient(rule, residuals):
            def loss_of(rule):
                rebuilt = inner_loop.differentiable_inner_loop(agent, rule, learner, residuals, K)
                return meta_loss_of(agent, *rebuilt, validation, advantage)

            return ravel_pytree(jax.grad(loss_of)(rule))[0]

        at, unravel = ravel_pytree(rule)
        program, shapes = jax.make_jaxpr(lambda at: forward(unravel(at)), return_shape=True)(at)

        @jax.jit
        @partial(jax.vmap, in_axes=(0, 0, None))
        def evaluated(at, held, is_held):
            (loss, *residuals), found = evaluate(program, [at], held, is_held)
            return loss, residuals, found

        number = 5
        same = jnp.broadcast_to(at, (2 * number, at.size))
        held = jax.eval_shape(evaluated, same, [], False)[2]
        held = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), held)
        _, residuals, held = evaluated(same, held, False)
        residuals = jax.tree.unflatten(jax.tree.structure(shapes[1]), [x[0] for x in residuals])
        gradient = meta_gradient(rule, residuals)

        directions = jax.random.normal(jax.random.key(3), (number, at.size)).at[0].set(gradient)
        directions /= jnp.linalg.norm(directions, axis=1, keepdims=True)
        step = 1e-5
        moved = same + step * jnp.concatenate([directions, -directions])
        up, down = jnp.split(evaluated(moved, held, True)[0], 2)
        found, expected = directions @ gradient, (up - down) / (2 * step)
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)

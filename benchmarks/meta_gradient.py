"""Memory and time of a meta-gradient through K updates, mixed mode against plain.

    python -m benchmarks.meta_gradient --num_updates=20

The published meta-training notebook's configuration: Catch 5x5, MLP 512-512, model LSTM and heads
of 256, 32 trajectories of 16 steps, 32 validation steps, Disco103's sizes, one agent. The benchmark
times the meta-gradient on recorded batches: K updates, the meta-loss, and the backward pass.

- `plain`: reverse over reverse. JAX differentiates the same updates without rematerialisation.
- `one level`, `two levels`: `meta.inner_loop` with the states of all updates, or of about sqrt(K).
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags

import disco
import environments
from agents.rule_agent import LearnerState, RuleAgent, to_trajectory
from benchmarks import tutorial
from benchmarks.timing import compare
from meta import inner_loop
from meta.objective import ObjectiveConfig, meta_loss, target_statistics
from training import collection, iteration

_NUM_UPDATES = flags.DEFINE_integer("num_updates", 20, "K, the number of updates.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls of each program.")


def plain_learn(agent, rule, learner, batch):
    """Update a learner like `RuleAgent.learn`, without custom derivatives.

    Returns:
      The learner, the targets, and the target network's logits.
    """
    unroll, batch = agent.network.unroll, agent.config.scaled(batch)
    loss_outputs, pull_back, outputs = jax.vjp(
        lambda p: rule._unroll(unroll, p, batch), learner.params, has_aux=True
    )
    target_outputs = unroll(learner.rule_state.target_params, batch)
    targets, state = rule.targets(outputs, target_outputs, batch, learner.rule_state)
    output_gradient = jax.grad(lambda o: rule.output_loss(o, targets, batch)[0])(loss_outputs)
    (gradients,) = pull_back(output_gradient)
    state = rule._track(state, learner.params)
    aux = disco.Aux(state=state, targets=targets, metrics={})
    return agent.apply(learner, gradients, aux), targets, target_outputs["logits"]


def main(argv: list[str]) -> None:
    """Print times, XLA's temporary memory and the ratios."""
    del argv
    num_updates = _NUM_UPDATES.value
    rule = disco.DiscoveredRule.create(jax.random.key(0))
    environment = environments.make(tutorial.ENVIRONMENT)
    agent = RuleAgent.create(tutorial.AGENT, environment.dynamics, rule)
    learner, batches, validation = _experience(agent, environment)
    advantage = jax.random.normal(jax.random.key(4), validation.action.shape)

    def loss_of(learner, statistics):
        outputs = agent.network.unroll(learner.params, validation)
        return meta_loss(ObjectiveConfig(), outputs, advantage, validation, statistics)[0]

    def plain(rule, learner, batches):
        def loss(rule):
            def step(learner, batch):
                learner, targets, logits = plain_learn(agent, rule, learner, batch)
                return learner, target_statistics(targets, logits)

            return loss_of(*jax.lax.scan(step, learner, batches))

        return jax.value_and_grad(loss)(rule)

    def mixed(segment_length, rule, learner, batches):
        def step(learner, batch):
            learner, residuals, _ = inner_loop.update_with_residuals(
                dataclasses.replace(agent, rule=rule), learner, batch
            )
            return learner, residuals

        _, residuals = jax.lax.scan(step, learner, batches)

        def loss(rule):
            return loss_of(
                *inner_loop.differentiable_inner_loop(
                    agent, rule, learner, residuals, segment_length
                )
            )

        return jax.value_and_grad(loss)(rule)

    programs = {
        "plain": plain,
        "one level": partial(mixed, num_updates),
        "two levels": partial(mixed, None),
    }
    arguments = rule, learner, batches
    compare({name: (x, arguments) for name, x in programs.items()}, "plain", _REPEATS.value)


def _experience(
    agent: RuleAgent, environment: environments.Environment
) -> tuple[LearnerState, disco.Trajectory, disco.Trajectory]:
    """Return an initial agent's state, K batches, and validation trajectories."""
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    state = iteration.init(agent, dynamics, task, jax.random.key(1))
    learner, actor = state.learner, state.actor
    assert actor is not None

    @partial(jax.jit, static_argnums=1)
    def unroll(key, num_steps):
        collected = collection.unroll(agent, dynamics, task, learner.params, actor, key, num_steps)
        return to_trajectory(collected[1])

    keys = jax.random.split(jax.random.key(2), _NUM_UPDATES.value)
    recorded = [unroll(key, tutorial.AGENT.unroll_length) for key in keys]
    batches = jax.tree.map(lambda *x: jnp.stack(x), *recorded)
    return learner, batches, unroll(jax.random.key(3), tutorial.META.validation_length)


if __name__ == "__main__":
    app.run(main)

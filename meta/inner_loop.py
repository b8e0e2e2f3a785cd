"""The inner loop: K updates of an agent by the rule, and its derivative.

`inner_loop` runs the updates, acting before each, and returns their residuals. After the updated
agent has collected its validation trajectories, `differentiable_inner_loop` rebuilds the updates
from the residuals as a function of the rule; its derivative gives the meta-gradient. The forward
pass recomputes only the optimiser's elementwise arithmetic.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
import environments
from agents.rule_agent import LearnerState, RuleAgent, to_trajectory
from disco.types import Metrics
from disco.values import zero_where_all_illegal
from meta.objective import TargetStatistics, ValueFunction, ValueFunctionState, target_statistics
from meta.sharding import split_batch
from training import iteration
from training.collection import EpisodeStatistics
from training.iteration import TrainingState


@chex.dataclass(frozen=True)
class InnerLoopResiduals:
    """What the derivative of K updates needs; every leaf has a leading axis K.

    `update_with_residuals` returns those of one update, without that axis.

    Attributes:
      batch: the batch of each update.
      update: the residuals of each application of the rule.
      target_network_logits: the target network's policy on each batch.
    """

    batch: disco.Trajectory
    update: disco.UpdateResiduals
    target_network_logits: Float[Array, "*K T_plus_1 B A"]


def update_with_residuals(
    agent: RuleAgent,
    learner: LearnerState,
    batch: disco.Trajectory,
) -> tuple[LearnerState, InnerLoopResiduals, Metrics]:
    """Return the learner after one update by the agent's rule, the residuals and metrics."""
    after, gradients, aux = agent.learn(learner, batch)
    # The compiler merges this with the rule's own pass through the target network.
    target_outputs = agent.network.unroll(learner.rule_state.target_params, batch)
    residuals = InnerLoopResiduals(
        batch=batch,
        update=disco.UpdateResiduals(
            gradients=gradients, targets=aux.targets, memory=aux.state.memory
        ),
        target_network_logits=zero_where_all_illegal(target_outputs["logits"]),
    )
    return after, residuals, aux.metrics


def update(
    agent: RuleAgent,
    value_function: ValueFunction,
    state: TrainingState,
    value_state: ValueFunctionState,
    batch: disco.Trajectory,
) -> tuple[TrainingState, ValueFunctionState, InnerLoopResiduals, Metrics]:
    """Update an agent, and its meta-value function if it learns from batches, on one batch."""
    batch = split_batch(batch)
    if value_function.config.learns_from_batches:
        outputs = agent.network.unroll(state.learner.params, batch)
        logits = zero_where_all_illegal(outputs["logits"])
        value_state = value_function.update(value_state, logits, batch)
    learner, residuals, metrics = update_with_residuals(agent, state.learner, batch)
    state = dataclasses.replace(state, learner=learner, updates=state.updates + 1)
    return state, value_state, residuals, metrics


def inner_loop(
    agent: RuleAgent,
    dynamics: environments.JaxEnvironment,
    value_function: ValueFunction,
    state: TrainingState,
    value_state: ValueFunctionState,
    task_params: PyTree,
    key: PRNGKeyArray,
    num_updates: int,
) -> tuple[TrainingState, ValueFunctionState, InnerLoopResiduals, EpisodeStatistics, Metrics]:
    """Make K updates of an agent and its meta-value function (`update`), acting before each.

    Returns:
      The two states, the residuals of the updates, the sums of the episodes' statistics, and the
      mean metrics of the updates.
    """

    def step(carry, key):
        state, value_state = carry
        state, batch, statistics = iteration.collect_and_draw(
            agent, dynamics, task_params, state, key
        )
        state, value_state, residuals, metrics = update(
            agent, value_function, state, value_state, to_trajectory(batch)
        )
        return (state, value_state), (residuals, statistics, metrics)

    keys = jax.random.split(key, num_updates)
    (state, value_state), (residuals, statistics, metrics) = jax.lax.scan(
        step, (state, value_state), keys
    )
    statistics = jax.tree.map(lambda x: jnp.sum(x, axis=0), statistics)
    return state, value_state, residuals, statistics, jax.tree.map(jnp.mean, metrics)


def differentiable_inner_loop(
    agent: RuleAgent,
    rule: disco.Rule,
    learner: LearnerState,
    residuals: InnerLoopResiduals,
    segment_length: int | None = None,
) -> tuple[LearnerState, TargetStatistics]:
    """Return the learner after the K updates, differentiable with respect to the rule.

    Args:
      agent: whose updates they are.
      rule: by which the agent was updated.
      learner: before the first update.
      residuals: of the K updates.
      segment_length: updates between two learner states that are stored for the backward pass,
        a divisor of K. The states within a segment are recomputed, from stored gradients, in the
        backward pass. By default about the square root of K, so that memory grows with the square
        root of K. K itself stores every state.

    Returns:
      The learner after the last update, and statistics of the targets of each update, `[K]`.
    """
    agent = dataclasses.replace(agent, rule=rule)
    num_updates = residuals.batch.action.shape[0]
    if segment_length is None:
        segment_length = _divisor_near_square_root(num_updates)
    if num_updates % segment_length:
        raise ValueError(f"segment_length {segment_length} does not divide K = {num_updates}.")

    def step(learner: LearnerState, residuals: InnerLoopResiduals):
        learner, _, aux = agent.learn(learner, residuals.batch, residuals.update)
        return learner, target_statistics(aux.targets, residuals.target_network_logits)

    def segment(learner, residuals):
        return jax.lax.scan(step, learner, residuals)

    if segment_length == num_updates:
        return segment(learner, residuals)
    num_segments = num_updates // segment_length
    segments = jax.tree.map(
        lambda x: x.reshape(num_segments, segment_length, *x.shape[1:]), residuals
    )
    learner, statistics = jax.lax.scan(jax.checkpoint(segment), learner, segments)
    return learner, jax.tree.map(lambda x: x.reshape(num_updates), statistics)


def _divisor_near_square_root(number: int) -> int:
    """Return the divisor that is nearest to the square root; of two, the larger one."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return max(divisors, key=lambda d: (-abs(2 * math.log(d) - math.log(number)), d))

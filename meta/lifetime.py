"""A stretch of an agent's lifetime, and the meta-gradient through it.

`live` makes K updates of the agent by the rule, acting in between, and remembers each. Only
then, when the updated agent has also played its validation trajectories, does `relive` build
the same updates from memory as a function of the rule; its derivative is the meta-gradient.
Nothing but the optimiser's elementwise arithmetic is computed twice on the way forward.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
from agents.rule_agent import Agent, AgentState, LearnerState
from disco.types import Metrics
from meta.mesh import split_batch
from meta.objective import TargetStatistics, target_statistics
from meta.value_function import ValueFunction, ValueFunctionState
from training.collection import EpisodeStatistics


@chex.dataclass(frozen=True)
class Memoir:
    """What is remembered of K updates; every leaf has a leading axis K.

    Attributes:
      batch: that each learned from.
      update: what the rule made of it.
      target_network_logits: the target network's policy on it, `[K, T+1, B, A]`.
    """

    batch: disco.Trajectory
    update: disco.Remembered
    target_network_logits: Float[Array, "K T+1 B A"]


def remember(
    agent: Agent,
    rule: disco.Rule,
    learner: LearnerState,
    batch: disco.Trajectory,
) -> tuple[LearnerState, Memoir, Metrics]:
    """One update by the rule, and what is to be remembered of it."""
    after, gradients, aux = agent.learn(rule, learner, batch)
    # The compiler merges this with the rule's own pass through the target network.
    target_outputs = agent.network.unroll(learner.rule.target_params, batch)
    memoir = Memoir(
        batch=batch,
        update=disco.Remembered(gradients=gradients, targets=aux.targets, memory=aux.state.memory),
        target_network_logits=target_outputs["logits"],
    )
    return after, memoir, aux.metrics


def update(
    agent: Agent,
    value_function: ValueFunction,
    rule: disco.Rule,
    state: AgentState,
    value_state: ValueFunctionState,
    batch: disco.Trajectory,
) -> tuple[AgentState, ValueFunctionState, Memoir, Metrics]:
    """One update of the agent and of its meta-value function."""
    batch = split_batch(batch)
    logits = agent.network.unroll(state.learner.params, batch)["logits"]
    value_state = value_function.update(value_state, logits, batch)
    learner, memoir, metrics = remember(agent, rule, state.learner, batch)
    state = dataclasses.replace(state, learner=learner, updates=state.updates + 1)
    return state, value_state, memoir, metrics


def live(
    agent: Agent,
    value_function: ValueFunction,
    rule: disco.Rule,
    state: AgentState,
    value_state: ValueFunctionState,
    task: PyTree,
    key: PRNGKeyArray,
    num_updates: int,
) -> tuple[AgentState, ValueFunctionState, Memoir, EpisodeStatistics, Metrics]:
    """K updates of the agent and of its meta-value function, acting before each."""

    def step(carry, key):
        state, value_state = carry
        state, batch, statistics = agent.experience(state, task, key)
        state, value_state, memoir, metrics = update(
            agent, value_function, rule, state, value_state, batch
        )
        return (state, value_state), (memoir, statistics, metrics)

    keys = jax.random.split(key, num_updates)
    (state, value_state), (memoir, statistics, metrics) = jax.lax.scan(
        step, (state, value_state), keys
    )
    statistics = jax.tree.map(lambda x: jnp.sum(x, axis=0), statistics)
    return state, value_state, memoir, statistics, jax.tree.map(jnp.mean, metrics)


def relive(
    agent: Agent,
    rule: disco.Rule,
    learner: LearnerState,
    memoir: Memoir,
    segment_length: int | None = None,
) -> tuple[LearnerState, TargetStatistics]:
    """The remembered updates as a differentiable function of the rule.

    Args:
      agent: whose updates they are.
      rule: that made them.
      learner: before the first of them.
      memoir: of the K updates.
      segment_length: updates between two states that are kept for the way back; the states
        within a segment are rebuilt, from remembered gradients, when it is differentiated.
        By default about the square root of K, which keeps memory from growing with K. K
        itself keeps every state; it must divide K.

    Returns:
      The learner after the last update, and statistics of the targets of each, `[K]`.
    """
    num_updates = memoir.batch.action.shape[0]
    if segment_length is None:
        segment_length = _middle_divisor(num_updates)
    if num_updates % segment_length:
        raise ValueError(f"segment_length {segment_length} does not divide K = {num_updates}.")

    def step(learner: LearnerState, memoir: Memoir):
        gradients, aux = rule.recall(
            learner.params, learner.rule, memoir.batch, agent.network.unroll, memoir.update
        )
        statistics = target_statistics(aux.targets, memoir.target_network_logits)
        return agent.apply(learner, gradients, aux), statistics

    def segment(learner, memoir):
        return jax.lax.scan(step, learner, memoir)

    if segment_length == num_updates:
        return segment(learner, memoir)
    num_segments = num_updates // segment_length
    segments = jax.tree.map(lambda x: x.reshape(num_segments, segment_length, *x.shape[1:]), memoir)
    learner, statistics = jax.lax.scan(jax.checkpoint(segment), learner, segments)
    return learner, jax.tree.map(lambda x: x.reshape(num_updates), statistics)


def _middle_divisor(number: int) -> int:
    """The divisor of a number that is nearest to its square root, the larger one of two."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return max(divisors, key=lambda d: (-abs(2 * math.log(d) - math.log(number)), d))

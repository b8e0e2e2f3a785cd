"""One unroll and the updates after it, on the device: what every agent does again and again."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import environments
from agents.protocol import Agent, Batch
from training import batches, collection, replay
from training.collection import ActorState, EpisodeStatistics
from training.replay import Replay


@chex.dataclass(frozen=True)
class TrainingState:
    """The state of one run.

    Attributes:
      learner: the agent's learning state.
      actor: its environments; None outside JAX.
      replay: its replay; None without, or outside JAX.
      updates: times that it has learned.
    """

    learner: PyTree[Array]
    actor: ActorState | None
    replay: Replay | None
    updates: Int[Array, "*runs"]


def init(
    agent: Agent, dynamics: environments.JaxEnvironment, task: PyTree, key: PRNGKeyArray
) -> TrainingState:
    """Return the state of a run before its first unroll."""
    learner_key, actor_key = _split(agent, key)
    learner = agent.init(learner_key)
    spec = agent.experience
    actor = collection.start(agent, dynamics, task, actor_key, spec.num_environments)
    kept = None
    if spec.replay is not None:
        shapes = jax.eval_shape(
            lambda: _unroll(agent, dynamics, task, learner, actor, actor_key)[1]
        )
        kept = replay.init(shapes, spec.replay.capacity // spec.unroll_length)
    updates = jnp.zeros((), jnp.int32)
    return TrainingState(learner=learner, actor=actor, replay=kept, updates=updates)


def advance(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
) -> tuple[TrainingState, EpisodeStatistics, dict[str, Float[Array, ""]]]:
    """Collect one unroll and, if the agent learns, make the update after it.

    Returns:
      The state after it, sums over the episodes that ended, and the update's metrics.
    """
    unroll_key, update_key = _split(agent, key)
    state, unroll, statistics = collect(agent, dynamics, task, state, unroll_key)
    if not agent.experience.updates:
        return state, statistics, {}
    (spec,) = agent.experience.updates  # `training.settings.require_served`
    batch = draw(agent, state, unroll, update_key)
    updated = agent.update(state.learner, batch, jax.random.fold_in(update_key, 0), spec.name)
    state = dataclasses.replace(state, learner=updated.state, updates=state.updates + 1)
    return state, statistics, updated.metrics


def experience(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
) -> tuple[TrainingState, Batch, EpisodeStatistics]:
    """Collect one unroll, and draw the batch of the update after it.

    Returns:
      The state after it, the batch, and sums over the episodes that ended.
    """
    unroll_key, update_key = _split(agent, key)
    state, batch, statistics = collect(agent, dynamics, task, state, unroll_key)
    return state, draw(agent, state, batch, update_key), statistics


def collect(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
) -> tuple[TrainingState, Batch, EpisodeStatistics]:
    """Collect one unroll and insert it into the replay.

    Returns:
      The state after it, the unroll, and sums over the episodes that ended.
    """
    assert state.actor is not None
    actor, batch, statistics = _unroll(agent, dynamics, task, state.learner, state.actor, key)
    kept = None if state.replay is None else replay.insert(state.replay, batch)
    return dataclasses.replace(state, actor=actor, replay=kept), batch, statistics


def draw(agent: Agent, state: TrainingState, batch: Batch, key: PRNGKeyArray) -> Batch:
    """Return the batch of an update: the unroll just collected, or replayed sequences, or both.

    Args:
      agent: that learns.
      state: after the unroll.
      batch: the unroll.
      key: of the draw.
    """
    (spec,) = agent.experience.updates
    if not spec.num_replayed:
        return batch
    assert state.replay is not None
    replayed = replay.sample(state.replay, key, spec.num_replayed)
    if spec.num_replayed == spec.batch_size:
        return replayed
    return batches.concatenate([batch, replayed])


def _unroll(agent, dynamics, task, learner, actor, key):
    return collection.unroll(
        agent,
        dynamics,
        task,
        agent.acting_state(learner),
        actor,
        key,
        agent.experience.unroll_length,
    )


def _split(agent: Agent, key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Return two keys; an agent that does not learn needs that of its environments only."""
    if not agent.experience.updates:
        return key, key
    first, second = jax.random.split(key)
    return first, second

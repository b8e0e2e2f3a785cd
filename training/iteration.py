"""One iteration of training on the device: an unroll and the updates after it."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import environments
from agents.protocol import Agent, Batch, Metrics, UpdateSpec
from training import collection, replay, replay_sampling
from training.collection import ActorState, EpisodeStatistics
from training.passes import initial_state
from training.replay import Replay
from training.schedule import schedule


@chex.dataclass(frozen=True)
class TrainingState:
    """The state of one run.

    Attributes:
      learner: the agent's learning state.
      actor: the state of its environments; None for host environments.
      replay: its replay; None without one, or for host environments.
      updates: number of updates so far.
    """

    learner: PyTree[Array]
    actor: ActorState | None
    replay: Replay | None
    updates: Int[Array, "*runs"]


def init(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    key: PRNGKeyArray,
    num_steps: int | None = None,
) -> TrainingState:
    """Return the state of a run before its first unroll; `num_steps` as in `make_layout`."""
    learner_key, actor_key = _split(agent, key)
    learner, requirements = initial_state(agent, learner_key), agent.requirements
    actor = collection.start(agent, dynamics, task_params, actor_key, requirements.num_environments)
    kept = None
    if requirements.replay is not None:  # Of what the environment returns: dtypes may be others.
        shapes = jax.eval_shape(
            lambda: collection.collect(
                agent,
                dynamics,
                task_params,
                agent.acting_state(learner),
                actor,
                actor_key,
                requirements.unroll_length,
            )[1]
        )
        kept = replay.init(replay.make_layout(requirements, num_steps), shapes)
    return TrainingState(
        learner=learner, actor=actor, replay=kept, updates=jnp.zeros((), jnp.int32)
    )


def advance(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
    unroll: Int[Array, ""],
) -> tuple[TrainingState, EpisodeStatistics, dict[str, Metrics]]:
    """Collect one unroll, and make the updates that are due after it.

    Returns:
      The state after the updates, sums over the episodes that ended, and by kind of update the sums
      of the updates' metrics.
    """
    unroll_key, update_key = _split(agent, key)
    state, batch, statistics = collect(agent, dynamics, task_params, state, unroll_key)
    metrics, layout = {}, None
    if state.replay is not None:
        layout = replay.layout_of(agent.requirements, state.replay)
    for number, update in enumerate(agent.requirements.updates):
        when = schedule(agent.requirements, update, layout)
        if number == 0 and when.is_always_one:
            keys = update_key, jax.random.fold_in(update_key, 0)
            state, metrics[update.name] = _update(agent, update, state, batch, keys)
        else:
            kind_key = jax.random.fold_in(update_key, number)
            due = when.num_due(unroll)
            state, metrics[update.name] = _updates(agent, update, state, batch, kind_key, due)
    return state, statistics, metrics


def _updates(
    agent: Agent,
    update: UpdateSpec,
    state: TrainingState,
    unroll: Batch,
    key: PRNGKeyArray,
    number: Int[Array, ""],
) -> tuple[TrainingState, Metrics]:
    """Make a number of updates of one kind; return the state and the sums of their metrics."""

    def add(i, carry):
        state, sums = carry
        first, second = jax.random.split(jax.random.fold_in(key, i))
        state, metrics = _update(agent, update, state, unroll, (first, second))
        return state, jax.tree.map(jnp.add, sums, metrics)

    _, shapes = jax.eval_shape(lambda: _update(agent, update, state, unroll, (key, key)))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, number, add, (state, zeros))


def _update(
    agent: Agent,
    update: UpdateSpec,
    state: TrainingState,
    unroll: Batch,
    keys: tuple[PRNGKeyArray, PRNGKeyArray],
) -> tuple[TrainingState, Metrics]:
    """Make one update; the keys are for the draw and for `Agent.update`."""
    kept, batch, sequences = replay_sampling.draw(
        agent.requirements, state.replay, update, unroll, keys[0]
    )
    updated = agent.update(state.learner, batch, keys[1], update.name)
    if updated.refreshed is not None:
        assert kept is not None
        assert sequences is not None
        kept = replay_sampling.write_back(
            agent.requirements, kept, update, sequences, updated.refreshed
        )
    state = dataclasses.replace(
        state, learner=updated.state, replay=kept, updates=state.updates + 1
    )
    return state, updated.metrics


def collect_and_draw(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
) -> tuple[TrainingState, Batch, EpisodeStatistics]:
    """Collect one unroll, and draw the batch of the one update after it.

    Returns:
      The state after it, the batch, and sums over the episodes that ended.
    """
    unroll_key, update_key = _split(agent, key)
    state, unroll, statistics = collect(agent, dynamics, task_params, state, unroll_key)
    (update,) = agent.requirements.updates
    kept, batch, _ = replay_sampling.draw(
        agent.requirements, state.replay, update, unroll, update_key
    )
    # So that rounding in what reads the batch does not depend on how the replay stores it.
    batch = jax.lax.optimization_barrier(batch)
    return dataclasses.replace(state, replay=kept), batch, statistics


def collect(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    state: TrainingState,
    key: PRNGKeyArray,
) -> tuple[TrainingState, Batch, EpisodeStatistics]:
    """Collect one unroll and insert it into the replay.

    Returns:
      The state after it, the unroll, and sums over the episodes that ended.
    """
    assert state.actor is not None
    actor, batch, statistics = collection.collect(
        agent,
        dynamics,
        task_params,
        agent.acting_state(state.learner),
        state.actor,
        key,
        agent.requirements.unroll_length,
    )
    kept = state.replay
    if kept is not None:
        kept = replay.insert(agent.requirements, kept, batch)
    return dataclasses.replace(state, actor=actor, replay=kept), batch, statistics


def _split(agent: Agent, key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Return two keys; for an agent that does not learn both are the given key."""
    if not agent.requirements.updates:
        return key, key
    first, second = jax.random.split(key)
    return first, second

"""Collecting trajectories from JAX environments, on device."""

import dataclasses
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
import environments
from agents.frames import History, Seen
from agents.networks import Network


@chex.dataclass(frozen=True)
class ActorState:
    """Where B environments stand. Leaves have a leading axis B.

    Attributes:
      environment: the simulators' states.
      timestep: the last time step of each.
      episode_return: undiscounted, of the episode so far.
      episode_length: steps of the episode so far.
      before: the last observations before that of `timestep`, and each one's age, leaves
        `[B, rows, ...]`; None if the agent sees no history.
      memory: of the network, before it sees `timestep`.
      memory_before: as it was before the next trajectory's burn-in.
    """

    environment: PyTree[Array]
    timestep: dm_env.TimeStep
    episode_return: Float[Array, "B"]
    episode_length: Float[Array, "B"]
    before: History | None
    memory: PyTree[Array]
    memory_before: PyTree[Array]


@chex.dataclass(frozen=True)
class EpisodeStatistics:
    """Of the episodes that ended in a batch of trajectories.

    Attributes:
      count: how many ended.
      return_sum: of their undiscounted returns.
      length_sum: of their steps.
      result_sums: of what the suite tells of them besides.
      reward_sum: of all rewards, of ended and of unfinished episodes.
      steps: transitions, without those from an episode's end to the next one's start.
    """

    count: Float[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Float[Array, ""]
    result_sums: dict[str, Float[Array, ""]]
    reward_sum: Float[Array, ""]
    steps: Float[Array, ""]


def start(
    environment: environments.JaxEnvironment,
    network: Network,
    task: PyTree,
    key: PRNGKeyArray,
    batch_size: int,
) -> ActorState:
    """Starts an episode in each of `batch_size` environments."""
    seen = network.seen
    keys = jax.random.split(key, batch_size)
    state, timestep = jax.vmap(environment.reset, in_axes=(None, 0))(task, keys)
    zeros = jnp.zeros(batch_size, jnp.float32)
    memory = network.initial_memory(batch_size)
    before = None
    if seen.is_history:
        before = History(
            frames=jax.tree.map(
                lambda x: jnp.zeros((batch_size, seen.rows_before, *x.shape[1:]), x.dtype),
                timestep.observation,
            ),
            age=jnp.zeros((batch_size, seen.rows_before), jnp.int32),
        )
    return ActorState(
        environment=state,
        timestep=timestep,
        episode_return=zeros,
        episode_length=zeros,
        before=before,
        memory=memory,
        memory_before=memory,
    )


def rollout(
    environment: environments.JaxEnvironment,
    network: Network,
    params: disco.Params,
    task: PyTree,
    actor: ActorState,
    key: PRNGKeyArray,
    num_steps: int,
) -> tuple[ActorState, disco.Trajectory, EpisodeStatistics]:
    """Acts by the network's policy for `num_steps` in each environment.

    Episodes follow one another; see `environments.stream` for what lies between.
    """
    seen, batch_size = network.seen, actor.episode_return.shape[0]
    stream = jax.vmap(
        lambda *args: environments.stream(environment, task, *args), in_axes=(0, 0, 0, 0)
    )
    results_of = jax.vmap(
        lambda state: environments.episode_results(environment, task, state), in_axes=0
    )

    def step(actor: ActorState, key):
        act_key, step_key = jax.random.split(key)
        previous = actor.timestep
        observation = _observation(actor, seen)
        logits, memory = network.policy(params, observation, actor.memory)
        action = jax.random.categorical(act_key, logits)
        state, timestep = stream(
            actor.environment, previous, action, jax.random.split(step_key, batch_size)
        )
        is_new = previous.last()
        total = jnp.where(is_new, 0.0, actor.episode_return) + timestep.reward
        length = jnp.where(is_new, 0.0, actor.episode_length + 1.0)
        row = {
            "observation": previous.observation,
            "action": action,
            "reward": timestep.reward,
            "discount": timestep.discount,
            "last": timestep.last(),
            "behaviour_logits": logits,
            "mask": ~is_new,
        }
        ended = {"return": total, "length": length, "results": results_of(state)}
        past = (actor.episode_length.astype(jnp.int32), actor.memory) if seen.is_history else None
        actor = dataclasses.replace(
            actor,
            environment=state,
            timestep=timestep,
            episode_return=total,
            episode_length=length,
            before=_shifted(actor, seen),
            memory=memory,
        )
        return actor, (row, ended, past)

    before = actor.before, actor.memory_before
    actor, (rows, ended, past) = jax.lax.scan(step, actor, jax.random.split(key, num_steps))
    observation = jax.tree.map(
        lambda x, last: jnp.concatenate([x, last[None]]),
        rows.pop("observation"),
        actor.timestep.observation,
    )
    memory = None
    if seen.is_history:
        history, memory = before
        assert past is not None
        ages, memories = past
        history = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), history)
        final_age = actor.episode_length.astype(jnp.int32)
        observation = History(
            frames=jax.tree.map(lambda *x: jnp.concatenate(x), history.frames, observation),
            age=jnp.concatenate(
                [history.age[seen.frame_stack - 1 :], ages, final_age[None]], axis=0
            ),
        )
        if seen.burn_in:
            after = jax.tree.map(lambda x: x[num_steps - seen.burn_in], memories)
            actor = dataclasses.replace(actor, memory_before=after)
        else:
            actor = dataclasses.replace(actor, memory_before=actor.memory)
    trajectory = disco.Trajectory(observation=observation, core_state=memory, **rows)

    def total_over_ended(x):
        return jnp.sum(jnp.where(trajectory.last, x, 0.0))

    statistics = EpisodeStatistics(
        count=jnp.sum(trajectory.last, dtype=jnp.float32),
        return_sum=total_over_ended(ended["return"]),
        length_sum=total_over_ended(ended["length"]),
        result_sums=jax.tree.map(total_over_ended, ended["results"]),
        reward_sum=jnp.sum(trajectory.reward),
        steps=jnp.sum(trajectory.mask, dtype=jnp.float32),
    )
    return actor, trajectory, statistics


def _observation(actor: ActorState, seen: Seen) -> Any:
    """What the policy sees of the current states."""
    if not seen.is_history:
        return actor.timestep.observation
    assert actor.before is not None

    def with_current(before, current):
        stacked = jnp.swapaxes(before[:, seen.burn_in :], 0, 1)
        return jnp.concatenate([stacked, current[None]])

    return History(
        frames=jax.tree.map(with_current, actor.before.frames, actor.timestep.observation),
        age=actor.episode_length.astype(jnp.int32)[None],
    )


def _shifted(actor: ActorState, seen: Seen) -> History | None:
    """The history before the next observation: this one's, moved on by a step."""
    if actor.before is None or not seen.rows_before:
        return actor.before

    def shift(before, current):
        return jnp.concatenate([before[:, 1:], current[:, None]], axis=1)

    return History(
        frames=jax.tree.map(shift, actor.before.frames, actor.timestep.observation),
        age=shift(actor.before.age, actor.episode_length.astype(jnp.int32)),
    )

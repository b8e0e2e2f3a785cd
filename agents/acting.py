"""Collecting trajectories from JAX environments, on device."""

import chex
import dm_env
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
import environments
from agents.networks import Network


@chex.dataclass(frozen=True)
class ActorState:
    """Where B environments stand. Leaves have a leading axis B.

    Attributes:
      environment: the simulators' states.
      timestep: the last time step of each.
      episode_return: undiscounted, of the episode so far.
    """

    environment: PyTree[Array]
    timestep: dm_env.TimeStep
    episode_return: Float[Array, "B"]


@chex.dataclass(frozen=True)
class EpisodeStatistics:
    """Of the episodes that ended in a batch of trajectories.

    Attributes:
      count: how many ended.
      return_sum: of their undiscounted returns.
      reward_sum: of all rewards, of ended and of unfinished episodes.
      steps: transitions, without those from an episode's end to the next one's start.
    """

    count: Float[Array, ""]
    return_sum: Float[Array, ""]
    reward_sum: Float[Array, ""]
    steps: Float[Array, ""]


def start(
    environment: environments.JaxEnvironment, task: PyTree, key: PRNGKeyArray, batch_size: int
) -> ActorState:
    """Starts an episode in each of `batch_size` environments."""
    keys = jax.random.split(key, batch_size)
    state, timestep = jax.vmap(environment.reset, in_axes=(None, 0))(task, keys)
    return ActorState(
        environment=state, timestep=timestep, episode_return=jnp.zeros(batch_size, jnp.float32)
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
    batch_size = actor.episode_return.shape[0]
    stream = jax.vmap(
        lambda *args: environments.stream(environment, task, *args), in_axes=(0, 0, 0, 0)
    )

    def step(actor: ActorState, key):
        act_key, step_key = jax.random.split(key)
        previous = actor.timestep
        logits = network.policy(params, previous.observation)
        action = jax.random.categorical(act_key, logits)
        state, timestep = stream(
            actor.environment, previous, action, jax.random.split(step_key, batch_size)
        )
        total = jnp.where(previous.last(), 0.0, actor.episode_return) + timestep.reward
        actor = ActorState(environment=state, timestep=timestep, episode_return=total)
        row = {
            "observation": previous.observation,
            "action": action,
            "reward": timestep.reward,
            "discount": timestep.discount,
            "last": timestep.last(),
            "behaviour_logits": logits,
            "mask": ~previous.last(),
        }
        return actor, (row, total)

    actor, (rows, totals) = jax.lax.scan(step, actor, jax.random.split(key, num_steps))
    observation = jax.tree.map(
        lambda x, last: jnp.concatenate([x, last[None]]),
        rows.pop("observation"),
        actor.timestep.observation,
    )
    trajectory = disco.Trajectory(observation=observation, **rows)
    statistics = EpisodeStatistics(
        count=jnp.sum(trajectory.last, dtype=jnp.float32),
        return_sum=jnp.sum(jnp.where(trajectory.last, totals, 0.0)),
        reward_sum=jnp.sum(trajectory.reward),
        steps=jnp.sum(trajectory.mask, dtype=jnp.float32),
    )
    return actor, trajectory, statistics

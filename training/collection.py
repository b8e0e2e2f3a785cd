"""Acting in JAX environments, on the device, and batches of sequences."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import environments
from agents.history import History, HistorySpec
from agents.protocol import Agent, Batch, Mode


@chex.dataclass(frozen=True)
class ActorState:
    """The state of B environments, and the acting agent's memory. Leaves are `[B, ...]`.

    Attributes:
      environment: the environments' states.
      timestep: the current time step of each.
      episode_return: undiscounted, of the episode so far.
      episode_length: steps of the episode so far.
      before: the last observations before that of `timestep`, and the age of each, leaves
        `[B, rows, ...]`; None if the agent asks for no history.
      memory: the agent's memory before it acts on `timestep`.
      memory_before: the agent's memory before the burn-in of the next unroll.
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
    """Sums over the episodes that ended in some unrolls.

    Attributes:
      count: number of episodes that ended.
      return_sum: sum of their undiscounted returns.
      length_sum: sum of their lengths.
      result_sums: sums of the suite's own results.
      reward_sum: sum of all rewards, of unfinished episodes too.
      steps: transitions, without those from an episode's last observation to the next episode's
        first.
    """

    count: Float[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Float[Array, ""]
    result_sums: dict[str, Float[Array, ""]]
    reward_sum: Float[Array, ""]
    steps: Float[Array, ""]


def start(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    key: PRNGKeyArray,
    batch_size: int,
) -> ActorState:
    """Start an episode in each of B environments."""
    history = agent.requirements.history
    keys = jax.random.split(key, batch_size)
    state, timestep = jax.vmap(dynamics.reset, in_axes=(None, 0))(task_params, keys)
    zeros = jnp.zeros(batch_size, jnp.float32)
    memory = agent.initial_memory(batch_size)
    before = None
    if history.is_history:
        before = History(
            frames=jax.tree.map(
                lambda x: jnp.zeros((batch_size, history.rows_before, *x.shape[1:]), x.dtype),
                timestep.observation,
            ),
            age=jnp.zeros((batch_size, history.rows_before), jnp.int32),
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


def collect(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    acting_state: Any,
    actor: ActorState,
    key: PRNGKeyArray,
    num_steps: int,
    mode: Mode = Mode.TRAINING,
) -> tuple[ActorState, Batch, EpisodeStatistics]:
    """Act for `num_steps` in each environment.

    When an episode ends, the next one starts. The transition between them is one of the steps
    (`environments.stream`); `Batch.mask` is False there.

    Returns:
      The actor state after the unroll; one sequence of T transitions per environment; sums over
      the episodes that ended. The batch's observations are `[T+1, B, ...]`, with the rows before
      them that a history asks for (`Requirements.history`); actions, rewards, discounts, `last`,
      `mask` and extras `[T, B, ...]`; the memory before the first row `[B, ...]`.
    """
    history, first = agent.requirements.history, actor

    step = partial(_step, agent, dynamics, task_params, acting_state, mode)
    actor, (rows, ended, past) = jax.lax.scan(step, actor, jax.random.split(key, num_steps))
    observation = jax.tree.map(
        lambda x, last: jnp.concatenate([x, last[None]]),
        rows.pop("observation"),
        actor.timestep.observation,
    )
    memory = None
    if history.is_history:
        observation, actor = _with_history(history, observation, first, actor, past)
        memory = first.memory_before
    batch = Batch(observation=observation, memory=memory, **rows)
    return actor, batch, _statistics(batch, ended)


def _step(
    agent: Agent,
    dynamics: environments.JaxEnvironment,
    task_params: PyTree,
    acting_state: Any,
    mode: Mode,
    actor: ActorState,
    key: PRNGKeyArray,
) -> tuple[ActorState, tuple[dict[str, Any], dict[str, Any], Any]]:
    """Act once in each environment; arguments as those of `collect`.

    Returns:
      The actor state after the step. The batch's row; the return, length and results of the
      episode so far; its age and the agent's memory before the step, None without a history.
    """
    history, batch_size = agent.requirements.history, actor.episode_return.shape[0]
    stream = jax.vmap(partial(environments.stream, dynamics, task_params))
    results_of = jax.vmap(partial(environments.episode_results, dynamics, task_params))
    act_key, step_key = jax.random.split(key)
    previous = actor.timestep
    seen = previous._replace(observation=_observation(actor, history))
    memory, action, extras = agent.act(acting_state, actor.memory, seen, act_key, mode)
    keys = jax.random.split(step_key, batch_size)
    state, timestep = stream(actor.environment, previous, action, keys)
    is_new = previous.last()
    total = jnp.where(is_new, 0.0, actor.episode_return) + timestep.reward
    length = jnp.where(is_new, 0.0, actor.episode_length + 1.0)
    row = {
        "observation": previous.observation,
        "action": action,
        "reward": timestep.reward,
        "discount": timestep.discount,
        "last": timestep.last(),
        "extras": extras,
        "mask": ~is_new,
    }
    ended = {"return": total, "length": length, "results": results_of(state)}
    past = (actor.episode_length.astype(jnp.int32), actor.memory) if history.is_history else None
    actor = dataclasses.replace(
        actor,
        environment=state,
        timestep=timestep,
        episode_return=total,
        episode_length=length,
        before=_shifted(actor, history),
        memory=memory,
    )
    return actor, (row, ended, past)


def _statistics(batch: Batch, ended: dict[str, Any]) -> EpisodeStatistics:
    """Return sums over the episodes that ended in an unroll.

    `ended` has the return, length and results of the episode after each step, leaves `[T, B]`.
    """

    def total_over_ended(x):
        return jnp.sum(jnp.where(batch.last, x, 0.0))

    return EpisodeStatistics(
        count=jnp.sum(batch.last, dtype=jnp.float32),
        return_sum=total_over_ended(ended["return"]),
        length_sum=total_over_ended(ended["length"]),
        result_sums=jax.tree.map(total_over_ended, ended["results"]),
        reward_sum=jnp.sum(batch.reward),
        steps=jnp.sum(batch.mask, dtype=jnp.float32),
    )


def _with_history(
    history: HistorySpec, observation: Any, first: ActorState, actor: ActorState, past: Any
) -> tuple[History, ActorState]:
    """Prepend earlier observations to an unroll's, and store the memory before the next burn-in.

    `observation` is of the unroll, leaves `[T+1, B, ...]`, `past` the ages and memories at its
    steps, `[T, B, ...]`; `first` is the actor before the unroll, `actor` the one after it.
    """
    assert first.before is not None
    ages, memories = past
    before = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), first.before)
    final_age = actor.episode_length.astype(jnp.int32)
    observation = History(
        frames=jax.tree.map(lambda *x: jnp.concatenate(x), before.frames, observation),
        age=jnp.concatenate([before.age[history.frame_stack - 1 :], ages, final_age[None]], axis=0),
    )
    if not history.burn_in:
        return observation, dataclasses.replace(actor, memory_before=actor.memory)
    after = jax.tree.map(lambda x: x[len(ages) - history.burn_in], memories)
    return observation, dataclasses.replace(actor, memory_before=after)


def _observation(actor: ActorState, history: HistorySpec) -> Any:
    """Return the agent's observation at the current time steps."""
    if not history.is_history:
        return actor.timestep.observation
    assert actor.before is not None

    def with_current(before, current):
        stacked = jnp.swapaxes(before[:, history.burn_in :], 0, 1)
        return jnp.concatenate([stacked, current[None]])

    return History(
        frames=jax.tree.map(with_current, actor.before.frames, actor.timestep.observation),
        age=actor.episode_length.astype(jnp.int32)[None],
    )


def _shifted(actor: ActorState, history: HistorySpec) -> History | None:
    """Return the history before the next observation: the current one, shifted by one step."""
    if actor.before is None or not history.rows_before:
        return actor.before

    def shift(before, current):
        return jnp.concatenate([before[:, 1:], current[:, None]], axis=1)

    return History(
        frames=jax.tree.map(shift, actor.before.frames, actor.timestep.observation),
        age=shift(actor.before.age, actor.episode_length.astype(jnp.int32)),
    )


def map_batch(function: Callable[..., Any], *batches: Any) -> Any:
    """Map `function(axis, *leaves)` over the leaves of `Batch`es; `axis` is their batch axis."""
    memory = jax.tree.map(partial(function, 0), *(batch.memory for batch in batches))
    rest = (dataclasses.replace(batch, memory=None) for batch in batches)
    return dataclasses.replace(jax.tree.map(partial(function, 1), *rest), memory=memory)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches along the batch axis; NumPy arrays give NumPy arrays."""
    if len(batches) == 1:
        return batches[0]
    library = np if isinstance(batches[0].action, np.ndarray) else jnp
    return map_batch(lambda axis, *x: library.concatenate(x, axis=axis), *batches)


def example(
    agent: Agent,
    dynamics: environments.JaxEnvironment | environments.HostEnvironment,
    batch_size: int,
    num_steps: int,
    acting_state: Any = None,
) -> Batch:
    """Return the shapes and dtypes of the batch that `collect` returns, T steps in B environments.

    `acting_state` defaults to that of an initial learning state.
    """
    if acting_state is None:
        acting_state = jax.eval_shape(
            lambda key: agent.acting_state(agent.init(key)), jax.random.key(0)
        )
    history, spec = agent.requirements.history, dynamics.observation_spec()

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.dtype(dtype))

    def observation(num_frames: int, num_ages: int) -> Any:
        frames = jax.tree.map(
            lambda leaf: array(leaf.dtype, num_frames, batch_size, *leaf.shape), spec
        )
        if not history.is_history:
            return frames
        return History(frames=frames, age=array(np.int32, num_ages, batch_size))

    seen = observation(history.frame_stack, 1)
    if not history.is_history:
        seen = jax.tree.map(lambda x: array(x.dtype, *x.shape[1:]), seen)
    timestep = dm_env.TimeStep(
        step_type=array(np.int32, batch_size),
        reward=array(np.float32, batch_size),
        discount=array(np.float32, batch_size),
        observation=seen,
    )

    def act(acting_state, timestep):
        memory, key = agent.initial_memory(batch_size), jax.random.key(0)
        return memory, *agent.act(acting_state, memory, timestep, key, Mode.TRAINING)[1:]

    memory, action, extras = jax.eval_shape(act, acting_state, timestep)
    rows = num_steps + 1
    return Batch(
        observation=observation(history.rows_before + rows, history.burn_in + rows),
        action=array(action.dtype, num_steps, *action.shape),
        reward=array(np.float32, num_steps, batch_size),
        discount=array(np.float32, num_steps, batch_size),
        last=array(bool, num_steps, batch_size),
        mask=array(bool, num_steps, batch_size),
        extras=jax.tree.map(lambda x: array(x.dtype, num_steps, *x.shape), extras),
        memory=memory if history.is_history else None,
    )

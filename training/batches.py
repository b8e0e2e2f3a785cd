"""Operations on batches of sequences. The batch is the second axis of most arrays."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

import environments
from agents.history import History
from agents.protocol import Agent, Batch, Mode


def map_batch(function: Callable[..., Any], *batches: Any) -> Any:
    """Map `function(axis, *leaves)` over all leaves; `axis` is a leaf's batch axis.

    Args:
      function: of the axis and a leaf of each of the batches.
      batches: `Batch`es, or pytrees of their structure with leaves of any kind.
    """
    memories = (batch.memory for batch in batches)
    memory = jax.tree.map(lambda *leaves: function(0, *leaves), *memories)
    rest = (dataclasses.replace(batch, memory=None) for batch in batches)
    mapped = jax.tree.map(lambda *leaves: function(1, *leaves), *rest)
    return dataclasses.replace(mapped, memory=memory)


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
    """Return the shapes and dtypes of an unroll of T steps in B environments.

    `acting_state` defaults to that of an initial learning state.
    """
    if acting_state is None:
        acting_state = jax.eval_shape(
            lambda key: agent.acting_state(agent.init(key)), jax.random.key(0)
        )
    history, spec = agent.experience.history, dynamics.observation_spec()

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
    memory, action, extras = jax.eval_shape(
        lambda *arguments: _act_once(agent, batch_size, *arguments), acting_state, timestep
    )
    return Batch(
        observation=observation(
            history.rows_before + num_steps + 1, history.burn_in + num_steps + 1
        ),
        action=array(action.dtype, num_steps, *action.shape),
        reward=array(np.float32, num_steps, batch_size),
        discount=array(np.float32, num_steps, batch_size),
        last=array(bool, num_steps, batch_size),
        mask=array(bool, num_steps, batch_size),
        extras=jax.tree.map(lambda x: array(x.dtype, num_steps, *x.shape), extras),
        memory=memory if history.is_history else None,
    )


def _act_once(agent: Agent, batch_size: int, acting_state: Any, timestep: dm_env.TimeStep) -> Any:
    memory = agent.initial_memory(batch_size)
    key = jax.random.key(0)
    _, action, extras = agent.act(acting_state, memory, timestep, key, Mode.TRAINING)
    return memory, action, extras
